"""Scores over training of published series of checkpoints."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from qkgeom.figures import _null_band
from qkgeom.figures._dynamics import BAND
from qkgeom.figures._dynamics_axes import PANELS, label_score, scale_steps
from qkgeom.figures._dynamics_layers import MAPS
from qkgeom.figures._style import COLOURS, MARKERS, WIDTH, say
from qkgeom.rendering import ROLES, Inputs
from qkgeom.trajectories import with_steps

PAPER = "as Fig. 3a, b, at real scale"
CAPTION = (
    "Symmetry and directionality (excess) of the query-key matrices over training, in checkpoints that others published "
    "while they trained their models: encoders above, decoders below. Line and markers: median over layers; band: from the "
    "first to the third quartile. Larger models are darker; models of one size have one colour and differ in their dashes. "
    "The axis counts optimiser steps, tenfold steps at the same distance; a step is not the same number of tokens in every "
    "series. Symmetry is 1 for a symmetric and -1 for a skew-symmetric matrix; negative directionality means that columns "
    "dominate. Sand: central 95 % of one layer of random weights of these shapes."
)
GROUP = "dynamics_public"
NEEDS = ("summary",)
STATISTICS = [f"{score}_{statistic}" for score in PANELS for statistic in ("median", "q1", "q3")]
BANDS = _null_band.columns(PANELS)
LINE = {"linewidth": 1.0, "markersize": 1.8}
DASHES = ("-", "--", ":", "-.")


def numbers(inputs: Inputs) -> pd.DataFrame:
    """Median and quartiles over layers of both scores, one row per series and step.

    Raises:
        QkgeomError: the summary cannot be read, or a snapshot is not a step.
    """
    described = ["model", "label", "role", "n_params", "n_layers"]
    rows = with_steps(inputs.snapshots(GROUP, [*described, "snapshot", *STATISTICS, *BANDS]), inputs.summary)
    return rows[[*described, "step", *STATISTICS, *BANDS]]


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws the rows of `numbers`: a row of panels per role, a line and a band per series."""
    roles = [role for role in ROLES if role in set(numbers["role"])] or ROLES[:1]
    figure = Figure(figsize=(WIDTH, 2.75 * len(roles)), layout="constrained")
    for part, role in zip(figure.subfigures(len(roles), squeeze=False)[:, 0], roles, strict=True):
        series = [table for _, table in numbers[numbers["role"] == role].groupby("model", sort=False)]
        looks = _looks(series, role)
        for axes, score in zip(part.subplots(1, 2), PANELS, strict=True):
            label_score(axes, score)
            _null_band.draw_band(axes, numbers[numbers["role"] == role], score)
            for table, look in zip(series, looks, strict=True):
                _draw_series(axes, table, score, look, len(series))
            if series:
                scale_steps(axes, numbers["step"], powers=True)
            else:
                axes.set(xticks=[])
                say(axes, "no scored model")
        if series:
            _draw_legend(part, [table["label"].iloc[0] for table in series], looks, role)
    return figure


def _looks(series: list[pd.DataFrame], role: str) -> list[dict[str, object]]:
    """Colour and dashes of each series, which come by size."""
    sizes = pd.Series([table["n_params"].iloc[0] for table in series], dtype="Int64").fillna(0)
    n = sizes.nunique()
    shades = MAPS[role]([0.7] if n == 1 else np.linspace(0.15, 1, n))
    dashes = {size: cycle(DASHES) for size in sizes}
    colours = dict(zip(sorted(set(sizes)), shades, strict=True))
    return [{"color": colours[size], "linestyle": next(dashes[size]), "marker": MARKERS[role], **LINE} for size in sizes]


def _draw_series(axes: Axes, rows: pd.DataFrame, score: str, look: dict[str, object], n_series: int) -> None:
    quartiles = rows[[f"{score}_q1", f"{score}_q3"]].to_numpy(float)
    band = BAND | {"alpha": BAND["alpha"] / n_series**0.5}  # so that many bands leave the lines to be seen
    axes.fill_between(rows["step"].astype(float), *quartiles.T, color=look["color"], **band)
    axes.plot(rows["step"].astype(float), rows[f"{score}_median"], **look)


def _draw_legend(part: SubFigure, labels: list[str], looks: list[dict[str, object]], role: str) -> None:
    """The names of a role's series, above its panels."""
    lines = [Line2D([], [], **look) for look in looks]
    title = {"title": role, "title_fontsize": 8, "handlelength": 3.0, "columnspacing": 1.5, "frameon": False}
    legend = part.legend(lines, labels, loc="outside upper center", ncols=min(4, len(labels)), **title)
    legend.get_title().set_color(COLOURS[role])
