"""One line per layer over training, a row per role and a column per score: the drawing of Fig. 3c-f and its kin."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure

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
from qkgeom.figures._style import COLOURS, WIDTH, say
from qkgeom.rendering import ROLES, Inputs
from qkgeom.trajectories import layer_scores

# first layers light, last layers in the role's dark; the lightest is still seen on white
MAPS = {
    role: LinearSegmentedColormap.from_list(f"{role}_layers", ends)
    for role, ends in {"encoder": ["#9ecae8", "#4a76c9", "#000050"], "decoder": ["#e9b3e6", "#b04bb0", "#3d003d"]}.items()
}
THIN = {"linewidth": 0.5, "alpha": 0.5}


def numbers_of(inputs: Inputs, corpus: str = "reference", size: str = "middle") -> pd.DataFrame:
    """Both scores, one row per run, step and layer, then their medians over seeds.

    Args:
        inputs: scores and runs.
        corpus: key of `trajectories.CORPORA`.
        size: key of `trajectories.DEPTHS`.
    """
    runs = shown_runs(inputs, corpus, size)
    scores = layer_scores(inputs, runs).merge(_null_band.bands_of(inputs, runs["model"], PANELS), on="model")
    return with_medians(runs, scores, ["step", "layer"])


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws the rows of `numbers_of`: a line per layer in the median over seeds, and thin ones per seed."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    for row, role in zip(figure.subplots(2, 2), ROLES, strict=True):
        rows = numbers[(numbers["role"] == role) & numbers["step"].notna()]
        state = state_of(numbers, role)
        for axes, score in zip(row, PANELS, strict=True):
            label_score(axes, score)
            axes.set_title(role if rows.empty or not state else f"{role} ({state})", color=COLOURS[role])
            _null_band.draw_band(axes, rows, score)
            _draw_layers(axes, rows, score, role)
            if rows.empty:
                axes.set(xticks=[])
                say(axes, state)
            else:
                scale_steps(axes, rows["step"])
        if not rows.empty:
            _draw_bar(row, rows["layer"].max() + 1, role)
    if len(numbers):
        figure.suptitle(setting_of(numbers), fontsize=8)
    return figure


def _draw_layers(axes: Axes, rows: pd.DataFrame, score: str, role: str) -> None:
    several = rows.loc[rows["seed"] != ALL, "seed"].nunique() > 1
    for (layer, seed), line in rows.groupby(["layer", "seed"]):
        if seed == ALL or several:
            look = {"linewidth": 1.2} if seed == ALL else THIN
            axes.plot(line["step"], line[score], color=_colours(rows["layer"].max() + 1, role)[layer], **look)


def _colours(n_layers: int, role: str) -> np.ndarray:
    return MAPS[role](np.linspace(0, 1, n_layers) if n_layers > 1 else np.ones(1))


def _draw_bar(row: np.ndarray, n_layers: int, role: str) -> None:
    """The colours of the layers, at the right of a row of axes."""
    colours = ScalarMappable(BoundaryNorm(np.arange(n_layers + 1) - 0.5, n_layers), ListedColormap(_colours(n_layers, role)))
    bar = row[0].figure.colorbar(colours, ax=list(row), pad=0.01, aspect=25, ticks=range(0, n_layers, -(-n_layers // 8)))
    bar.set_label("layer")
    bar.outline.set_linewidth(0.6)
    bar.ax.tick_params(length=0)
    bar.ax.minorticks_off()
