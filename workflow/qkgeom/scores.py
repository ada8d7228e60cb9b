"""Symmetry and directionality of W_qk = sum over heads of W_q,h W_k,g(h)^T, from the factors.

Definitions: symmetry is the paper's Definition 3.1, directionality its Definition 3.2; directionality_excess is what
the authors' released code computes (sums of norm - threshold instead of sums of norms). docs/definitions.md has the
equations.

M = A B^T with A, B of shape [d, r]. Grouped queries make r = n_kv_head * d_head: the query heads of a group share
their key head, so they are summed first. Everything is done in float64 on factors scaled by powers of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkgeom.errors import QkgeomError

if TYPE_CHECKING:
    import torch

GAMMA = 2.0  # an outlier's norm exceeds mean + GAMMA * std (paper, section 3)
EQUAL_NORMS = 1e-6  # norms that vary less than this, relative to their mean, are equal up to rounding
TILE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Score:
    """The scores of one matrix M.

    Attributes:
        symmetry: tr(M M) / ||M||_F^2 in [-1, 1].
        directionality: (R - C) / (R + C) in [-1, 1] from sums of outlier norms; negative = column dominance.
        directionality_excess: the same from sums of (norm - threshold).
        fro_norm: ||M||_F.
        n_row_outliers: number of rows whose norm exceeds the rows' threshold.
        n_col_outliers: the same for columns.
        status: `ok`, `no_outliers` (both directionalities are 0), `zero` or `not_finite` (all scores are None).
    """

    symmetry: float | None
    directionality: float | None
    directionality_excess: float | None
    fro_norm: float | None
    n_row_outliers: int | None
    n_col_outliers: int | None
    status: str


def score_layer(W_q: torch.Tensor, W_k: torch.Tensor, heads: bool = False) -> dict[str, Score]:
    """Scores a layer, and each of its heads if asked.

    Args:
        W_q: [d_model, n_head, d_head].
        W_k: [d_model, n_kv_head, d_head]; query head h reads key head h // (n_head / n_kv_head).
        heads: also score W_q,h W_k,g(h)^T for every head.

    Returns:
        `all`, then the heads' indices, each with its scores.

    Raises:
        QkgeomError: the shapes do not belong together.
    """
    if W_q.ndim != 3 or W_k.ndim != 3 or W_q.shape[::2] != W_k.shape[::2] or not W_k.shape[1] or W_q.shape[1] % W_k.shape[1]:
        raise QkgeomError(
            "query and key weights do not belong to one layer",
            found=f"W_q {list(W_q.shape)}, W_k {list(W_k.shape)}",
            expected="[d_model, n_head, d_head] and [d_model, n_kv_head, d_head], n_head a multiple of n_kv_head",
        )
    W_q, W_k = W_q.double(), W_k.double()
    group = W_q.shape[1] // W_k.shape[1]
    grouped = W_q.unflatten(1, (-1, group)).sum(2)  # [d_model, n_kv_head, d_head]
    scores = {"all": score_factors(grouped.flatten(1), W_k.flatten(1))}
    if heads:
        scores |= {str(h): score_factors(W_q[:, h], W_k[:, h // group]) for h in range(W_q.shape[1])}
    return scores


def score_factors(A: torch.Tensor, B: torch.Tensor) -> Score:
    """Scores M = A B^T; A and B are [d, r] in float64."""
    if not (A.isfinite().all() and B.isfinite().all()):
        return Score(None, None, None, None, None, None, "not_finite")
    (A, a_exponent), (B, b_exponent) = _normalised(A), _normalised(B)
    G = B.T @ A
    trace = (G * G.T).sum()  # tr(A B^T A B^T)
    row2, col2 = _squared_norms(A, B)
    fro2 = row2.sum()
    if fro2 == 0:
        return Score(None, None, None, 0.0, 0, 0, "zero")
    symmetry = float((trace / fro2).clamp(-1, 1))
    fro_norm = float(fro2.sqrt()) * 2.0 ** (a_exponent + b_exponent)
    R, R_excess, n_row = _outliers(row2.sqrt())
    C, C_excess, n_col = _outliers(col2.sqrt())
    if n_row == n_col == 0:
        return Score(symmetry, 0.0, 0.0, fro_norm, 0, 0, "no_outliers")
    return Score(symmetry, (R - C) / (R + C), (R_excess - C_excess) / (R_excess + C_excess), fro_norm, n_row, n_col, "ok")


def _normalised(A: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A / 2^e with its largest entry in [0.5, 1), and e; exact, so that no square over- or underflows."""
    largest = float(A.abs().amax()) if A.numel() else 0.0
    exponent = math.frexp(largest)[1] if largest else 0
    return A * 2.0**-exponent, exponent


def _squared_norms(A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared norms of the rows and of the columns of A B^T, [d] each, without holding the [d, d] matrix.

    For r << d they follow from r x r Gram matrices (row i: a_i (B^T B) a_i^T), else from tiles of M itself.
    """
    d, r = A.shape
    if 5 * r < d:  # about 10 d r^2 operations against 2 d^2 r
        return _quadratic_forms(A, B.T @ B), _quadratic_forms(B, A.T @ A)
    row2, col2 = A.new_zeros(d), A.new_zeros(d)
    step = max(1, TILE_BYTES // (8 * d))
    for start in range(0, d, step):
        squares = (A[start : start + step] @ B.T).square_()
        row2[start : start + step] = squares.sum(1)
        col2 += squares.sum(0)
    return row2, col2


def _quadratic_forms(A: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    return ((A @ gram) * A).sum(1).clamp_(min=0)


def _outliers(norms: torch.Tensor) -> tuple[float, float, int]:
    """Sum of the outliers' norms, sum of their excess over the threshold, and their number."""
    mean = norms.mean()
    std = norms.std() if norms.numel() > 1 else norms.new_zeros(())
    if std <= EQUAL_NORMS * mean:
        return 0.0, 0.0, 0
    threshold = mean + GAMMA * std
    outliers = norms[norms > threshold]
    return float(outliers.sum()), float((outliers - threshold).sum()), outliers.numel()
