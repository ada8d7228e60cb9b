"""A score of every head of one model, layers by heads."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qkgeom.figures._dynamics_axes import PANELS
from qkgeom.figures._style import MAPS

ABSENT = "0.85"  # no such head, or no score


def draw_map(axes: Axes, heads: pd.DataFrame, score: str) -> None:
    """Draws one model.

    Args:
        axes: where.
        heads: one row per head of a model: label, role, layer, head, and the score, which may be missing.
        score: which column.
    """
    first = heads.iloc[0]
    values = np.full((heads["layer"].max() + 1, heads["head"].astype(int).max() + 1), np.nan)
    values[heads["layer"].astype(int), heads["head"].astype(int)] = heads[score].astype(float)
    there = np.abs(values[np.isfinite(values)])
    end = (np.percentile(there, 99) if there.size else 0) or 1.0
    colours = MAPS[first["role"]].with_extremes(bad=ABSENT)
    image = axes.imshow(values, cmap=colours, vmin=-end, vmax=end, interpolation="nearest", aspect="auto")
    bar = axes.figure.colorbar(image, cax=axes.inset_axes([1.03, 0, 0.05, 1]), extend="both", extendfrac=0.03)
    bar.locator = MaxNLocator(4, symmetric=True)
    bar.set_label(PANELS[score][0])
    bar.outline.set_linewidth(0.6)
    axes.set(xlabel="head", ylabel="layer")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.spines[["top", "right"]].set_visible(True)
