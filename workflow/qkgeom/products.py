"""What the scores need of M = A B^T, without holding M: the norms of its rows and columns, and tr(M M).

Two ways, the cheaper one for the shape is taken (A and B are [d, r]):

- Gram: row i has the squared norm a_i (B^T B) a_i^T, and tr(M M) = tr((B^T A)(B^T A)): 10 d r^2 operations. They are
  quadratic forms that may cancel, so they are always computed in float64.
- Tiles: M is computed tile by tile, a tile and its mirror image together: 2 d^2 r operations. A sum of squares does not
  cancel, so float32 does, unless the errors' estimate says otherwise. A CPU's matrix unit for bfloat16 (AMX) multiplies
  such numbers exactly and sums in float32: it does where B holds such numbers. A may hold sums of them, query heads that
  share a key head; each is split into two, which leaves next to nothing over.

Errors are estimated as one standard deviation of what rounding adds: a product of two rows of length r is off by about
eps |a_i| |b_j|, independently for each i and j; and by |e_i| |b_j| / sqrt(r) where e_i is left over of a_i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.device import bfloat16_products

if TYPE_CHECKING:
    import torch

SMALL = 1e8  # operations that take a millisecond: in float64 without asking
CPU_TILE_BYTES = 2**22
GPU_TILE_BYTES = 2**29
CPU_SLAB_BYTES, GPU_SLAB_BYTES = 2**20, 2**27  # rows of a tile that are summed at a time: on the CPU they stay in the cache
CPU_BLOCK, GPU_BLOCK = 192, 2048  # rows of a block that stays in the cache when it is read transposed
ALIGNMENT = 64  # tiles' rows are a multiple of it: products of other sizes are slower
PADDING = 16  # of a tile's rows: reading it transposed is slow where rows are a power of two apart
ROWS_BYTES = 2**26  # of a Gram product's intermediate results
FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}  # CUDA devices whose float64 runs at half the float32 rate or more
SLOW_FLOAT64_COST = 32
MATRIX_UNIT_COST = {1: 0.4, 2: 0.7}  # of tiles on the CPU's matrix unit, in the time of float32 ones, by parts of A; measured
SPLIT_BYTES = 2**18  # of A that is split at a time


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


def ways(
    d: int, r: int, device: torch.device, exact: bool, tile_bytes: int | None = None, bfloat16_parts: int = 0
) -> Iterator[Callable[..., Moments]]:
    """The functions (A, B, norms of A's rows, of B's rows) -> `Moments` for a shape: the cheapest, then more accurate ones.

    Args:
        d: rows of A and B.
        r: columns of A and B.
        device: where they are.
        exact: only float64.
        tile_bytes: how much memory a tile may take; by default what suits the device.
        bfloat16_parts: B holds such numbers, A's are sums of at most so many (1 or 2), and a matrix unit for them may be
            used; 0 if not.
    """
    import torch

    tile_bytes = tile_bytes or (CPU_TILE_BYTES if device.type == "cpu" else GPU_TILE_BYTES)
    float64_cost = 2 if _fast_float64(device) else SLOW_FLOAT64_COST
    in_float64, in_float32 = (partial(tiles, dtype=dtype, tile_bytes=tile_bytes) for dtype in (torch.float64, torch.float32))
    costs = {gram: float64_cost * 10 * d * r**2}
    if exact or 2 * d**2 * r <= SMALL:
        costs[in_float64] = float64_cost * 2 * d**2 * r
    else:
        costs[in_float32] = 2 * d**2 * r
        if bfloat16_parts:
            in_bfloat16 = partial(bfloat16_tiles, tile_bytes=tile_bytes, parts=bfloat16_parts)
            costs[in_bfloat16] = MATRIX_UNIT_COST[bfloat16_parts] * 2 * d**2 * r
    cheapest = min(costs, key=costs.get)
    yield cheapest
    if cheapest is not in_float64:
        yield in_float64


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
    return _of_tiles([A], B, a, b, torch.finfo(dtype).eps * a, tile_bytes)


@bfloat16_products()
def bfloat16_tiles(A: torch.Tensor, B: torch.Tensor, a: np.ndarray, b: np.ndarray, parts: int, tile_bytes: int) -> Moments:
    """The same of float32 matrices, of which B holds bfloat16 numbers, and A sums of so many: 1 or 2; on the matrix unit."""
    import torch

    a_error = torch.finfo(torch.float32).eps * a
    if parts == 1:
        return _of_tiles([A], B, a, b, a_error, tile_bytes)
    high, low, left_over = A.new_empty(A.shape), A.new_empty(A.shape), A.new_empty(len(A))
    rows = max(1, SPLIT_BYTES // (A.itemsize * A.shape[1]))
    for whole, first, second, norms in zip(*(each.split(rows) for each in (A, high, low, left_over)), strict=True):
        first.copy_(whole.bfloat16())
        rest = whole - first
        second.copy_(rest.bfloat16())
        torch.linalg.vector_norm(rest.sub_(second), dim=1, out=norms)
    a_error += left_over.double().numpy() / np.sqrt(A.shape[1])
    return _of_tiles([high, low], B, a, b, a_error, tile_bytes)


def _of_tiles(
    parts: Sequence[torch.Tensor], B: torch.Tensor, a: np.ndarray, b: np.ndarray, a_error: np.ndarray, tile_bytes: int
) -> Moments:
    """The moments of A B^T from its tiles.

    Args:
        parts: they add up to A, [d, r] each.
        B: [d, r].
        a: norms of A's rows, [d].
        b: norms of B's rows, [d].
        a_error: a product of a row of A and one of B is off by this times the norm of B's, [d].
        tile_bytes: memory of a tile.
    """
    import torch

    d, eps = len(B), torch.finfo(B.dtype).eps
    ranges = _ranges(d, max(ALIGNMENT, int((tile_bytes / B.itemsize) ** 0.5)))
    width = ranges[0].stop
    buffers = B.new_empty(2, width, width + PADDING)
    slab = _slab(buffers[0])
    by_row, by_column, traces = B.new_zeros(2, d), B.new_zeros(2, d), []  # of M, and of M transposed
    for k, first in enumerate(ranges):
        n_row = first.stop - first.start
        diagonal = buffers[:1, :n_row, :n_row]
        _add_products(((A[first], B[first]) for A in parts), diagonal[0])
        traces.append(_trace_of_square(diagonal[0]))
        _add_squares(diagonal, slab, by_row[:1, first], by_column[:1, first])
        for second in ranges[k + 1 :]:
            pair = buffers[:, :n_row, : second.stop - second.start]
            _add_products(((A[first], B[second]) for A in parts), pair[0])
            _add_products(((B[first], A[second]) for A in parts), pair[1])  # transposed, so that both lie alike in memory
            traces += [2 * torch.mul(*part).sum() for part in pair.split(slab, 1)]
            _add_squares(pair, slab, by_row[:, first], by_column[:, second])
    rows, columns = map(_norms, by_row + by_column.flip(0))
    fro = np.linalg.norm(rows)
    row_error, column_error = a_error * b.max() + eps * rows, b * a_error.max() + eps * columns
    trace = float(torch.stack(traces).cpu().double().sum())
    trace_error = fro * (a_error.max() * b.max() + 10 * eps * fro)  # a sum of a tile's numbers is off by up to 10 eps
    return Moments(rows, columns, trace, row_error, column_error, trace_error)


def _add_products(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], out: torch.Tensor) -> None:
    """Puts the sum of A B^T over the pairs there."""
    import torch

    for number, (A, B) in enumerate(pairs):
        if number == 0:
            torch.mm(A, B.T, out=out)
        else:
            out.addmm_(A, B.T)


def as_float64(A: torch.Tensor) -> torch.Tensor:
    """The tensor in float64; on the CPU where its device has no such type."""
    return (A.cpu() if A.device.type == "mps" else A).double()


def _quadratic_forms(A: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """a_i G a_i^T for the rows of A, [d]."""
    import torch

    step = max(1, ROWS_BYTES // (8 * A.shape[1]))
    parts = [((part @ gram) * part).sum(1) for part in A.split(step)]
    return torch.cat(parts).clamp_(min=0)


def _slab(M: torch.Tensor) -> int:
    """How many rows of M are worked on at a time."""
    return max(1, (CPU_SLAB_BYTES if M.is_cpu else GPU_SLAB_BYTES) // (M.itemsize * M.shape[1]))


def _add_squares(tiles: torch.Tensor, slab: int, by_row: torch.Tensor, by_column: torch.Tensor) -> None:
    """Adds the tiles' sums of squares over rows and over columns; leaves the tiles squared."""
    for part, sums in zip(tiles.split(slab, 1), by_row.split(slab, 1), strict=True):
        part.square_()
        sums += part.sum(2)
        by_column += part.sum(1)


def _trace_of_square(M: torch.Tensor) -> torch.Tensor:
    """tr(M M), from the diagonal blocks and those above them: reading a block transposed is what takes the time."""
    if len(M) <= (CPU_BLOCK if M.is_cpu else GPU_BLOCK):
        return (M * M.T).sum()
    half = len(M) // 2
    off_diagonal = 2 * (M[:half, half:] * M[half:, :half].T).sum()
    return off_diagonal + _trace_of_square(M[:half, :half]) + _trace_of_square(M[half:, half:])


def _norms(squares: torch.Tensor) -> np.ndarray:
    return np.sqrt(squares.cpu().double().numpy())


def _ranges(d: int, most: int) -> list[slice]:
    """Ranges of at most `most` rows that make up d rows: alike, but for the last, and aligned."""
    width = -(-d // -(-d // most))
    width = min(d, -(-width // ALIGNMENT) * ALIGNMENT)
    return [slice(start, min(start + width, d)) for start in range(0, d, width)]


def _fast_float64(device: torch.device) -> bool:
    import torch

    return device.type == "cpu" or (device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_FLOAT64)
