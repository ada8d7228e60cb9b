"""The paper's schematic of a weight update, from real numbers: rank-1 terms of one batch, their sum, its parts and norms."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkgeom.figures._style import COLOURS, MAPS, NEGATIVE, WIDTH, say
from qkgeom.measured_updates import PLAIN, measured_runs
from qkgeom.rendering import ROLES, Inputs

PAPER = "Fig. 1"
CAPTION = (
    "The implicit update of a query-key matrix, from one training batch of an encoder (top) and of a decoder (bottom), at "
    "the middle one of the measured steps, in the middle layer. Left: the rank-1 terms with the largest gradient at their "
    "attention logit, each an outer product of two input rows: that of the token at the query position (before the arrow), "
    "which grows rows, and that of the token at the key position (after it), which grows columns. Then the sum of all terms "
    "of the batch, its symmetric and its skew-symmetric part, each to its own scale (99th percentile); the first 24 rows "
    "and columns are shown. Right: the norms of all rows (dashed) and columns of the sum, largest first, over their mean."
)
GROUP = "training, controls"
NEEDS = ("runs", "updates")
TITLES = {"sum": "sum of {terms:,.0f}", "symmetric": "symmetric", "skew": "skew"}
COLUMNS = ["model", "step", "layer", "panel", "label", "row", "col", "value"]


def numbers(inputs: Inputs) -> pd.DataFrame:
    """The terms of the first measured run of each role: `role`, then `COLUMNS` (`qkgeom.theory.tables.term_rows`)."""
    runs = measured_runs(inputs)
    terms = inputs.measured("terms", COLUMNS).astype({"row": "Int64", "col": "Int64"})
    runs = runs[runs["objective"].isin(PLAIN) & runs["model"].isin(terms["model"])]
    first = runs.drop_duplicates("role").set_index("model")["role"]
    shown = terms[terms["model"].isin(first.index)]
    return shown.assign(role=shown["model"].map(first))[["role", *COLUMNS]].reset_index(drop=True)


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws a row per role: terms, sum, parts, norms."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    parts = figure.subfigures(len(ROLES), 1)
    for part, role in zip(parts, ROLES, strict=True):
        rows = numbers[numbers["role"] == role]
        if rows.empty:
            axes = part.subplots()
            axes.axis("off")
            say(axes, f"no {role} with measured updates")
        else:
            _draw_role(part, rows, role)
    return figure


def _draw_role(part: Figure, rows: pd.DataFrame, role: str) -> None:
    told = rows[rows["panel"] == "told"].set_index("label")["value"]
    names = [name for name in rows["panel"].unique() if name != "told" and not name.endswith("norms")]
    grid = part.subplots(1, len(names) + 1, width_ratios=[*(1 for _ in names), 1.25])
    for axes, name in zip(grid, names, strict=False):
        panel = rows[rows["panel"] == name]
        _draw_matrix(axes, panel, role)
        label = panel["label"].iloc[0]
        title = TITLES[name].format(**told) if name in TITLES else label.replace(" ← ", "\u2009←\u2009").replace("$", r"\$")
        axes.set_title(title, fontsize=7, pad=3)
    for axes, sign in zip(grid[: len(names) - 1], ["+"] * (len(names) - 4) + ["… =", "=", "+"], strict=True):
        axes.text(1.22, 0.5, sign, transform=axes.transAxes, ha="center", va="center", fontsize=7)
    first = rows.iloc[0]
    grid[0].set_ylabel(f"{role}\nstep {first['step']}, layer {first['layer']}", fontsize=7, color=COLOURS[role])
    grid[len(names) - 2].set_xlabel(f"symmetry {told['symmetry']:.2f}".replace("-", "−"), fontsize=7)
    _draw_norms(grid[-1], rows, role, told["directionality_excess"])


def _draw_matrix(axes: Axes, panel: pd.DataFrame, role: str) -> None:
    values = panel.pivot(index="row", columns="col", values="value").to_numpy(float)
    end = np.percentile(np.abs(values), 99) or 1.0
    axes.imshow(values, cmap=MAPS[role], vmin=-end, vmax=end, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[["top", "right"]].set_visible(True)


def _draw_norms(axes: Axes, rows: pd.DataFrame, role: str, excess: float) -> None:
    for panel, colour, style, height in (("row norms", NEGATIVE, "--", 0.98), ("column norms", COLOURS[role], "-", 0.82)):
        norms = np.sort(rows.loc[rows["panel"] == panel, "value"].to_numpy(float))[::-1]
        axes.plot(norms / (norms.mean() or 1.0), style, color=colour, linewidth=1.0)
        name = panel.removesuffix(" norms") + "s"
        axes.text(1, height, name, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=colour)
    axes.set(xticks=[], ylim=(0, None))
    axes.tick_params(labelsize=7, pad=1)
    axes.set_title("norms / mean", fontsize=7, pad=3)
    axes.set_xlabel(f"directionality\n{excess:.2f}".replace("-", "−"), fontsize=7)
