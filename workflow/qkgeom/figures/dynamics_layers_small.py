"""Symmetry and directionality of each layer over training of the shallow models."""

from __future__ import annotations

import pandas as pd

from qkgeom.figures._dynamics_layers import draw, numbers_of
from qkgeom.rendering import Inputs

__all__ = ["draw", "numbers"]

PAPER = "supplement, as Fig. 3c-f"
CAPTION = (
    "Symmetry and directionality (excess) of each layer over training, as in dynamics_layers, in shallower models: 2 "
    "layers, standing for the paper's 4; darker is deeper, a thin line is one seed."
)
GROUP = "training"
NEEDS = ("scores", "runs")


def numbers(inputs: Inputs) -> pd.DataFrame:
    """Both scores, one row per run, step and layer, then their medians over seeds."""
    return numbers_of(inputs, size="small")
