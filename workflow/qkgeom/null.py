"""What the scores of random weights look like: mean, spread and z, by shape alone.

The null model is M = A B^T with independent Gaussian A, B of shape [d, r]; a layer has r = n_kv_head * d_head, a head
r = d_head. docs/null.md derives the symmetry's moments; the directionalities' are simulated (tools/null_table.py).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.errors import QkgeomError

if TYPE_CHECKING:
    import pandas as pd
    from scipy.interpolate import RegularGridInterpolator

TABLE = Path(__file__).with_suffix(".csv")
SCORES = ("symmetry", "directionality", "directionality_excess")
COLUMNS = tuple(f"{score}_z" for score in SCORES)
SIZES = ("d_model", "n_kv_head", "d_head")
_SIMULATED = {"directionality": ("sd", "q95"), "directionality_excess": ("excess_sd", "excess_q95")}
_NORMAL_95 = 1.959964  # central 95 % of a normal distribution, in standard deviations


def shapes(scores: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Width d and rank r of rows of scores.csv, whole layers and heads."""
    n_kv_head, d_head = scores["n_kv_head"].to_numpy(float), scores["d_head"].to_numpy(float)
    return scores["d_model"].to_numpy(float), d_head * np.where(scores["head"] == "all", n_kv_head, 1)


def mean(score: str, d: np.ndarray) -> np.ndarray:
    """Mean of a score of random weights, exact."""
    return 1 / d if score == "symmetry" else np.zeros_like(d, dtype=float)


def deviation(score: str, d: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Standard deviation of a score of random weights.

    Args:
        score: one of `SCORES`.
        d: width of the model, any shape.
        r: rank of its factors, same shape.

    Returns:
        0 where the score does not vary: directionalities for d <= 5, symmetry for d = 1.
    """
    if score == "symmetry":
        return _symmetry_deviation(d, r)
    return _simulated(_SIMULATED[score][0], d, r)


def interval(score: str, d: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The central 95 % of a score of random weights, for the arguments see `deviation`."""
    size = _NORMAL_95 * deviation(score, d, r) if score == "symmetry" else _simulated(_SIMULATED[score][1], d, r)
    half = np.minimum(size, 1)
    return mean(score, d) - half, mean(score, d) + half


def excess_kurtosis(d: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Fourth moment over squared variance of the directionality (excess) of random weights (3 if it were normal)."""
    return _table("excess_kurtosis")(_places(d, r))


def with_z(scores: pd.DataFrame) -> pd.DataFrame:
    """Rows of scores.csv with `COLUMNS` after the others: (score - mean) / standard deviation of random weights.

    Args:
        scores: at least head, `SIZES` and `SCORES`.

    Returns:
        The same rows; z is missing where there is no score or it does not vary.
    """
    d, r = shapes(scores)
    z = {}
    for score, column in zip(SCORES, COLUMNS, strict=True):
        spread = deviation(score, d, r)
        values = scores[score].to_numpy(float)
        z[column] = np.divide(values - mean(score, d), spread, out=np.full_like(spread, np.nan), where=spread > 0)
    return scores.assign(**z)


def _symmetry_deviation(d: np.ndarray, r: np.ndarray) -> np.ndarray:
    # inverse effective rank p4 / p2^2, as the ratio of the expectations
    kappa = ((d + 1) * (d + r + 1) + r * d + 2) / (d * (r * d + 2) + 2 * (d + r + 1))
    wide = np.maximum(d, 2)  # d = 1: always 1
    second_moment = (3 * (wide + 1) - 6 * kappa) / (wide * (wide - 1) * (wide + 2))
    return np.where(d > 1, np.sqrt(second_moment - 1 / wide**2), 0)


def _simulated(column: str, d: np.ndarray, r: np.ndarray) -> np.ndarray:
    """A number of the table that falls as 1 / sqrt(d); 0 where nothing can stand out."""
    return np.where(d > 5, _table(column)(_places(d, r)) / np.sqrt(d), 0)


def _places(d: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Coordinates in the table, [..., 2]; shapes beyond it stand at its edge."""
    edges = _table("sd").grid
    return np.stack([np.clip(np.log(size), axis[0], axis[-1]) for size, axis in zip((d, r), edges, strict=True)], -1)


@cache
def _table(column: str) -> RegularGridInterpolator:
    """A column of the table over log d and log r, times sqrt(d) but for the kurtosis."""
    from scipy.interpolate import RegularGridInterpolator

    rows = np.genfromtxt(TABLE, delimiter=",", names=True)
    d, r = np.unique(rows["d"]), np.unique(rows["r"])
    if len(rows) != len(d) * len(r):
        raise QkgeomError("the table of the null model is not whole", where=TABLE, fix="python tools/null_table.py")
    factor = 1 if column == "excess_kurtosis" else np.sqrt(rows["d"])
    values = (rows[column] * factor).reshape(len(d), len(r))
    return RegularGridInterpolator((np.log(d), np.log(r)), values, bounds_error=False)  # a missing size gives a missing value
