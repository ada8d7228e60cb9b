"""Symmetry and directionality over training on the corpus descriptions."""

from __future__ import annotations

import pandas as pd

from qkgeom.figures._dynamics import draw, numbers_of
from qkgeom.rendering import Inputs

__all__ = ["draw", "numbers"]

PAPER = "supplement, as Fig. 3a, b"
CAPTION = (
    "Symmetry and directionality (excess) over training, as in dynamics, on another corpus: descriptions of the pinned "
    "Python packages, standing for the paper's Jigsaw; median and quartiles over layers, a thin line is one seed."
)
GROUP = "training"
NEEDS = ("scores", "runs")
USES = ("published_trajectories",)


def numbers(inputs: Inputs) -> pd.DataFrame:
    """Median and quartiles over layers, one row per run and step, then those of all seeds together."""
    return numbers_of(inputs, corpus="descriptions")
