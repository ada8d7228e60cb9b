"""Symmetry and directionality of W_qk = sum over heads of W_q,h W_k,g(h)^T, from the factors.

Definitions: symmetry is the paper's Definition 3.1, directionality its Definition 3.2; directionality_excess is what
the authors' released code computes (sums of norm - threshold instead of sums of norms). docs/definitions.md has the
equations.

M = A B^T with A, B of shape [d, r]. Grouped queries make r = n_kv_head * d_head: the query heads of a group share
their key head, so they are summed first. products.py knows how to get norms and trace from A and B; here it is decided
which of its ways is accurate enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.device import has_matrix_unit
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.products import Moments, as_float64, ways

if TYPE_CHECKING:
    import torch

GAMMA = 2.0  # an outlier's norm exceeds mean + GAMMA * std (paper, section 3)
NOISE = 64  # a matrix none of whose rows' norms exceeds so many times its error is zero up to rounding
EQUAL_NORMS = 1e-6  # norms that vary less than this, relative to their mean, are equal up to rounding
PRECISIONS = ("auto", "float64")
SYMMETRY_TOLERANCE, DIRECTIONALITY_TOLERANCE = 1e-5, 1e-4  # of float32 products; beyond them all is computed in float64
SAFETY = 4  # tolerances are kept with so many standard deviations of the error's estimate
CPU_SUM_BYTES, GPU_SUM_BYTES = 2**20, 2**28  # of the weights whose groups are summed at a time
PLAIN = 2.0**30  # factors with entries between 1 / PLAIN and PLAIN are taken as they are: no square over- or underflows


@dataclass(frozen=True)
class Score:
    """The scores of one matrix M.

    Attributes:
        symmetry: tr(M M) / ||M||_F^2 in [-1, 1].
        directionality: (R - C) / (R + C) in [-1, 1] from sums of outlier norms; negative = column dominance.
        directionality_excess: the same from sums of (norm - threshold).
        fro_norm: ||M||_F; infinite or 0 where that is beyond float64's range.
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


def score_layer(
    W_q: torch.Tensor,
    W_k: torch.Tensor,
    heads: bool = False,
    precision: str = "auto",
    tile_bytes: int | None = None,
    alone: bool = False,
) -> dict[str, Score]:
    """Scores a layer, and each of its heads if asked.

    Args:
        W_q: [d_model, n_head, d_head], of any floating-point type.
        W_k: [d_model, n_kv_head, d_head]; query head h reads key head h // (n_head / n_kv_head).
        heads: also score W_q,h W_k,g(h)^T for every head.
        precision: `auto` or `float64`, see `score_factors`; weights in float64 are always computed in it.
        tile_bytes: how much memory a tile of M may take; by default what suits the device.
        alone: no other thread of this process multiplies matrices meanwhile, see `score_factors`.

    Returns:
        `all`, then the heads' indices, each with its scores.

    Raises:
        QkgeomError: the shapes do not belong together, or these are no floating-point numbers.
    """
    import torch

    A, B = layer_factors(W_q, W_k)
    if precision == "auto" and torch.float64 in (W_q.dtype, W_k.dtype):
        precision = "float64"
    scores = {"all": score_factors(A, B, precision, tile_bytes, alone)}
    if heads:
        group = W_q.shape[1] // W_k.shape[1]
        for h in range(W_q.shape[1]):
            scores[str(h)] = score_factors(W_q[:, h], W_k[:, h // group], precision, tile_bytes, alone)
    return scores


def require_precision(precision: str) -> None:
    """Raises a UsageError if there is no such precision."""
    if precision not in PRECISIONS:
        raise UsageError("there is no such precision", found=repr(precision), expected=" or ".join(map(repr, PRECISIONS)))


def layer_factors(W_q: torch.Tensor, W_k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B, [d_model, n_kv_head * d_head] each, with W_qk = A B^T: query heads that share a key head are summed.

    Raises:
        QkgeomError: as `score_layer`.
    """
    import torch

    alike = W_q.ndim == W_k.ndim == 3 and W_q.shape[::2] == W_k.shape[::2] and 0 not in (*W_q.shape, *W_k.shape)
    if not alike or W_q.shape[1] % W_k.shape[1]:
        raise QkgeomError(
            "query and key weights do not belong to one layer",
            found=f"W_q {list(W_q.shape)}, W_k {list(W_k.shape)}",
            expected="[d_model, n_head, d_head] and [d_model, n_kv_head, d_head], n_head a multiple of n_kv_head, no size 0",
        )
    if not (W_q.is_floating_point() and W_k.is_floating_point()):
        raise QkgeomError("weights are not floating-point numbers", found=f"W_q {W_q.dtype}, W_k {W_k.dtype}")
    if W_q.shape[1] == W_k.shape[1]:
        return W_q.flatten(1), W_k.flatten(1)
    # in parts that stay in the cache, and into memory that is there already: a large layer is never there twice
    exact = as_float64 if W_q.itemsize > 2 else torch.Tensor.float  # halves have few enough digits for float32
    A = exact(W_q[:0]).new_empty(W_k.shape)
    rows = max(1, (CPU_SUM_BYTES if A.is_cpu else GPU_SUM_BYTES) // (A.itemsize * W_q[0].numel()))
    for part, summed in zip(W_q.split(rows), A.split(rows), strict=True):
        torch.sum(exact(part).unflatten(1, (W_k.shape[1], -1)), 2, out=summed)
    return A.flatten(1), W_k.flatten(1)


def score_factors(
    A: torch.Tensor, B: torch.Tensor, precision: str = "auto", tile_bytes: int | None = None, alone: bool = False
) -> Score:
    """Scores M = A B^T; A and B are [d, r].

    Args:
        A: [d, r].
        B: [d, r].
        precision: `float64` computes everything in it. `auto` takes the fastest way for the shape, with products in
            float32 at the least, whose error is at most 1e-5 in symmetry and 1e-4 in both directionalities: where
            their estimate says otherwise, the whole is done again in float64.
        tile_bytes: how much memory a tile of M may take.
        alone: no other thread of this process multiplies matrices meanwhile. Then B in bfloat16, and A in it or in
            float32, are multiplied by the CPU's unit for such numbers, if it has one: to the same accuracy, but torch switches
            it on for all threads.

    Raises:
        UsageError: no such precision.
    """
    import torch

    require_precision(precision)
    if A.device != B.device:
        A, B = A.cpu(), B.cpu()
    parts = {torch.bfloat16: 1, torch.float32: 2}.get(A.dtype, 0)  # halves are summed in float32
    bfloat16_parts = parts if alone and B.dtype == torch.bfloat16 and has_matrix_unit(A.device) else 0
    (A, a, a_exponent), (B, b, b_exponent) = _normalised(A), _normalised(B)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Score(None, None, None, None, None, None, "not_finite")
    for way in ways(*A.shape, A.device, precision == "float64", tile_bytes, bfloat16_parts):
        score, trusted = _from_moments(way(A, B, a, b), a_exponent + b_exponent)
        if trusted:
            break
    return score


def _normalised(A: torch.Tensor) -> tuple[torch.Tensor, np.ndarray, int]:
    """A / 2^e in float32 or float64, the norms of its rows, and e: exact, and so that no square over- or underflows."""
    A = A.float() if A.itemsize < 4 else A
    norms = _row_norms(A)
    if 1 / PLAIN < norms.max() < PLAIN:
        return A, norms, 0
    largest = float(A.abs().amax())
    exponent = math.frexp(largest)[1] if largest and math.isfinite(largest) else 0
    # in two steps, since 2^-exponent may be no number of the type
    A = A * 2.0 ** -(exponent // 2) * 2.0 ** -(exponent - exponent // 2)
    return A, _row_norms(A), exponent


def _row_norms(A: torch.Tensor) -> np.ndarray:
    import torch

    return torch.linalg.vector_norm(A, dim=1).cpu().double().numpy()


def _from_moments(moments: Moments, exponent: int) -> tuple[Score, bool]:
    """The scores of a matrix, and whether rounding kept within the tolerances.

    Args:
        moments: of the matrix.
        exponent: the matrix was divided by 2^exponent.
    """
    fro2 = float((moments.rows**2).sum())
    if fro2 == 0 or (moments.rows <= NOISE * moments.row_error).all():
        return Score(None, None, None, 0.0, 0, 0, "zero"), False
    symmetry = min(1.0, max(-1.0, moments.trace / fro2))
    with np.errstate(over="ignore", under="ignore"):  # it may lie beyond float64's range; the scores do not
        fro_norm = float(np.ldexp(math.sqrt(fro2), exponent))
    R, C = _Outliers.among(moments.rows, moments.row_error), _Outliers.among(moments.columns, moments.column_error)
    trusted = R.sure and C.sure and SAFETY * moments.trace_error <= SYMMETRY_TOLERANCE * fro2
    if R.number == C.number == 0:
        return Score(symmetry, 0.0, 0.0, fro_norm, 0, 0, "no_outliers"), trusted
    trusted = trusted and 2 * SAFETY * (R.error + C.error) <= DIRECTIONALITY_TOLERANCE * (R.excess + C.excess)
    directionality, excess = (R.total - C.total) / (R.total + C.total), (R.excess - C.excess) / (R.excess + C.excess)
    return Score(symmetry, directionality, excess, fro_norm, R.number, C.number, "ok"), trusted


def outlier_threshold(norms: np.ndarray) -> float:
    """The norm beyond which a row or a column is an outlier: infinite where all are equal up to rounding."""
    std = norms.std(ddof=1) if norms.size > 1 else 0.0
    return norms.mean() + GAMMA * std if std > EQUAL_NORMS * norms.mean() else math.inf


@dataclass(frozen=True)
class _Outliers:
    """The norms beyond the threshold: their sum, the sum of their excess over it, and their number.

    Attributes:
        error: one standard deviation of either sum.
        sure: rounding cannot have moved a norm over the threshold.
    """

    total: float
    excess: float
    number: int
    error: float
    sure: bool

    @classmethod
    def among(cls, norms: np.ndarray, error: np.ndarray) -> _Outliers:
        """Those among the norms [d], each of which is off by its error [d]."""
        mean, std = norms.mean(), norms.std(ddof=1) if norms.size > 1 else 0.0
        typical = np.sqrt((error**2).mean())
        sure = bool(abs(std - EQUAL_NORMS * mean) > SAFETY * typical)
        threshold = outlier_threshold(norms)
        if math.isinf(threshold):
            return cls(0.0, 0.0, 0, 0.0, sure)
        beyond = norms > threshold
        sure = sure and bool((np.abs(norms - threshold) > SAFETY * error).all())
        outliers = norms[beyond]
        of_threshold = (1 + GAMMA) * typical / np.sqrt(norms.size) * outliers.size
        rounding = np.sqrt((error[beyond] ** 2).sum()) + of_threshold
        return cls(float(outliers.sum()), float((outliers - threshold).sum()), outliers.size, float(rounding), sure)
