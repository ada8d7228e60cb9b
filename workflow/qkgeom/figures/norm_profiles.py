"""Norms of the rows and columns of W_qk, largest first, of one encoder layer and of one decoder layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkgeom.figures._example import read_example
from qkgeom.figures._style import COLOURS, NEGATIVE, WIDTH, say
from qkgeom.rendering import ROLES, Inputs, short_number
from qkgeom.scores import layer_factors, outlier_threshold
from qkgeom.scoring import to_torch
from qkgeom.structure import norms_of

PAPER = "none"
CAPTION = (
    "Norms of the rows and of the columns of the query-key matrix of one layer of an encoder (left) and of a decoder "
    "(right), summed over heads, largest first, relative to their mean. Beyond the dotted lines (mean + 2 standard "
    "deviations) a norm is an outlier, which directionality counts: their number is given, and the indices of the three "
    "largest. Layers, rows and columns count from 0."
)
GROUP = "language"
NEEDS = ("examples",)
SIDES = ("rows", "columns")
COLUMNS = ["role", "model", "layer", "side", "rank", "index", "norm", "threshold"]
NAMED = 3


def numbers(inputs: Inputs) -> pd.DataFrame:
    """One row per row and column of M: role, model, layer, side, rank (from 1), index; norm and threshold over their mean."""
    profiles = [_profile(role, *inputs.examples[role]) for role in ROLES if role in inputs.examples]
    found = [profile for profile in profiles if profile is not None]
    return pd.concat(found or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws one panel per role, empty where there is no example of it."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    for axes, role in zip(figure.subplots(1, 2), ROLES, strict=True):
        rows = numbers[numbers["role"] == role]
        if rows["norm"].notna().any():
            _draw_profile(axes, rows, role)
        else:
            axes.set(xticks=[], yticks=[])
            say(axes, f"no {role} with stored weights" if rows.empty else "zero, or not finite")
    return figure


def _profile(role: str, folder: Path, layer: int) -> pd.DataFrame | None:
    example = read_example(folder, layer)
    if example is None:
        return None
    model, W_q, W_k = example
    norms = norms_of(*layer_factors(to_torch(W_q, "cpu"), to_torch(W_k, "cpu")))
    sides = [_sorted(getattr(norms, side), side) for side in SIDES]
    return pd.concat(sides).assign(role=role, model=model, layer=layer)[COLUMNS]


def _sorted(norms: np.ndarray, side: str) -> pd.DataFrame:
    order = np.argsort(-norms, kind="stable")
    mean = norms.mean() or np.nan
    columns = {"rank": np.arange(1, len(norms) + 1), "index": order, "norm": norms[order] / mean}
    return pd.DataFrame({"side": side, **columns, "threshold": outlier_threshold(norms) / mean})


def _draw_profile(axes: Axes, rows: pd.DataFrame, role: str) -> None:
    for side, colour, line in zip(SIDES, (NEGATIVE, COLOURS[role]), ("--", "-"), strict=True):
        norms = rows[rows["side"] == side]
        outliers = norms.loc[norms["norm"] > norms["threshold"], "index"]
        named = ", ".join(map(str, outliers[:NAMED])) + (", …" if len(outliers) > NAMED else "")
        label = f"{side}: {len(outliers)} outlier{'s' * (len(outliers) != 1)}" + (f" ({named})" if named else "")
        axes.plot(norms["rank"], norms["norm"], line, color=colour, linewidth=1.2, label=label)
        axes.axhline(norms["threshold"].iloc[0], color=colour, linewidth=0.8, linestyle=":")
    first = rows.iloc[0]
    axes.set(xscale="log", xlabel="rank", ylabel="norm / mean norm", title=f"{role}: {first['model']}\nlayer {first['layer']}")
    axes.set_ylim(0)
    axes.xaxis.set_major_formatter(lambda rank, _: short_number(rank))
    axes.legend(frameon=False, handlelength=1.8, loc="upper center", bbox_to_anchor=(0.5, -0.22), borderaxespad=0)
