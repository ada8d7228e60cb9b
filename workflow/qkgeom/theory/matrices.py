"""Scores of many small dense matrices at once, as updates are: the definitions of `qkgeom.scores`, vectorised."""

from __future__ import annotations

import numpy as np

from qkgeom.scores import EQUAL_NORMS, GAMMA

SCORES = ("symmetry", "directionality", "directionality_excess")


def dense_scores(M: np.ndarray) -> dict[str, np.ndarray]:
    """`SCORES` of matrices [..., d, d], each of shape [...]; NaN of a matrix that is zero or not finite."""
    squares = np.square(M)
    total = squares.sum((-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        symmetry = (M * np.swapaxes(M, -2, -1)).sum((-2, -1)) / total
        (R, R_excess), (C, C_excess) = (_outliers(np.sqrt(squares.sum(axis))) for axis in (-1, -2))
        directionality, excess = (_balance(*sides) for sides in ((R, C), (R_excess, C_excess)))
    there = np.isfinite(total) & (total > 0)
    values = dict(zip(SCORES, (symmetry, directionality, excess), strict=True))
    return {name: np.where(there, value, np.nan) for name, value in values.items()}


def _outliers(norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the norms beyond the threshold, and of their excess over it; norms are [..., d]."""
    mean, std = norms.mean(-1, keepdims=True), norms.std(-1, ddof=1, keepdims=True)
    threshold = np.where(std > EQUAL_NORMS * mean, mean + GAMMA * std, np.inf)
    beyond = norms > threshold
    return (norms * beyond).sum(-1), np.where(beyond, norms - threshold, 0).sum(-1)


def _balance(R: np.ndarray, C: np.ndarray) -> np.ndarray:
    return np.where(R + C > 0, (R - C) / np.where(R + C > 0, R + C, 1), 0.0)


def pair_symmetry(B: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Symmetry of weighted sums of matrices without their diagonals, which are symmetric whatever they hold.

    Args:
        B: [batch, n, n].
        weights: [..., batch].

    Returns:
        [...]: the sum over a != b of S_ab S_ba over that of S_ab^2, S the weighted sum.
    """
    off = B * (1 - np.eye(B.shape[-1]))
    flat, turned = off.reshape(len(B), -1), np.swapaxes(off, 1, 2).reshape(len(B), -1)
    across, square = (np.einsum("...m,mn,...n->...", weights, flat @ other.T, weights) for other in (turned, flat))
    return np.divide(across, square, out=np.full_like(square, np.nan), where=square > 0)


def recentred(values: np.ndarray) -> np.ndarray:
    """Values of resampled batches with the bootstrap's estimate of their bias taken off.

    Resampled batches repeat, so that their sum is of fewer different ones than all batches, which has less symmetry where
    single batches are noise. Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 10.3.

    Args:
        values: [..., 1 + n_resample], the first of all batches.

    Returns:
        [..., n_resample], whose mean is the value of all batches.
    """
    return values[..., 1:] - values[..., 1:].mean(-1, keepdims=True) + values[..., :1]


def resampled_weights(n_batch: int, n_resample: int, seed: int) -> np.ndarray:
    """Bootstrap weights over batches, [1 + n_resample, n_batch]; the first row is the mean of all batches."""
    drawn = np.random.default_rng(seed).multinomial(n_batch, np.full(n_batch, 1 / n_batch), n_resample)
    return np.concatenate([np.ones((1, n_batch)), drawn]) / n_batch
