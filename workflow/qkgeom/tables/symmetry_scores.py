"""Symmetry scores of language models."""

from __future__ import annotations

import pandas as pd

from qkgeom.rendering import Inputs
from qkgeom.tables import _scores_table

PAPER = "Table S1"
CAPTION = (
    "Symmetry of the query-key matrices of language models: median and quartiles over layers. "
    "1 is a symmetric matrix, -1 a skew-symmetric one. † marks scores that cannot be told from those of random weights."
)
GROUP = "language"
NEEDS = ("summary",)
SCORES = {"symmetry": "Symmetry"}


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per model: size, layers, median and quartiles over layers."""
    return _scores_table.scores_of(inputs, GROUP, SCORES)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The table as printed."""
    return _scores_table.printed(table, SCORES)
