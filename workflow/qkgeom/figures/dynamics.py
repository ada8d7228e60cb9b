"""Symmetry and directionality over training, encoder and decoder."""

from __future__ import annotations

import pandas as pd

from qkgeom.figures._dynamics import draw, numbers_of
from qkgeom.rendering import Inputs

__all__ = ["draw", "numbers"]

PAPER = "Fig. 3a, b"
CAPTION = (
    "Symmetry and directionality (excess) of the query-key matrices over training, encoder (masked) and decoder "
    "(autoregressive) of the same size, corpus and default initialisation. Line and markers: median over layers; band: "
    "from the first to the third quartile over layers. With several seeds, the line is the median over seeds, the band "
    "goes from the lowest first to the highest third quartile, and a thin line is the median over layers of one seed. "
    "Symmetry is 1 for a symmetric and -1 for a skew-symmetric matrix; negative directionality means that columns "
    "dominate. The axis counts optimiser steps, where the paper's says epochs. The embedded corpora reference, docstrings "
    "and descriptions stand for the paper's Wikipedia, Red Pajama and Jigsaw, and 2, 4 and 6 layers for its 4, 12 and 24. "
    "Sand: central 95 % of one layer of random weights of this shape; where it reaches from -1 to 1, in narrow models, "
    "no directionality of one layer is evidence. Thin and dashed, where published_trajectories of "
    "config.yaml says where they are: the authors' own medians, drawn on the share of their training steps."
)
GROUP = "training"
NEEDS = ("scores", "runs")
USES = ("published_trajectories",)


def numbers(inputs: Inputs) -> pd.DataFrame:
    """Median and quartiles over layers, one row per run and step, then those of all seeds together."""
    return numbers_of(inputs)
