"""Scores of single attention heads: their distribution in each group of models, and every head of two chosen models."""

from __future__ import annotations

import logging

import pandas as pd
from matplotlib.figure import Figure

from qkgeom import null
from qkgeom.figures import _null_band
from qkgeom.figures._dynamics_axes import PANELS
from qkgeom.figures._head_distribution import draw_distribution, draw_legend
from qkgeom.figures._head_map import draw_map
from qkgeom.figures._style import WIDTH, say
from qkgeom.rendering import ROLES, Inputs

logger = logging.getLogger(__name__)
PAPER = "none"
CAPTION = (
    "Symmetry and directionality (excess) of the query-key matrices of single attention heads. Top: how the heads of all "
    "models of a group are distributed, encoders to the left and decoders to the right, every head counting once; the "
    "widest bin of each half is drawn equally wide; bar and point: quartiles and median; sand: central 95 % of one head of "
    "random weights, in the median over the heads' shapes. Below them the numbers of heads, "
    "of encoders over decoders. Maps: every head of one encoder and of one decoder, layers from top to bottom, layers and "
    "heads counted from 0; grey: no such head, or no score. The colour range ends at the 99th percentile of the absolute "
    "values shown. Of a model with several snapshots the last is shown. Symmetry is 1 for a symmetric and -1 for a "
    "skew-symmetric matrix; negative directionality means that columns dominate."
)
GROUP = "language,encoder_decoder,vision,audio"
NEEDS = ("summary", "scores")
USES = ("examples",)
KNOB = "heads"
TOP, MAP = 2.8, 1.9  # inches
DESCRIPTION = ["group", "role", "model", "label"]


def numbers(inputs: Inputs) -> pd.DataFrame:
    """One row per head of each model's last snapshot; a model without scored heads keeps one, without layer and head.

    `map` tells the models of the maps: the preset's examples or, where their heads are not scored, the largest model of
    the role in the first group that has one.
    """
    described = [*DESCRIPTION, "n_params", "snapshot"]
    models = pd.concat([inputs.models(group, described) for group in GROUP.split(",")], ignore_index=True)
    heads = inputs.read("scores", ["model", "snapshot", "layer", "head", *null.SIZES, *PANELS])
    heads = _null_band.with_bands(heads[heads["head"] != "all"], PANELS)
    table = models.merge(heads, on=["model", "snapshot"], how="left")
    examples = {role: folder.name for role, (folder, _) in inputs.examples.items()}
    chosen = [_chosen(table[(table["role"] == role) & table["layer"].notna()], role, examples.get(role)) for role in ROLES]
    return table.assign(map=table["model"].isin(chosen))[
        [*DESCRIPTION, "map", "layer", "head", *PANELS, *_null_band.columns(PANELS)]
    ]


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws the rows of `numbers`: distributions, then a row of maps per role."""
    heads = numbers[numbers["layer"].notna()]
    maps = [rows for role in ROLES if len(rows := heads[heads["map"] & (heads["role"] == role)])]
    heights = [TOP, MAP * len(maps)] if maps else [TOP]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    top, *below = figure.subfigures(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    for axes, score in zip(top.subplots(1, 2), PANELS, strict=True):
        draw_distribution(axes, heads, score)
        if heads.empty:
            say(axes, "no head of these models was scored:\nset `heads: true`" if len(numbers) else "no scored model")
    if maps:
        draw_legend(top, numbers)
        for row, rows in zip(below[0].subplots(len(maps), 2, squeeze=False), maps, strict=True):
            for axes, score in zip(row, PANELS, strict=True):
                draw_map(axes, rows, score)
            first = rows.iloc[0]
            row[0].set_title(f"{first['role']}: {first['label']}", loc="left")
    return figure


def _chosen(heads: pd.DataFrame, role: str, example: str | None) -> str | None:
    """The model whose heads are mapped, among those of a role."""
    if (heads["model"] == example).any():
        return example
    first = heads[heads["group"] == heads["group"].iloc[0]] if len(heads) else heads
    chosen = first["model"].iloc[-1] if len(first) else None  # models come by size
    if example:
        logger.warning("%s has no scored heads as %s in these tables, so that %s is mapped", example, role, chosen or "none")
    return chosen
