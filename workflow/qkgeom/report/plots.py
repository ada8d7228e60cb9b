"""Interactive versions of figures, from the numbers that they drew; the picture stays the figure of record.

Which plot a figure gets is read from the columns of its csv, so that no figure has to say so. Each panel is a Vega-Lite
specification of its own, as wide as the page lets it be. Colours are CSS variables of the page, so that they follow the
reader's colour scheme. Sand: the central 95 % of random layers, as in the pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qkgeom.origins import Origin
from qkgeom.untrained import MARK, UNTRAINED

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

SCORES = {"symmetry": "symmetry", "directionality_excess": "directionality (excess)"}
ROLES = {"encoder": "var(--encoder)", "decoder": "var(--decoder)"}
SHAPES = {"encoder": "circle", "decoder": "square"}
HEIGHT = 260  # pixels
FONT = "system-ui, sans-serif"
ABOUT = ("label", "layers", "uri", "revision", "status")  # what a point says of its model
FEW_LAYERS = 3  # with fewer, a marker is open, as in figures/_scores_against_size.py, which loads matplotlib
CROSS = "M-.7,-.7L.7,.7M-.7,.7L.7,-.7"
MOST_ROWS = 20_000  # of one panel; a browser draws one element each
Panel = dict[str, object]


def panels(numbers: pd.DataFrame, origins: Sequence[Origin]) -> list[Panel]:
    """The panels of a figure; none if it is of no kind that has an interactive version.

    Args:
        numbers: the figure's csv.
        origins: the models of the run.

    Returns:
        Vega-Lite specifications.
    """
    columns = set(numbers.columns)
    if not {"model", "role"} <= columns or not 0 < len(numbers) <= MOST_ROWS:
        return []
    scores = [score for score in SCORES if {f"{score}_median", f"{score}_q1", f"{score}_q3"} <= columns]
    numbers = numbers.assign(role=numbers["role"].astype(str))
    if scores and "step" in columns:
        return [_over_training(numbers, score, origins) for score in scores]
    if scores and "n_params" in columns:
        return [_against_size(numbers, score, origins) for score in scores if _any(numbers, "n_params", f"{score}_median")]
    pairs = {score: (f"{score}_median_published", f"{score}_median_here") for score in SCORES}
    if pairs := {score: pair for score, pair in pairs.items() if {*pair} <= columns}:
        return [_published(numbers, score, origins) for score, pair in pairs.items() if _any(numbers, *pair)]
    scores = [score for score in SCORES if score in columns]
    if scores and {"step", "layer"} <= columns:
        of_role = {role: numbers[numbers["role"] == role] for role in ROLES}
        return [_layers(rows, score, role, origins) for role, rows in of_role.items() for score in scores if _any(rows, score)]
    return []


def _any(numbers: pd.DataFrame, *columns: str) -> bool:
    """Whether a row has a value in each of these columns, so that there is something to draw."""
    return bool(numbers[list(columns)].notna().all(axis=1).any())


def _against_size(numbers: pd.DataFrame, score: str, origins: Sequence[Origin]) -> Panel:
    """Median and quartiles over layers against the number of parameters; models of unknown size are not drawn.

    Open markers: few layers; a dagger: untrained.
    """
    import altair as alt

    kept = numbers.dropna(subset=["n_params", f"{score}_median"])
    told = [name for name in (*_null(score), "n_layers", "verdict") if name in kept]
    kept = kept[["model", "role", "n_params", *(f"{score}_{q}" for q in ("median", "q1", "q3")), *told]]
    axis = alt.Axis(format="~s", tickCount=4, labelExpr="replace(replace(datum.label, 'G', 'B'), 'k', 'K')")  # not SI's units
    x = alt.X("n_params:Q", scale=alt.Scale(type="log", nice=True), axis=axis).title("parameters")
    base = _with_origins(alt.Chart(kept), origins)
    bars = base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(
        x=x, y=_score_axis(f"{score}_q1", SCORES[score]), y2=f"{score}_q3:Q", color=_colour()
    )
    points = base.mark_point(size=75, strokeWidth=1.5, opacity=1).encode(
        x=x,
        y=f"{score}_median:Q",
        **_marker(f"isValid(datum.n_layers) && datum.n_layers < {FEW_LAYERS}"),
        href="href:N",
        tooltip=[*_model_tips(), *_score_tips(score), *([alt.Tooltip("verdict:N")] if "verdict" in told else [])],
    )
    band = alt.Chart(kept).mark_rule(strokeWidth=10, color="var(--sand)", aria=False)
    layers = [_random(band, score, x)] if {*_null(score)} <= {*told} else []
    layers += [_zero(), bars, points]
    if "verdict" in told and (kept["verdict"] == UNTRAINED).any():
        daggers = base.mark_text(text=MARK, dx=9, fontSize=12, aria=False).encode(x=x, y=f"{score}_median:Q", color=_colour())
        layers.append(daggers.transform_filter(f"datum.verdict === '{UNTRAINED}'"))
    chart = alt.layer(*layers)
    if "n_layers" in told and (kept["n_layers"] < FEW_LAYERS).any():
        chart = chart.properties(title=f"open: fewer than {FEW_LAYERS} layers")
    return _finished(chart, f"{SCORES[score]} against the number of parameters, {len(kept)} models")


def _over_training(numbers: pd.DataFrame, score: str, origins: Sequence[Origin]) -> Panel:
    """Median over layers and quartile band against the step; rows without a model are medians over seeds.

    Published trajectories, whose steps are others, are in the drawn figure only.
    """
    import altair as alt

    names = [f"{score}_{q}" for q in ("median", "q1", "q3")]
    kept = numbers[numbers["seed"].astype(str) != "published"] if "seed" in numbers else numbers
    kept = kept.dropna(subset=[names[0]])
    random = [name for name in _null(score) if name in kept]
    kept = kept[["model", "role", "step", *names, *random]].assign(
        line=kept["model"].fillna("median over seeds, " + kept["role"]), several=kept["model"].isna()
    )
    several = bool(kept["several"].any())
    base = _with_origins(alt.Chart(kept), origins)
    x = alt.X("step:Q").title("training step").axis(tickCount=5)
    band_rows = base.transform_filter("datum.several") if several else base
    band = band_rows.mark_area(opacity=0.18).encode(
        x=x, y=_score_axis(names[1], SCORES[score]), y2=f"{names[2]}:Q", color=_colour(), detail="line:N"
    )
    lines = base.mark_line().encode(
        x=x,
        y=f"{names[0]}:Q",
        color=_colour(),
        detail="line:N",
        strokeWidth=alt.when("datum.several").then(alt.value(2.5)).otherwise(alt.value(1 if several else 2)),
    )
    points = base.mark_point(filled=True, size=40, opacity=1).encode(
        x=x,
        y=f"{names[0]}:Q",
        color=_colour(),
        shape=_shape(),
        href="href:N",
        tooltip=[
            alt.Tooltip("line:N", title="line"),
            _tip("step", "step", "d"),
            *_score_tips(score),
            *_model_tips(),
        ],
    )
    layers = [_random_area(kept, score, x)] if len(random) == 2 else []
    layers += [_zero(), band, lines, points]
    return _finished(alt.layer(*layers), f"{SCORES[score]} over training, median over layers")


def _layers(numbers: pd.DataFrame, score: str, role: str, origins: Sequence[Origin]) -> Panel:
    """One line per layer and run, darker with depth; rows without a model are medians over seeds and drawn alone."""
    import altair as alt

    kept = numbers.dropna(subset=[score])
    random = [name for name in _null(score) if name in kept]
    kept = kept[["model", "role", "step", "layer", score, *random]].assign(
        line=kept["model"].fillna("median over seeds"), several=kept["model"].isna()
    )
    several = bool(kept["several"].any())
    deepest = max(1, int(kept["layer"].max()))
    base = _with_origins(alt.Chart(kept), origins).transform_calculate(key="datum.line + ' ' + datum.layer")
    x = alt.X("step:Q").title("training step").axis(tickCount=5)
    depth = alt.Opacity("layer:Q", scale=alt.Scale(domain=[0, deepest], range=[0.3, 1]), legend=None)
    look = {"x": x, "y": _score_axis(score, SCORES[score]), "color": alt.value(ROLES[role]), "opacity": depth}
    lines = base.mark_line().encode(
        **look,
        detail="key:N",
        strokeWidth=alt.when("datum.several").then(alt.value(2.5)).otherwise(alt.value(0.8 if several else 2)),
    )
    points = base.mark_point(filled=True, size=22, shape=SHAPES[role]).encode(
        **look,
        href="href:N",
        tooltip=[
            alt.Tooltip("line:N", title="line"),
            _tip("layer", "layer", "d"),
            _tip("step", "step", "d"),
            _tip(score, SCORES[score]),
            *_model_tips(),
        ],
    )
    title = f"{role}: layers 0 (pale) to {int(kept['layer'].max())}"
    layers = [_random_area(kept, score, x)] if len(random) == 2 else []
    layers += [_zero(), lines, points]
    return _finished(alt.layer(*layers).properties(title=title), f"{SCORES[score]} of each layer, {role}s")


def _published(numbers: pd.DataFrame, score: str, origins: Sequence[Origin]) -> Panel:
    """Published median against the one found here, with the line on which both are the same.

    Open markers: a known defect touches the model; crosses: its weights read the published way.
    """
    import altair as alt
    import pandas as pd

    published, here, way = f"{score}_median_published", f"{score}_median_here", f"{score}_published_way"
    kept = numbers.dropna(subset=[published, here])
    kept = kept[["model", "role", published, here, *(name for name in (way, "defect", "verdict") if name in kept)]]
    values = kept[[name for name in (published, here, way) if name in kept]]
    low, high = values.min().min(), values.max().max()
    scale = alt.Scale(domain=[low - 0.05, high + 0.05], nice=False)
    axes = {
        "x": alt.X(f"{published}:Q", scale=scale).title(f"{SCORES[score]}, published").axis(tickCount=5),
        "y": alt.Y(f"{here}:Q", scale=scale).title(f"{SCORES[score]}, here").axis(tickCount=5),
    }
    same = pd.DataFrame({published: scale.domain, here: scale.domain})
    line = alt.Chart(same).mark_line(strokeWidth=1, opacity=0.5, color="currentColor", aria=False).encode(**axes)
    base = _with_origins(alt.Chart(kept), origins)
    tips = [_tip(published, "published"), _tip(here, "here")]
    tips += [_tip(way, "read the published way")] if way in kept else []
    tips += [alt.Tooltip(f"{name}:N") for name in ("defect", "verdict") if name in kept]
    look = {"href": "href:N", "tooltip": [*_model_tips(), *tips]}
    layers = [line, base.mark_point(size=50, strokeWidth=1.5, opacity=1).encode(**axes, **_marker("datum.defect"), **look)]
    if way in kept and kept[way].notna().any():
        crosses = base.transform_filter(f"isValid(datum.{way})").mark_point(shape=CROSS, size=60, strokeWidth=1.2, opacity=0.6)
        layers.append(crosses.encode(x=axes["x"], y=f"{way}:Q", color=_colour(), **look))
    return _finished(alt.layer(*layers), f"{SCORES[score]}, published against found here, {len(kept)} models")


def _null(score: str) -> tuple[str, str]:
    """Columns with the central 95 % of random layers."""
    return f"{score}_null_low", f"{score}_null_high"


def _random(chart: alt.Chart, score: str, x: alt.X) -> alt.Chart:
    low, high = _null(score)
    return chart.encode(x=x, y=_score_axis(low, SCORES[score]), y2=f"{high}:Q")


def _random_area(kept: pd.DataFrame, score: str, x: alt.X) -> alt.Chart:
    """The widest of the lines' bands, since they lie over each other."""
    import altair as alt

    low, high = _null(score)
    widest = kept.groupby("step", as_index=False).agg({low: "min", high: "max"})
    return _random(alt.Chart(widest).mark_area(color="var(--sand)", aria=False), score, x)


def _with_origins(chart: alt.Chart, origins: Sequence[Origin]) -> alt.Chart:
    """Adds to each row what its model is and where it came from, and the place in the page that says more."""
    import altair as alt
    import pandas as pd

    models = set(chart.data["model"].dropna())
    about = [
        {"model": each.model, **{name: getattr(each, name) for name in ABOUT}, "href": f"#model-{each.model}"}
        for each in origins
        if each.model in models
    ]
    if not about:
        return chart
    table = pd.DataFrame(about).rename(columns={"label": "name"})
    fields = [name for name in table if name != "model"]
    return chart.transform_lookup("model", from_=alt.LookupData(table, "model", fields))


def _model_tips() -> list[alt.Tooltip]:
    import altair as alt

    titles = {
        "name": "model",
        "model": "id",
        "layers": "layers",
        "uri": "source",
        "revision": "revision",
        "status": "status",
    }
    return [alt.Tooltip(f"{name}:N", title=title) for name, title in titles.items()]


def _tip(field: str, title: str, form: str = ".3f") -> alt.Tooltip:
    import altair as alt

    return alt.Tooltip(f"{field}:Q", title=title, format=form)


def _score_tips(score: str) -> list[alt.Tooltip]:
    titles = {"median": "median over layers", "q1": "1st quartile", "q3": "3rd quartile"}
    return [_tip(f"{score}_{name}", title) for name, title in titles.items()]


def _score_axis(field: str, title: str) -> alt.Y:
    import altair as alt

    return alt.Y(f"{field}:Q", scale=alt.Scale(domain=[-1, 1])).title(title).axis(tickCount=5)


def _colour() -> alt.Color:
    import altair as alt

    return alt.Color("role:N", scale=_role_scale(ROLES), legend=_role_legend())


def _shape() -> alt.Shape:
    import altair as alt

    return alt.Shape("role:N", scale=_role_scale(SHAPES), legend=_role_legend())


def _role_scale(looks: Mapping[str, str]) -> alt.Scale:
    import altair as alt

    return alt.Scale(domain=list(looks), range=list(looks.values()))


def _role_legend() -> alt.Legend:
    """The same for each channel, so that they are one legend."""
    import altair as alt

    return alt.Legend(title=None, orient="top")


def _marker(is_open: str) -> dict[str, object]:
    """Channels of a marker in its role's colour and shape, which is open where the expression holds."""
    import altair as alt

    paper = alt.when(is_open).then(alt.value("var(--paper)"))
    filled = paper.otherwise(alt.Fill("role:N", scale=_role_scale(ROLES), legend=_role_legend()))
    return {"color": _colour(), "fill": filled, "shape": _shape()}


def _zero() -> alt.Chart:
    import altair as alt
    import pandas as pd

    rule = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(strokeWidth=1, opacity=0.5, color="currentColor", aria=False)
    return rule.encode(y="zero:Q")


def _finished(chart: alt.LayerChart, description: str) -> Panel:
    """Size and look; text and lines are of the page's own colour."""
    import altair as alt

    font = {"labelFont": FONT, "titleFont": FONT, "labelColor": "currentColor", "titleColor": "currentColor"}
    axis = {"gridColor": "currentColor", "gridOpacity": 0.12, "domainColor": "currentColor", "tickColor": "currentColor"}
    chart = chart.properties(width="container", height=HEIGHT, description=description)
    chart = chart.configure(
        background="transparent",
        font=FONT,
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(**font, **axis, labelFontSize=12, titleFontSize=13, titleFontWeight="normal", labelFlush=False),
        legend=alt.LegendConfig(**font, labelFontSize=12, symbolOpacity=1),
        title=alt.TitleConfig(color="currentColor", font=FONT, fontSize=13, fontWeight="normal", anchor="start"),
    )
    return chart.to_dict()
