"""What W_qk is made of, besides its scores: how many directions carry it, and which rows and columns stand out.

M = A B^T with A, B of shape [d, r]. Everything follows from the factors' QR decompositions (from M itself if r >= d), so
that nothing is larger than they are; in float64. docs/definitions.md has the equations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.files import whole_file
from qkgeom.products import as_float64
from qkgeom.scores import layer_factors, outlier_threshold

if TYPE_CHECKING:
    import torch

NORMS = "norms.npz"  # of an artifact
MOST = 5  # outliers that are named
TOP = 10  # singular values


@dataclass(frozen=True)
class Structure:
    """The structure of one matrix M; all None where it is zero or not finite.

    Attributes:
        effective_rank: exp of the entropy of the singular values divided by their sum, in [1, d].
        top1_share: the largest singular value's share of ||M||_F^2, in (0, 1]; 1 / top1_share is the stable rank.
        top10_share: that of the ten largest together.
        top_row_share: share of ||M||_F^2 in the rows `top_rows`, in [0, 1].
        top_rows: up to five outlier rows, those of the largest norms first; indices from 0, separated by spaces.
        top_col_share: as for rows.
        top_cols: as for rows.

    Source: Roy and Vetterli, The effective rank: a measure of effective dimensionality, EUSIPCO 2007.
    """

    effective_rank: float | None = None
    top1_share: float | None = None
    top10_share: float | None = None
    top_row_share: float | None = None
    top_rows: str | None = None
    top_col_share: float | None = None
    top_cols: str | None = None


COLUMNS = tuple(field.name for field in fields(Structure))


@dataclass(frozen=True)
class Norms:
    """Norms of the rows and of the columns of M, float64 [d] each."""

    rows: np.ndarray
    columns: np.ndarray


def layer_structure(W_q: torch.Tensor, W_k: torch.Tensor, heads: bool = False) -> dict[str, tuple[Structure, Norms]]:
    """The structure of a layer, and of each of its heads if asked; see `qkgeom.scores.score_layer`."""
    found = {"all": structure_of(*layer_factors(W_q, W_k))}
    if heads:
        group = W_q.shape[1] // W_k.shape[1]
        found |= {str(h): structure_of(W_q[:, h], W_k[:, h // group]) for h in range(W_q.shape[1])}
    return found


def structure_of(A: torch.Tensor, B: torch.Tensor) -> tuple[Structure, Norms]:
    """The structure of M = A B^T, and its norms (NaN where M is not finite).

    Args:
        A: [d, r], of any floating-point type.
        B: [d, r].
    """
    core, rows, columns, exponent = _decomposed(A, B)
    norms = _norms(rows, columns, exponent)
    if not np.square(rows).sum() > 0:  # zero, or NaN
        return Structure(), norms
    squares = _squared_singular_values(core)
    shares = squares / squares.sum()
    p = np.sqrt(squares) / np.sqrt(squares).sum()
    effective_rank = math.exp(-(p * np.log(p)).sum())
    return Structure(effective_rank, float(shares[0]), float(shares[:TOP].sum()), *_top(rows), *_top(columns)), norms


def norms_of(A: torch.Tensor, B: torch.Tensor) -> Norms:
    """The norms of M = A B^T, see `structure_of`."""
    _, rows, columns, exponent = _decomposed(A, B)
    return _norms(rows, columns, exponent)


def norm_arrays(snapshot: str, layer: int, norms: Norms) -> dict[str, np.ndarray]:
    """The norms under the names that they have in an artifact: `final.layer.000.rows` and `final.layer.000.columns`."""
    return {f"{snapshot}.layer.{layer:03d}.{side}": values for side, values in vars(norms).items()}


def write_norms(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an artifact's norms, for numpy.load to read."""
    with whole_file(folder / NORMS) as temporary:
        np.savez(temporary, **arrays)


def _decomposed(A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, np.ndarray, np.ndarray, int]:
    """Of M = A B^T 2^-e: a square matrix of the same singular values (zeros aside), the norms of rows and columns; and e."""
    import torch

    norm = torch.linalg.vector_norm
    (A, a_exponent), (B, b_exponent) = _scaled(A), _scaled(B)
    if A.shape[1] >= A.shape[0]:
        core = A @ B.T
        rows, columns = norm(core, dim=1), norm(core, dim=0)
    else:
        R_a, R_b = (torch.linalg.qr(each, mode="r").R for each in (A, B))
        core, rows, columns = R_a @ R_b.T, norm(A @ R_b.T, dim=1), norm(B @ R_a.T, dim=1)
    return core, rows.cpu().numpy(), columns.cpu().numpy(), a_exponent + b_exponent


def _norms(rows: np.ndarray, columns: np.ndarray, exponent: int) -> Norms:
    with np.errstate(over="ignore", under="ignore"):  # as `Score.fro_norm`
        return Norms(*np.ldexp((rows, columns), exponent))


def _scaled(A: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A / 2^e in float64 with its largest entry in [0.5, 1), and e; all NaN if A is not finite."""
    A = as_float64(A)
    largest = float(A.abs().amax())
    if not math.isfinite(largest):
        return A * math.nan, 0
    exponent = math.frexp(largest)[1]
    return A.ldexp(A.new_tensor(-exponent)), exponent


def _squared_singular_values(core: torch.Tensor) -> np.ndarray:
    """Squared singular values, largest first, without those that are zero up to rounding.

    Eigenvalues of the Gram matrix take a fraction of a singular value decomposition's time. They lose what is smaller than
    about 1e-6 of the largest singular value, which no entropy and no share notices.
    """
    import torch

    squares = torch.linalg.eigvalsh(core.T @ core).flip(0).cpu().numpy()
    return squares[squares > len(squares) * np.finfo(float).eps * squares[0]]


def _top(norms: np.ndarray) -> tuple[float, str]:
    """The share of the squared norm in the largest outliers, and which they are."""
    largest = np.argsort(-norms, kind="stable")[:MOST]
    top = largest[norms[largest] > outlier_threshold(norms)]
    return float((norms[top] ** 2).sum() / (norms**2).sum()), " ".join(map(str, top))
