"""Directionality scores of language models."""

from __future__ import annotations

import pandas as pd

from qkgeom.rendering import Inputs
from qkgeom.tables import _scores_table

PAPER = "Table S2"
CAPTION = (
    "Directionality of the query-key matrices of language models: median and quartiles over layers. "
    "Negative means that columns dominate. The excess, which the paper's figures and tables show, sums by how much the "
    "norms of outlying rows and columns exceed their threshold; the other, the paper's definition, sums the norms. "
    "† marks scores that cannot be told from those of random weights."
)
GROUP = "language"
NEEDS = ("summary",)
SCORES = {"directionality_excess": "Directionality (excess)", "directionality": "Directionality"}


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per model: size, layers, median and quartiles over layers."""
    return _scores_table.scores_of(inputs, GROUP, SCORES)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The table as printed."""
    return _scores_table.printed(table, SCORES)
