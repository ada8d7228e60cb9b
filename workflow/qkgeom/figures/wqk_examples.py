"""The corner of W_qk of one encoder layer and of one decoder layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qkgeom.figures._example import read_example
from qkgeom.figures._style import MAPS, WIDTH, say
from qkgeom.rendering import ROLES, Inputs
from qkgeom.scores import score_layer
from qkgeom.scoring import to_torch

PAPER = "Fig. 2a"
CAPTION = (
    "The first 50 rows and columns of the query-key matrix of one layer of an encoder (left) and of a decoder (right), "
    "summed over heads; layers count from 0. The colour range ends at the 99th percentile of the absolute values shown; "
    "the symmetry is that of the whole matrix."
)
GROUP = "language"
NEEDS = ("examples",)
SIDE = 50
COLUMNS = ["role", "model", "layer", "symmetry", "row", "col", "value"]


def numbers(inputs: Inputs) -> pd.DataFrame:
    """One row per entry shown: role, model, layer, symmetry of the whole layer, row, col, value."""
    corners = [_corner(role, *inputs.examples[role]) for role in ROLES if role in inputs.examples]
    found = [corner for corner in corners if corner is not None]
    return pd.concat(found or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws one panel per role, empty where there is no example of it."""
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    for axes, role in zip(figure.subplots(1, 2), ROLES, strict=True):
        entries = numbers[numbers["role"] == role]
        if entries.empty:
            axes.set(xticks=[], yticks=[])
            say(axes, f"no {role} with stored weights")
        else:
            _draw_corner(axes, entries, role)
    return figure


def _corner(role: str, folder: Path, layer: int) -> pd.DataFrame | None:
    example = read_example(folder, layer)
    if example is None:
        return None
    model, W_q, W_k = example
    symmetry = score_layer(to_torch(W_q, "cpu"), to_torch(W_k, "cpu"))["all"].symmetry
    A, B = (W[:SIDE].astype(np.float64) for W in (W_q, W_k))
    rows, n_kv_head = len(B), B.shape[1]
    grouped = A.reshape(rows, n_kv_head, -1, A.shape[2]).sum(2)  # the query heads of a group share their key head
    values = np.einsum("ihd,jhd->ij", grouped, B)
    row, col = np.indices(values.shape).reshape(2, -1)
    entries = {"role": role, "model": model, "layer": layer, "symmetry": symmetry}
    return pd.DataFrame({**entries, "row": row, "col": col, "value": values.ravel()})[COLUMNS]


def _draw_corner(axes: Axes, entries: pd.DataFrame, role: str) -> None:
    values = entries.pivot(index="row", columns="col", values="value").to_numpy()
    end = np.percentile(np.abs(values), 99) or 1.0
    image = axes.imshow(values, cmap=MAPS[role], vmin=-end, vmax=end, interpolation="nearest")
    bar = axes.figure.colorbar(image, cax=axes.inset_axes([1.04, 0, 0.05, 1]), extend="both", extendfrac=0.03)
    bar.locator = MaxNLocator(4, symmetric=True)
    bar.set_label("entry of $W_{qk}$")
    bar.outline.set_linewidth(0.6)
    first = entries.iloc[0]
    symmetry = "no score" if pd.isna(first["symmetry"]) else f"symmetry {first['symmetry']:.2f}"
    axes.set_title(f"{role}: {first['model']}\nlayer {first['layer']}, {symmetry}")
    axes.set(xlabel="column", ylabel="row")
    axes.spines[["top", "right"]].set_visible(True)
