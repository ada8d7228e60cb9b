"""Which tokens make the implicit update, as queries and as keys, in one encoder and in one decoder."""

from __future__ import annotations

import pandas as pd

from qkgeom.measured_updates import PLAIN, measured_runs
from qkgeom.rendering import ROLES, Inputs

PAPER = "none"
CAPTION = (
    "The implicit update of the query-key matrices, rearranged by the token at the query position (row side) and by the "
    "token at the key position (column side), in the first measured encoder and decoder, at the middle one of the measured "
    "steps. The eight tokens that add most. Positions: how often a token stands at a position with a gradient at its "
    "logits, as query and as key, and how often it is the target to be predicted, in the measured batches. Added: norm of "
    "what it adds to the sum, in percent of the sum of these norms over the tokens that stand at 20 positions at least. "
    "Growth: of the length of its mean input row times the matrix, from the left (row) and from the right (column), under "
    "AdamW until the next measured step. Means over layers; all tokens of all runs are in the csv."
)
GROUP = "training, controls"
NEEDS = ("runs", "updates")
COLUMNS = [
    *("model", "step", "until", "token", "text", "n_query", "n_key", "n_target"),
    *("row_added", "column_added", "row_growth", "column_growth"),
]
SHOWN = 8


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per measured run and frequent token: role and objective, then what `updates` wrote of it."""
    runs = measured_runs(inputs)[["model", "role", "objective"]]
    return runs.merge(inputs.measured("tokens", COLUMNS), on="model")


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The tokens that add most, of one run per role."""
    plain = table[table["objective"].isin(PLAIN)]
    parts = []
    for role in ROLES:
        runs = plain[plain["role"] == role]
        rows = runs[runs["model"] == (runs["model"].iloc[0] if len(runs) else None)]
        shares = 100 * rows[["row_added", "column_added"]] / rows[["row_added", "column_added"]].sum()
        order = shares.sum(axis=1).sort_values(ascending=False, kind="stable").index[:SHOWN]
        rows, shares = rows.loc[order], shares.loc[order]
        columns = {("", "Role"): rows["role"], ("", "Token"): rows["text"].fillna(rows["token"].astype(str))}
        columns |= {("Positions", name.capitalize()): rows[f"n_{name}"].astype(str) for name in ("query", "key", "target")}
        columns |= {("Added (%)", side.capitalize()): shares[f"{side}_added"] for side in ("row", "column")}
        columns |= {("Growth", side.capitalize()): rows[f"{side}_growth"] for side in ("row", "column")}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)
