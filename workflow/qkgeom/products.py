"""What the scores need of M = A B^T, without holding M: the norms of its rows and columns, and tr(M M).

Two ways, the cheaper one for the shape is taken (A and B are [d, r]):

- Gram: row i has the squared norm a_i (B^T B) a_i^T, and tr(M M) = tr((B^T A)(B^T A)): 10 d r^2 operations. They are
  quadratic forms that may cancel, so they are always computed in float64.
- Tiles: M is computed tile by tile, a tile and its mirror image together: 2 d^2 r operations. A sum of squares does not
  cancel, so float32 does, unless the errors' estimate says otherwise.

Errors are estimated as one standard deviation of what rounding adds: a product of two rows of length r is off by about
eps |a_i| |b_j|, independently for each i and j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

SMALL = 1e8  # operations that take a millisecond: in float64 without asking
CPU_TILE_BYTES = 2**22  # a few of them stay in the cache
GPU_TILE_BYTES = 2**29
BLOCK = 384  # rows of a block that stays in the cache when it is read transposed
PADDING = 16  # of a tile's rows: reading it transposed is slow where rows are a power of two apart
ROWS_BYTES = 2**26  # of a Gram product's intermediate results
FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}  # CUDA devices whose float64 runs at half the float32 rate or more
SLOW_FLOAT64_COST = 32


@dataclass(frozen=True)
class Moments:
    """What is needed of a matrix M [d, d].

    Attributes:
        rows: norms of its rows, [d].
        columns: norms of its columns, [d].
        trace: tr(M M).
        row_error: by how much rounding moved the rows' norms, [d]; one standard deviation.
        column_error: the same for columns, [d].
        trace_error: the same for the trace.
    """

    rows: np.ndarray
    columns: np.ndarray
    trace: float
    row_error: np.ndarray
    column_error: np.ndarray
    trace_error: float


def ways(d: int, r: int, device: torch.device, exact: bool, tile_bytes: int | None = None) -> Iterator[Callable[..., Moments]]:
    """The functions (A, B, norms of A's rows, of B's rows) -> `Moments` for a shape: the cheapest, then the most accurate.

    Args:
        d: rows of A and B.
        r: columns of A and B.
        device: where they are.
        exact: only float64.
        tile_bytes: how much memory a tile may take; by default what suits the device.
    """
    import torch

    tile_bytes = tile_bytes or (CPU_TILE_BYTES if device.type == "cpu" else GPU_TILE_BYTES)
    float64_cost = 2 if _fast_float64(device) else SLOW_FLOAT64_COST
    exact_tiles = partial(tiles, dtype=torch.float64, tile_bytes=tile_bytes)
    costs = {gram: float64_cost * 10 * d * r**2}
    if exact or 2 * d**2 * r <= SMALL:
        costs[exact_tiles] = float64_cost * 2 * d**2 * r
    else:
        costs[partial(tiles, dtype=torch.float32, tile_bytes=tile_bytes)] = 2 * d**2 * r
    cheapest = min(costs, key=costs.get)
    yield cheapest
    if cheapest is not exact_tiles:
        yield exact_tiles


def gram(A: torch.Tensor, B: torch.Tensor, a: np.ndarray, b: np.ndarray) -> Moments:
    """The moments of A B^T from r x r Gram matrices in float64."""
    A, B = as_float64(A), as_float64(B)
    cross = B.T @ A
    rows, columns = _norms(_quadratic_forms(A, B.T @ B)), _norms(_quadratic_forms(B, A.T @ A))
    eps, a2, b2 = np.finfo(np.float64).eps, (a**2).sum(), (b**2).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        # a quadratic form is off by eps |a_i|^2 ||B||^2, and a norm by half of that over the norm
        row_error, column_error = eps * a**2 * b2 / rows, eps * b**2 * a2 / columns
    return Moments(rows, columns, float((cross * cross.T).sum()), row_error, column_error, eps * a2 * b2)


def tiles(A: torch.Tensor, B: torch.Tensor, a: np.ndarray, b: np.ndarray, dtype: torch.dtype, tile_bytes: int) -> Moments:
    """The moments of A B^T from its tiles.

    Args:
        A: [d, r].
        B: [d, r].
        a: norms of A's rows, [d].
        b: norms of B's rows, [d].
        dtype: of the products, float32 or float64.
        tile_bytes: memory of a tile.
    """
    import torch

    A, B = (as_float64(A), as_float64(B)) if dtype == torch.float64 else (A.to(dtype), B.to(dtype))
    d = len(A)
    ranges = _ranges(d, max(64, int((tile_bytes / A.itemsize) ** 0.5)))
    rows, columns, traces = A.new_zeros(d), A.new_zeros(d), []
    width = max(each.stop - each.start for each in ranges)
    buffers = A.new_empty(2, width * (width + PADDING))
    for k, first in enumerate(ranges):
        for second in ranges[k:]:
            n_row, n_column = first.stop - first.start, second.stop - second.start
            if first is second:
                M = torch.mm(A[first], B[first].T, out=buffers[0].view(width, -1)[:n_row, :n_column])
                traces.append(_trace_of_square(M))
            else:
                flat = buffers[:, : n_row * n_column]
                M, mirrored = flat.view(2, n_row, n_column)
                torch.mm(A[first], B[second].T, out=M)
                torch.mm(B[first], A[second].T, out=mirrored)  # transposed, so that both lie alike in memory
                traces.append(2 * torch.dot(*flat))
                mirrored.square_()
                rows[second] += mirrored.sum(0)
                columns[first] += mirrored.sum(1)
            M.square_()
            rows[first] += M.sum(1)
            columns[second] += M.sum(0)
    rows, columns, eps = _norms(rows), _norms(columns), torch.finfo(dtype).eps
    fro = np.linalg.norm(rows)
    row_error, column_error = eps * (a * b.max() + rows), eps * (b * a.max() + columns)
    trace = float(torch.stack(traces).cpu().double().sum())
    trace_error = eps * fro * (a.max() * b.max() + 10 * fro)  # a dot product of a tile's numbers is off by up to 10 eps
    return Moments(rows, columns, trace, row_error, column_error, trace_error)


def as_float64(A: torch.Tensor) -> torch.Tensor:
    """The tensor in float64; on the CPU where its device has no such type."""
    return (A.cpu() if A.device.type == "mps" else A).double()


def _quadratic_forms(A: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """a_i G a_i^T for the rows of A, [d]."""
    import torch

    step = max(1, ROWS_BYTES // (8 * A.shape[1]))
    parts = [((part @ gram) * part).sum(1) for part in A.split(step)]
    return torch.cat(parts).clamp_(min=0)


def _trace_of_square(M: torch.Tensor) -> torch.Tensor:
    """tr(M M), from the diagonal blocks and those above them: reading a block transposed is what takes the time."""
    if len(M) <= BLOCK:
        return (M * M.T).sum()
    half = len(M) // 2
    off_diagonal = 2 * (M[:half, half:] * M[half:, :half].T).sum()
    return off_diagonal + _trace_of_square(M[:half, :half]) + _trace_of_square(M[half:, half:])


def _norms(squares: torch.Tensor) -> np.ndarray:
    return np.sqrt(squares.cpu().double().numpy())


def _ranges(d: int, most: int) -> list[slice]:
    """Ranges of at most `most` rows that make up d rows."""
    n = -(-d // most)
    return [slice(d * k // n, d * (k + 1) // n) for k in range(n)]


def _fast_float64(device: torch.device) -> bool:
    import torch

    return device.type == "cpu" or (device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_FLOAT64)
