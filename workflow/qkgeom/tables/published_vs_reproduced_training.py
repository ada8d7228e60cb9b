"""The paper's Table 1 against the same runs here."""

from __future__ import annotations

import pandas as pd

from qkgeom.comparison import LOSSES, NOT_PUBLISHED, published_losses, verdicts
from qkgeom.rendering import Inputs
from qkgeom.tables._initialisations import compared

PAPER = "Table 1"
CAPTION = (
    "Training loss of encoders from the default and from a symmetric start, and the speed-up as a share of the steps, as "
    "published and as trained here, with the differences in the csv. Only the paper's own runs (preset paper) are "
    "compared: the miniatures of other presets are not the same experiment. The published losses are the last of the "
    "released curves, those here means over the last 5 logged points (symmetric_init). Agrees: all three within the rounding "
    "of two decimals, which a training run from another seed need not be."
)
GROUP = "training"
NEEDS = ("losses", "runs", "published")
TITLES = dict(zip(LOSSES, ("Loss, default start", "Loss, symmetric start", "Speed-up"), strict=True))


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per run of Table 1 (and seed, if there are several here)."""
    names = inputs.read("runs", ["model", "run"]).rename(columns={"model": "model_default"})
    here = compared(inputs).merge(names, on="model_default")
    here = here.rename(columns={"run": "model", **{name: f"{name}_here" for name in LOSSES}})
    table = published_losses(inputs).merge(here[["model", "seed", *(f"{name}_here" for name in LOSSES)]], "left", "model")
    table["verdict"] = verdicts(table, LOSSES)
    for name in LOSSES:
        table[f"{name}_difference"] = table[f"{name}_here"] - table[f"{name}_published"]
    columns = [f"{name}_{side}" for name in LOSSES for side in ("published", "here", "difference")]
    words = dict.fromkeys(["model", "printed_as", "verdict", "source", "note"], "str")
    return table[["model", "printed_as", "seed", *columns, "verdict", "source", "note"]].astype({**words, "seed": "Int64"})


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """Both values of each number, and the verdict."""
    columns = {("", "Model"): table["printed_as"]}
    for name, title in TITLES.items():
        columns[title, "Published"], columns[title, "Here"] = table[f"{name}_published"], table[f"{name}_here"]
    reason = table["note"].where(table["verdict"] == NOT_PUBLISHED)
    columns["", "Verdict"] = table["verdict"] + (": " + reason).fillna("")
    return pd.DataFrame(columns)
