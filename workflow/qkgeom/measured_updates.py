"""The runs whose weight updates were measured, and their scores over layers, chosen for figures and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkgeom.rendering import Inputs
from qkgeom.trajectories import SCORES, UNIT, in_order

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = ("custom", "control")  # whose updates are compared
PLAIN = {"masked": "encoder", "autoregressive": "decoder"}  # objectives that are no control, and their roles


def measured_runs(inputs: Inputs) -> pd.DataFrame:
    """One row per measured run, of the default start: model, role, objective, corpus, depth, seed, status; in order.

    Raises:
        QkgeomError: runs.csv cannot be read.
    """
    columns = ["model", "role", "objective", *UNIT, "init", "family", "status"]
    runs = inputs.read("runs", columns)
    measured = {folder.name for folder in inputs.updates}
    runs = runs[runs["model"].isin(measured) & runs["family"].isin(FAMILIES) & (runs["init"] == "default")]
    return in_order(runs, ["corpus", "depth", "role", "objective", "seed"]).drop(columns=["init", "family"])


def over_layers(inputs: Inputs) -> pd.DataFrame:
    """Medians over layers of the measured updates' scores: model, step, until, quantity, then `SCORES`.

    Raises:
        QkgeomError: a table of updates cannot be read.
    """
    keys = ["model", "step", "until", "quantity"]
    table = inputs.measured("updates", [*keys, *SCORES])
    return table.groupby(keys, sort=False)[list(SCORES)].median().reset_index()
