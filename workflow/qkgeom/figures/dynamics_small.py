"""Symmetry and directionality over training of the shallow models."""

from __future__ import annotations

import pandas as pd

from qkgeom.figures._dynamics import draw, numbers_of
from qkgeom.rendering import Inputs

__all__ = ["draw", "numbers"]

PAPER = "supplement, as Fig. 3a, b"
CAPTION = (
    "Symmetry and directionality (excess) over training, as in dynamics, in shallower models: 2 layers, standing for the "
    "paper's 4; median and quartiles over layers, a thin line is one seed."
)
GROUP = "training"
NEEDS = ("scores", "runs")
USES = ("published_trajectories",)


def numbers(inputs: Inputs) -> pd.DataFrame:
    """Median and quartiles over layers, one row per run and step, then those of all seeds together."""
    return numbers_of(inputs, size="small")
