"""Scores of audio models against their size."""

from __future__ import annotations

import pandas as pd

from qkgeom.figures._scores_against_size import draw, scores_of
from qkgeom.rendering import Inputs

__all__ = ["draw", "numbers"]

PAPER = "supplement: audio models"
CAPTION = (
    "Symmetry and directionality (excess) of the query-key matrices of audio models against the number of parameters of "
    "the whole model (where it has an encoder and a decoder, each is shown, by its self-attention): median over layers, "
    "bars from the first to the third quartile. Symmetry is 1 for a symmetric and -1 for a skew-symmetric matrix; "
    "negative directionality means that columns dominate. Models of nearly the same size stand side by side. "
    "Sand: central 95 % of one layer of random weights of this shape; "
    "where it reaches from -1 to 1, in narrow models, no directionality of one layer is evidence. "
    "† marks scores that cannot be told from those of random weights."
)
GROUP = "audio"
NEEDS = ("summary",)


def numbers(inputs: Inputs) -> pd.DataFrame:
    """One row per model: size, layers, median and quartiles over layers of both scores."""
    return scores_of(inputs, GROUP)
