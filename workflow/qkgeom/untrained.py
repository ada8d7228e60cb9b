"""Whether a model's layers can be told from random weights, all together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkgeom import null

if TYPE_CHECKING:
    import pandas as pd

    from qkgeom.scoring import Row

ALPHA = 0.01  # share of untrained models that are not called so
UNTRAINED, NOT_RANDOM = "untrained", "not random"
MARK = "†"
UNSURE = "untrained or too small to tell"  # what a person is told of `untrained`: it proves nothing of a small model
SMALLEST_P = 1e-300  # below it floating-point numbers end, and p is 0
COLUMNS = (*null.COLUMNS, "untrained_p", "verdict")
TERMS = ("symmetry_z", "directionality_excess_z")


def p_value(layers: pd.DataFrame) -> float:
    """Probability that random weights lie as far from their expectation as these layers, or farther.

    The sum of squared z of symmetry and directionality (excess) over layers is compared with the gamma distribution of
    its mean and variance under the null model (docs/null.md).

    Args:
        layers: rows of scores.csv, one snapshot of one model; heads are left out.

    Returns:
        In [0, 1]; NaN if no layer has a score.
    """
    from scipy.special import gammaincc

    layers = null.with_z(layers[layers["head"] == "all"])
    squares = layers[list(TERMS)].to_numpy(float) ** 2
    there = np.isfinite(squares)
    if not there.any():
        return float("nan")
    spread = np.broadcast_to(2.0, len(layers)), null.excess_kurtosis(*null.shapes(layers)) - 1
    mean, variance = there.sum(), np.stack(spread, 1)[there].sum()
    return float(gammaincc(mean**2 / variance, squares[there].sum() * mean / variance))


def verdict(p: float) -> str | None:
    """`untrained` or `not random`; None without a p-value."""
    if np.isnan(p):
        return None
    return UNTRAINED if p >= ALPHA else NOT_RANDOM


def marked(labels: pd.Series, verdicts: pd.Series) -> pd.Series:
    """The labels, of untrained models with a dagger; captions explain it."""
    return labels.where(verdicts != UNTRAINED, labels + f" {MARK}")


def sentence(p: float) -> str:
    """What a person is told of a p-value."""
    words = {
        None: "No layer can be held against random weights.",
        UNTRAINED: f"Verdict: {UNSURE}. Random weights give such scores too",
        NOT_RANDOM: "Verdict: not random. Random weights do not give such scores",
    }[verdict(p)]
    if np.isnan(p):
        return words
    return f"{words} (p < {SMALLEST_P:g})." if p < SMALLEST_P else f"{words} (p = {p:.2g})."


def rows_with_null(rows: Sequence[Row]) -> list[Row]:
    """Rows of scores with `COLUMNS` after the others; None where there is no z.

    `untrained_p` and `verdict` are those of the row's model and snapshot as a whole, repeated in the row of each of its
    layers; None in the rows of heads.
    """
    import pandas as pd

    if not rows:
        return []
    table = null.with_z(pd.DataFrame(rows))
    z = table[list(null.COLUMNS)].astype(object).where(table[list(null.COLUMNS)].notna(), None)
    told = {}
    for which, layers in table.groupby(["model", "snapshot"]):
        p = p_value(layers)
        told[which] = {"untrained_p": None if np.isnan(p) else p, "verdict": verdict(p)}
    untold = {"untrained_p": None, "verdict": None}
    return [
        {**row, **more, **(told[row["model"], row["snapshot"]] if row["head"] == "all" else untold)}
        for row, more in zip(rows, z.to_dict("records"), strict=True)
    ]


def p_of_rows(rows: Sequence[Row]) -> float:
    """The p-value of the last snapshot of one model, from its rows of scores."""
    import pandas as pd

    return p_value(pd.DataFrame([row for row in rows if row["snapshot"] == rows[-1]["snapshot"]]))
