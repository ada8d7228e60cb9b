"""Median and quartiles over layers, one row per model: what Tables S1 and S2 share."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from qkgeom.rendering import Inputs, short_number
from qkgeom.untrained import marked

QUARTILES = {"median": "Median", "q1": "Q1", "q3": "Q3"}


def scores_of(inputs: Inputs, group: str, scores: Mapping[str, str]) -> pd.DataFrame:
    """One row per scored model of the group, encoders first, in full precision."""
    columns = [f"{score}_{quartile}" for score in scores for quartile in QUARTILES]
    return inputs.models(group, ["model", "label", "role", "n_params", "n_layers", "n_scored", *columns, "verdict"])


def printed(table: pd.DataFrame, scores: Mapping[str, str]) -> pd.DataFrame:
    """The table as printed.

    Args:
        table: of `scores_of`.
        scores: score -> the name it is printed under.
    """
    columns = {
        ("", "Role"): table["role"],
        ("", "Model"): marked(table["label"], table["verdict"]),
        ("", "Parameters"): [None if pd.isna(n) else short_number(n) for n in table["n_params"]],
        ("", "Layers"): [
            f"{n}" if n == scored else f"{scored} of {n}"
            for n, scored in zip(table["n_layers"], table["n_scored"], strict=True)
        ],
        **{
            (name, title): table[f"{score}_{quartile}"].astype(float)
            for score, name in scores.items()
            for quartile, title in QUARTILES.items()
        },
    }
    if table.empty:
        return pd.DataFrame({column: ["no scored model" if column[1] == "Model" else None] for column in columns})
    return pd.DataFrame(columns)
