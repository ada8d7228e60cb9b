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
    "Norms of the rows and of the columns of the query-key matrix of one layer of an encoder and of one of a decoder, "
    "summed over heads, largest first, relative to their mean. Beyond the dotted lines (mean + 2 standard "
    "deviations) a norm is an outlier, which directionality counts: their number is given, and the indices of the three "
    "largest. Layers, rows and columns count from 0."
)
GROUP = "language"
NEEDS = ("examples",)
USES = ("summary",)
SIDES = ("rows", "columns")
COLUMNS = ["role", "model", "label", "layer", "side", "rank", "index", "norm_over_mean", "threshold_over_mean"]
NAMED = 3


def numbers(inputs: Inputs) -> pd.DataFrame:
    """One row per row and column of M, rank from 1; an example without weights keeps one, without side and what follows.

    The label is that of the summary or, without one, the model's id.
    """
    labels = {}
    if inputs.summary:
        labels = inputs.read("summary", ["model", "label"]).dropna().drop_duplicates("model").set_index("model")["label"]
    profiles = [_profile(role, *inputs.examples[role]) for role in ROLES if role in inputs.examples]
    table = pd.concat(profiles, ignore_index=True)
    return table.assign(label=[labels.get(model, model) for model in table["model"]])[COLUMNS]


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws one panel per example."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    roles = numbers["role"].unique()
    for axes, role in zip(figure.subplots(1, len(roles), squeeze=False)[0], roles, strict=True):
        rows = numbers[numbers["role"] == role]
        axes.set_title("{role}: {label}\nlayer {layer}".format(**rows.iloc[0]))
        if rows["norm_over_mean"].notna().any():
            _draw_profile(axes, rows, role)
        else:
            axes.set(xticks=[], yticks=[])
            say(axes, "no stored weights" if rows["side"].isna().all() else "zero, or not finite")
    return figure


def _profile(role: str, folder: Path, layer: int) -> pd.DataFrame:
    example = read_example(folder, layer)
    if example is None:
        return pd.DataFrame([{"role": role, "model": folder.name, "layer": layer}])
    model, W_q, W_k = example
    norms = norms_of(*layer_factors(to_torch(W_q, "cpu"), to_torch(W_k, "cpu")))
    sides = [_sorted(getattr(norms, side), side) for side in SIDES]
    return pd.concat(sides).assign(role=role, model=model, layer=layer)


def _sorted(norms: np.ndarray, side: str) -> pd.DataFrame:
    order = np.argsort(-norms, kind="stable")
    mean = norms.mean() or np.nan
    columns = {
        "rank": pd.array(np.arange(1, len(norms) + 1), "Int64"),
        "index": pd.array(order, "Int64"),
        "norm_over_mean": norms[order] / mean,
    }
    return pd.DataFrame({"side": side, **columns, "threshold_over_mean": outlier_threshold(norms) / mean})


def _draw_profile(axes: Axes, rows: pd.DataFrame, role: str) -> None:
    for side, colour, line in zip(SIDES, (NEGATIVE, COLOURS[role]), ("--", "-"), strict=True):
        norms = rows[rows["side"] == side]
        outliers = norms.loc[norms["norm_over_mean"] > norms["threshold_over_mean"], "index"]
        named = ", ".join(map(str, outliers[:NAMED])) + (", …" if len(outliers) > NAMED else "")
        label = f"{side}: {len(outliers)} outlier{'s' * (len(outliers) != 1)}" + (f" ({named})" if named else "")
        axes.plot(norms["rank"], norms["norm_over_mean"], line, color=colour, linewidth=1.2, label=label)
        axes.axhline(norms["threshold_over_mean"].iloc[0], color=colour, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlabel="rank", ylabel="norm / mean norm")
    axes.set_ylim(0)
    axes.xaxis.set_major_formatter(lambda rank, _: short_number(rank))
    axes.legend(frameon=False, handlelength=1.8, loc="upper center", bbox_to_anchor=(0.5, -0.22), borderaxespad=0)
