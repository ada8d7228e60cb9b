"""Scores over training, encoder and decoder in one panel per score: the drawing of Fig. 3a, b and its kin.

With the user's copy of the authors' trajectories these are drawn too, on the share of their own training.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from qkgeom.figures import _null_band
from qkgeom.figures._dynamics_axes import (
    ALL,
    PANELS,
    label_score,
    scale_steps,
    setting_of,
    shown_runs,
    state_of,
    with_medians,
)
from qkgeom.figures._style import COLOURS, MARKERS, WIDTH, say
from qkgeom.published_trajectories import read_trajectories
from qkgeom.rendering import ROLES, Inputs, short_number
from qkgeom.trajectories import CORPORA, DEPTHS, layer_scores, over_layers

BAND = {"alpha": 0.18, "linewidth": 0}
THIN = {"linewidth": 0.6, "alpha": 0.7}
BOLD = {"linewidth": 1.4, "markersize": 2.4}
PUBLISHED = "published"  # in the column `seed`
DASHED = {"linewidth": 0.7, "linestyle": (0, (3, 2)), "alpha": 0.9}
FEW_STEPS = 25  # up to so many snapshots are marked


def numbers_of(inputs: Inputs, corpus: str = "reference", size: str = "middle") -> pd.DataFrame:
    """Median and quartiles over layers, one row per run and step, then those of all seeds together, then the published.

    Args:
        inputs: scores, runs, and published trajectories if there are any.
        corpus: key of `trajectories.CORPORA`.
        size: key of `trajectories.DEPTHS`.
    """
    runs = shown_runs(inputs, corpus, size)
    scores = over_layers(layer_scores(inputs, runs)).merge(_null_band.bands_of(inputs, runs["model"], PANELS), on="model")
    numbers = with_medians(runs, scores, ["step"])
    if inputs.published_trajectories:
        return pd.concat([numbers, _published(inputs, corpus, size, numbers)], ignore_index=True)
    return numbers


def _published(inputs: Inputs, corpus: str, size: str, like: pd.DataFrame) -> pd.DataFrame:
    """The authors' trajectories of the corpus and depth that this figure stands for, as further rows of `like`."""
    theirs, depth = CORPORA[corpus], DEPTHS[size][1]
    layers = read_trajectories(inputs.published_trajectories, theirs, depth)
    rows = over_layers(layers.assign(model=layers["role"])).rename(columns={"model": "role"})
    rows = rows.assign(corpus=theirs, depth=depth, seed=PUBLISHED).reindex(columns=list(like))
    return rows.astype({name: like[name].dtype for name in ("depth", "model", "status", "step", "n_layers")})


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws the rows of `numbers_of`: lines and bands of all seeds together, a thin line per seed, dashed what is published."""
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    published, numbers = numbers[numbers["seed"] == PUBLISHED], numbers[numbers["seed"] != PUBLISHED]
    there = numbers["step"].notna().any()
    for axes, score in zip(figure.subplots(1, 2), PANELS, strict=True):
        label_score(axes, score)
        _null_band.draw_band(axes, numbers, score)
        for role in ROLES:
            _draw_role(axes, numbers[(numbers["role"] == role) & numbers["step"].notna()], score, role)
            if there and len(published):
                rows = published[published["role"] == role]
                steps = rows["step"].astype(float) * _shrunk(published, numbers)
                axes.plot(steps, rows[f"{score}_median"], color=COLOURS[role], **DASHED)
        if there:
            scale_steps(axes, numbers["step"])
        else:
            axes.set(xticks=[])
            say(axes, "\n".join(_states(numbers)) if len(numbers) else state_of(numbers, ROLES[0]))
    if there:
        _draw_legend(figure, numbers, published)
    return figure


def _shrunk(published: pd.DataFrame, numbers: pd.DataFrame) -> float:
    """What a published step is multiplied by: both trainings end at the same place."""
    return float(numbers["step"].max()) / float(published["step"].max())


def _draw_role(axes: Axes, rows: pd.DataFrame, score: str, role: str) -> None:
    middle, single = rows[rows["seed"] == ALL], rows[rows["seed"] != ALL]
    if single["seed"].nunique() > 1:
        for _, seed in single.groupby("seed"):
            axes.plot(seed["step"], seed[f"{score}_median"], color=COLOURS[role], **THIN)
    quartiles = middle[[f"{score}_q1", f"{score}_q3"]].astype(float)
    axes.fill_between(middle["step"].astype(float), *quartiles.T.to_numpy(), color=COLOURS[role], **BAND)
    marker = MARKERS[role] if len(middle) <= FEW_STEPS else None
    axes.plot(middle["step"], middle[f"{score}_median"], color=COLOURS[role], marker=marker, **BOLD)


def _draw_legend(figure: Figure, numbers: pd.DataFrame, published: pd.DataFrame) -> None:
    drawn = numbers[numbers["step"].notna()]
    entries = {
        role: Line2D([], [], color=COLOURS[role], marker=MARKERS[role], **BOLD) for role in ROLES if role in set(drawn["role"])
    }
    several = drawn["seed"].nunique() > 2  # those of all seeds together are one of them
    entries["quartiles over layers" + (", widest of the seeds" if several else "")] = Patch(color="0.4", **BAND)
    if several:
        entries["single seeds"] = Line2D([], [], color="0.4", **THIN)
    entries |= _null_band.legend_entry()
    theirs = ""
    if len(published):
        entries["published"] = Line2D([], [], color="0.4", **DASHED)
        theirs = f"published: {setting_of(published)}"
        if _shrunk(published, numbers) != 1:
            theirs += f", its {short_number(published['step'].max())} steps scaled to this axis"
    title = "\n".join(filter(None, [setting_of(numbers), "; ".join(_states(numbers)), theirs]))
    n_columns = len(entries) if len(entries) < 5 else 3  # five do not fit side by side
    look = {"loc": "outside upper center", "ncols": n_columns, "frameon": False, "title_fontsize": 8, "columnspacing": 1.5}
    legend = figure.legend(entries.values(), entries.keys(), title=title, handlelength=1.8, **look)
    legend.get_title().set_multialignment("center")


def _states(numbers: pd.DataFrame) -> list[str]:
    return [f"{role}: {state}" for role in ROLES if (state := state_of(numbers, role))]
