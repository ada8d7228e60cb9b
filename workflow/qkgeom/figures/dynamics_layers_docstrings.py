"""Symmetry and directionality of each layer over training on the corpus docstrings."""

from __future__ import annotations

import pandas as pd

from qkgeom.figures._dynamics_layers import draw, numbers_of
from qkgeom.rendering import Inputs

__all__ = ["draw", "numbers"]

PAPER = "supplement, as Fig. 3c-f"
CAPTION = (
    "Symmetry and directionality (excess) of each layer over training, as in dynamics_layers, on another corpus: "
    "docstrings of the pinned Python packages, standing for the paper's Red Pajama; darker is deeper, a thin line is one "
    "seed."
)
GROUP = "training"
NEEDS = ("scores", "runs")


def numbers(inputs: Inputs) -> pd.DataFrame:
    """Both scores, one row per run, step and layer, then their medians over seeds."""
    return numbers_of(inputs, corpus="docstrings")
