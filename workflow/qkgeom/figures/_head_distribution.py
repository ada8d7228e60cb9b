"""How the scores of single heads are distributed: histograms back to back, encoders to the left, decoders to the right."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.patches import Patch

from qkgeom.figures import _null_band
from qkgeom.figures._dynamics_axes import label_score
from qkgeom.figures._style import COLOURS, HINT
from qkgeom.rendering import ROLES, short_number

SIDES = {"encoder": -1, "decoder": 1}
NAMES = {"encoder_decoder": "encoder-\ndecoder"}
BINS = np.linspace(-1, 1, 61)
HALF = 0.4  # width of the widest bin; groups are at distance 1
ASIDE = 0.06  # of the quartiles, from the middle
FILL = {"alpha": 0.45, "linewidth": 0}


def draw_distribution(axes: Axes, heads: pd.DataFrame, score: str) -> None:
    """Draws one pair of histograms per group.

    Args:
        axes: where.
        heads: one row per head: group, role, the score and its null band, which may be missing.
        score: which column.
    """
    label_score(axes, score)
    axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
    groups = list(heads["group"].unique())
    names = [NAMES.get(group, group) for group in groups]
    lines = max((name.count("\n") for name in names), default=0)
    labels = []
    for place, (group, name) in enumerate(zip(groups, names, strict=True)):
        counts = []
        for role in ROLES:
            half = heads[(heads["group"] == group) & (heads["role"] == role) & heads[score].notna()]
            values = half[score].to_numpy(float)
            counts.append(short_number(len(values)) if values.size else "–")
            if values.size:
                band = half[_null_band.columns([score])].median()
                axes.fill_between([place, place + SIDES[role] * HALF], *band, zorder=-1, **_null_band.LOOK)
                _draw_half(axes, place, values, role)
        labels.append("\n".join([name + "\n" * (lines - name.count("\n")), *counts]))
    axes.set_xticks(range(len(groups)), labels)
    if groups:
        axes.set_xlabel("heads of encoders, of decoders", **HINT)
    axes.set_xlim(-0.55, max(len(groups), 1) - 0.45)
    axes.tick_params(axis="x", length=0)


def draw_legend(figure: SubFigure, numbers: pd.DataFrame) -> None:
    """The colours of the roles, above the figure, and how many models have no scored head."""
    roles = [role for role in ROLES if role in set(numbers["role"])]
    without = numbers.loc[numbers["layer"].isna(), "model"].nunique()
    title = f"{without} of {numbers['model'].nunique()} models have no scored head" if without else None
    entries = {role: Patch(color=COLOURS[role], **FILL) for role in roles} | _null_band.legend_entry("heads")
    look = {"loc": "outside upper center", "ncols": len(entries), "frameon": False, "title_fontsize": 7}
    figure.legend(entries.values(), entries.keys(), title=title, **look)


def _draw_half(axes: Axes, place: int, values: np.ndarray, role: str) -> None:
    counts, _ = np.histogram(values, BINS)
    widths = place + SIDES[role] * HALF * counts / counts.max()
    axes.stairs(widths, BINS, baseline=place, orientation="horizontal", fill=True, color=COLOURS[role], **FILL)
    first, median, third = np.percentile(values, (25, 50, 75))
    x = place + SIDES[role] * ASIDE
    axes.plot([x, x], [first, third], color=COLOURS[role], linewidth=2, solid_capstyle="butt")
    axes.plot(x, median, marker="o", markersize=4, color=COLOURS[role], markeredgecolor="white", markeredgewidth=0.6)
