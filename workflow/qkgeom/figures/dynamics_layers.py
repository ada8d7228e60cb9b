"""Symmetry and directionality of each layer over training, encoder and decoder."""

from __future__ import annotations

import pandas as pd

from qkgeom.figures._dynamics_layers import draw, numbers_of
from qkgeom.rendering import Inputs

__all__ = ["draw", "numbers"]

PAPER = "Fig. 3c-f"
CAPTION = (
    "Symmetry and directionality (excess) of the query-key matrix of each layer over training, encoder (masked, top) and "
    "decoder (autoregressive, bottom) of the same size, corpus and default initialisation; darker is deeper, layers "
    "counted from 0. With several seeds, a line is the median over seeds and a thin line is one seed. Symmetry is 1 for a "
    "symmetric and -1 for a skew-symmetric matrix; negative directionality means that columns dominate. The axis counts "
    "optimiser steps, where the paper's says epochs. The embedded corpora reference, docstrings and descriptions stand "
    "for the paper's Wikipedia, Red Pajama and Jigsaw, and 2, 4 and 6 layers for its 4, 12 and 24. "
    "Sand: central 95 % of one layer of random weights of this shape; "
    "where it reaches from -1 to 1, in narrow models, no directionality of one layer is evidence."
)
GROUP = "training"
NEEDS = ("scores", "runs")


def numbers(inputs: Inputs) -> pd.DataFrame:
    """Both scores, one row per run, step and layer, then their medians over seeds."""
    return numbers_of(inputs)
