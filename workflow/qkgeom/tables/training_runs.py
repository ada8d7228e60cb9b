"""Every training run: how it ended, and how well its model does on held-out data."""

from __future__ import annotations

import pandas as pd

from qkgeom.rendering import Inputs
from qkgeom.untrained import UNTRAINED, marked

PAPER = "none"
CAPTION = (
    "Training runs of this preset: held-out loss in nats per target, or accuracy, against the trivial baseline (the best "
    "constant prediction, chosen with the held-out targets in hand: their unigram entropy, with the Miller-Madow "
    "correction, or the share of the most frequent one). A model of the mini zoo must beat it by the margin stated in "
    "runs.tsv; runs without a margin are not judged. "
    "† marks runs whose last scores cannot be told from those of random weights."
)
GROUP = "training, controls"
NEEDS = ("summary", "runs")
COLUMNS = ["run", "seed", "family", "objective", "corpus", "depth", "steps", "status"]
MEASURED = ["metric", "value", "baseline", "gain", "margin"]


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per run, an encoder-decoder's two models being one, untrained if either is."""
    runs = inputs.read("runs", ["model", *COLUMNS, *MEASURED])
    verdicts = runs["model"].map(inputs.verdicts())
    either = (verdicts == UNTRAINED).groupby([runs["run"], runs["seed"]]).transform("any")
    runs = runs.assign(verdict=verdicts.mask(either, UNTRAINED)).drop(columns="model")
    return runs.drop_duplicates(["run", "seed"], ignore_index=True)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """The table as printed."""
    columns = {
        ("", "Model"): marked(table["run"], table["verdict"]),
        ("", "Seed"): table["seed"].map(str),
        ("", "Steps"): table["steps"].map(str),
        ("Held-out", "Metric"): table["metric"],
        **{("Held-out", name.capitalize()): table[name].astype(float) for name in MEASURED[1:]},
        ("", "Ended"): table["status"].str.replace("_", " "),
    }
    return pd.DataFrame(columns)
