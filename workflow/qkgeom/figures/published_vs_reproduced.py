"""Published medians of both scores against those found here, model by model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from qkgeom.comparison import WITHIN, compared
from qkgeom.figures._names import NEAR, SIZE, find_places, write_names
from qkgeom.figures._style import COLOURS, MARKERS, WIDTH, say
from qkgeom.published_values import SCORES
from qkgeom.rendering import ROLES, Inputs

PAPER = "Tables S1, S2"
CAPTION = (
    "Published median over layers of symmetry and of directionality (excess) against the median found here, a point per "
    "model of the paper that this run scored; on the line both are the same. Models off the line by more than the rounding "
    "of two decimals are named, by numbers where they are many. Open markers: models that a known defect of the published "
    "extraction touches; crosses: the same weights read as the published code read them. Models of the paper that are not "
    "part of this run are listed in the table published_vs_reproduced, with a verdict each."
)
GROUP = "language, encoder_decoder, vision, audio"
NEEDS = ("summary", "published")
USES = ("scores", "published_way")
TITLES = {"symmetry": "symmetry", "directionality_excess": "directionality (excess)"}
FEW_NAMES = 10  # up to so many are named beside their points; more are numbered
MARK = {"linestyle": "none", "markersize": 4}
CROSS = {"marker": "x", "linestyle": "none", "markersize": 3.5, "markeredgewidth": 0.8, "alpha": 0.6}
LEGEND = {"loc": "outside upper center", "ncols": 4, "frameon": False, "columnspacing": 1.5, "title_fontsize": 8}
LEADER = {"color": "0.6", "linewidth": 0.4, "zorder": 0}


def numbers(inputs: Inputs) -> pd.DataFrame:
    """One row per model of the paper that has published scores: medians, role, defect, verdict."""
    table = compared(inputs)
    columns = [f"{score}_{what}" for score in SCORES for what in ("median_published", "median_here", "published_way")]
    published = table["symmetry_median_published"].notna()
    return table.loc[published, ["model", "role", *columns, "defect", "verdict"]].reset_index(drop=True)


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws the rows of `numbers`."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    here = numbers[numbers["symmetry_median_here"].notna()].reset_index(drop=True)
    panels = dict(zip(SCORES, figure.subplots(1, 2), strict=True))
    for score, axes in panels.items():
        _draw_panel(axes, here, score)
    _draw_legend(figure, here, len(numbers))
    _name_models(figure, panels, here)
    return figure


def _draw_panel(axes: Axes, here: pd.DataFrame, score: str) -> None:
    axes.set(xlabel=f"{TITLES[score]}, published", ylabel=f"{TITLES[score]}, here", aspect="equal")
    values = here[[f"{score}_{what}" for what in ("median_published", "median_here", "published_way")]]
    low, high = (float(values.min().min()), float(values.max().max())) if len(here) else (-1.0, 1.0)
    space = max(0.08 * (high - low), 0.05) if len(here) else 0.05
    axes.set(xlim=(low - space, high + space), ylim=(low - space, high + space))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    if here.empty:
        say(axes, "no model of the paper\nis part of this run")
        return
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.6, zorder=0)
    for role in ROLES:
        for touched in (False, True):
            rows = here[(here["role"] == role) & (here["defect"].fillna("").ne("") == touched)]
            look = {"color": COLOURS[role], "mfc": "white" if touched else COLOURS[role], "mew": 0.8 if touched else 0}
            axes.plot(rows[f"{score}_median_published"], rows[f"{score}_median_here"], marker=MARKERS[role], **look, **MARK)
            axes.plot(rows[f"{score}_median_published"], rows[f"{score}_published_way"], color=COLOURS[role], **CROSS)


def _off_line(here: pd.DataFrame, score: str) -> pd.Series:
    return (here[f"{score}_median_here"] - here[f"{score}_median_published"]).abs() > WITHIN


def _draw_legend(figure: Figure, here: pd.DataFrame, n_published: int) -> None:
    title = f"{len(here)} of the paper's {n_published} models with published scores are part of this run"
    entries = {
        role: Line2D([], [], marker=MARKERS[role], color=COLOURS[role], mew=0, **MARK)
        for role in ROLES
        if role in set(here["role"])
    }
    if here["defect"].fillna("").ne("").any():
        entries["known defect"] = Line2D([], [], marker="o", color="0.4", mfc="white", mew=0.8, **MARK)
    if here[f"{SCORES[0]}_published_way"].notna().any():
        entries["read the published way"] = Line2D([], [], color="0.4", **CROSS)
    figure.legend(entries.values(), entries.keys(), title=title, **LEGEND)


def _name_models(figure: Figure, panels: dict[str, Axes], here: pd.DataFrame) -> None:
    """Names of the models off a panel's line beside their points; if they are many, numbers with a key below."""
    off = {score: _off_line(here, score).to_numpy(bool) for score in panels}
    named = here[np.logical_or(*off.values())]
    if named.empty:
        return
    texts = named["model"]
    if len(named) > FEW_NAMES:
        texts = pd.Series([str(k) for k in range(1, len(named) + 1)], index=named.index)
        _write_key(figure, [f"{number}  {name}" for number, name in zip(texts, named["model"], strict=True)], named["role"])
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # names have their places in axes that no longer move
    for score, axes in panels.items():
        rows = here[off[score]]
        if len(rows):
            _write_names(axes, list(texts[rows.index]), rows, here, score)


def _write_names(axes: Axes, texts: list[str], rows: pd.DataFrame, here: pd.DataFrame, score: str) -> None:
    """Each name at the nearest free place, with a line to its point where that is not beside it."""
    columns = [f"{score}_median_published", f"{score}_median_here"]
    points, others = rows[columns].to_numpy(float), here.drop(index=rows.index)[columns].to_numpy(float)
    places = find_places(axes, texts, points, points[:, [1, 1]], others)
    if places is None:
        say(axes, "too many names for this panel:\nsee the table")
        return
    write_names(axes, texts, points, places, rows["role"].map(COLOURS))
    for place, point in zip(places, points, strict=True):
        if place.away > NEAR:
            end = (place.offset[0], place.offset[1] + SIZE / 2)
            axes.annotate("", point, end, textcoords="offset points", arrowprops={"arrowstyle": "-", **LEADER})


def _write_key(figure: Figure, key: Sequence[str], roles: pd.Series) -> None:
    """Three columns of text below the panels; the figure grows by their height."""
    look = {"labelcolor": list(roles.map(COLOURS)), "handlelength": 0, "frameon": False, "columnspacing": 1.0}
    columns = max(1, min(3, 100 // max(map(len, key))))
    figure.legend([Line2D([], [], linestyle="none")] * len(key), key, loc="outside lower center", ncols=columns, **look)
    figure.set_figheight(figure.get_figheight() + 0.155 * -(-len(key) // columns))
