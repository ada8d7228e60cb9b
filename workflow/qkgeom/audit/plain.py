"""Scores of a layer straight from their definitions (docs/definitions.md), in float64, with numpy and nothing else.

This is the other way to every score: it shares no code with what computes scores.csv, so that a fault there does not hide
itself. W_qk is multiplied out tile by tile, so that no more than a few tiles are in memory. Safetensors files are read here
too (https://github.com/huggingface/safetensors, README, "Format"), by memory map.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TILE = 512  # rows and columns
KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
NOISE = 64  # a matrix none of whose rows exceeds so many times what rounding makes is zero (docs/definitions.md)
NEAR = 1e-9  # a norm so near to its threshold, relative to it, may lie on either side
GAMMA = 2.0  # an outlier's norm exceeds mean + GAMMA * std
EQUAL = 1e-6  # norms that vary less, relative to their mean, are equal


@dataclass(frozen=True)
class Stored:
    """A tensor of a safetensors file: its type, shape and bytes, the last exclusive."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Scores:
    """The scores of one matrix, None where it has none.

    Attributes:
        near: a norm is so near to its threshold, or the norms are so nearly equal, that rounding decides who is an outlier.
    """

    symmetry: float | None
    directionality: float | None
    directionality_excess: float | None
    fro_norm: float | None
    n_row_outliers: int | None
    n_col_outliers: int | None
    status: str
    near: bool = False


class Factor:
    """A weight [d_model, head, d_head] whose rows are given in float64, a few at a time."""

    def __init__(self, values: np.ndarray, bfloat16: bool = False) -> None:
        self.values, self.bfloat16, self.shape = values, bfloat16, values.shape

    def rows(self, first: int, last: int) -> np.ndarray:
        """Rows `first` to `last`, [rows, head, d_head]."""
        part = np.asarray(self.values[first:last])
        if self.bfloat16:  # the upper half of a float32
            part = (part.astype(np.uint32) << 16).view(np.float32)
        return part.astype(np.float64)

    def head(self, number: int) -> Factor:
        """One head alone, [d_model, 1, d_head]."""
        return Factor(self.values[:, number : number + 1], self.bfloat16)

    def largest(self) -> float:
        """The largest absolute value; NaN or infinite if one is."""
        # numpy's maximum, since Python's passes over a NaN that is not the first
        return float(np.max([np.abs(self.rows(i, j)).max() for i, j in tiles(self.shape[0])]))


def tiles(size: int) -> Iterator[tuple[int, int]]:
    """Where tiles begin and end."""
    return ((first, min(first + TILE, size)) for first in range(0, size, TILE))


def read_header(path: Path) -> tuple[dict[str, Stored], dict[str, str], int]:
    """The tensors of a safetensors file, its metadata, and the place of its first byte of data.

    Raises:
        ValueError: this is no such file.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= path.stat().st_size - 8:
            raise ValueError(f"a header of {length} bytes is announced in {path.stat().st_size} bytes")
        header = json.loads(file.read(length))
    base = 8 + length
    try:
        metadata = header.pop("__metadata__", {})
        tensors = {
            name: Stored(each["dtype"], tuple(each["shape"]), *(base + int(end) for end in each["data_offsets"]))
            for name, each in header.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a header that cannot be read: {error!r}") from error
    return tensors, metadata, base


def factor(path: Path, tensor: Stored) -> Factor:
    """A tensor of a file; nothing is read yet."""
    values = np.memmap(path, KINDS[tensor.dtype], "r", tensor.start, tensor.shape)
    return Factor(values, tensor.dtype == "BF16")


def score(W_q: Factor, W_k: Factor) -> Scores:
    """The scores of the sum over heads of W_q,h W_k,g(h)^T; query head h reads key head h // (n_head / n_kv_head)."""
    q, k = W_q.largest(), W_k.largest()
    if not (math.isfinite(q) and math.isfinite(k)):
        return Scores(None, None, None, None, None, None, "not_finite")
    if q == 0 or k == 0:
        return Scores(None, None, None, 0.0, 0, 0, "zero")
    rows2, columns2, trace, noise = _moments(W_q, W_k, q, k)
    total = rows2.sum()
    if (np.sqrt(rows2) <= NOISE * noise).all():
        return Scores(None, None, None, 0.0, 0, 0, "zero")
    with np.errstate(over="ignore", under="ignore"):
        fro_norm = float(np.sqrt(total) * q * k)
    R, C = _outliers(np.sqrt(rows2)), _outliers(np.sqrt(columns2))
    near = R.near or C.near
    if R.number + C.number == 0:
        return Scores(trace / total, 0.0, 0.0, fro_norm, 0, 0, "no_outliers", near)
    directionality, excess = (R.total - C.total) / (R.total + C.total), (R.excess - C.excess) / (R.excess + C.excess)
    return Scores(trace / total, directionality, excess, fro_norm, R.number, C.number, "ok", near)


def _moments(W_q: Factor, W_k: Factor, q: float, k: float) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Squared norms of the rows and of the columns of M = W_qk / (q k), tr(M M), and what rounding makes of a zero row."""
    d = W_q.shape[0]
    rows2, columns2, trace, queries2, keys2 = np.zeros(d), np.zeros(d), 0.0, np.zeros(d), np.zeros(d)
    group = W_q.shape[1] // W_k.shape[1]

    def both(first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        Q = W_q.rows(first, last) / q
        K = np.repeat(W_k.rows(first, last) / k, group, axis=1)
        return Q.reshape(last - first, -1), K.reshape(last - first, -1)

    for i, i_end in tiles(d):
        Q_i, K_i = both(i, i_end)
        queries2[i:i_end], keys2[i:i_end] = (Q_i**2).sum(1), (K_i**2).sum(1)
        for j, j_end in tiles(d):
            if j < i:
                continue
            Q_j, K_j = (Q_i, K_i) if i == j else both(j, j_end)
            M_ij = Q_i @ K_j.T
            pairs = [(M_ij, i, i_end, j, j_end)]
            if i == j:
                trace += float((M_ij * M_ij.T).sum())
            else:
                M_ji = Q_j @ K_i.T
                pairs.append((M_ji, j, j_end, i, i_end))
                trace += 2 * float((M_ij * M_ji.T).sum())
            for M, row, row_end, column, column_end in pairs:
                rows2[row:row_end] += (M * M).sum(1)
                columns2[column:column_end] += (M * M).sum(0)
    return rows2, columns2, trace, np.finfo(float).eps * np.sqrt(queries2 * keys2.max())


@dataclass(frozen=True)
class _Outliers:
    """Sum of the norms beyond the threshold, sum of their excess over it, number, and whether rounding decides."""

    total: float
    excess: float
    number: int
    near: bool


def _outliers(norms: np.ndarray) -> _Outliers:
    mean = norms.mean()
    std = norms.std(ddof=1) if norms.size > 1 else 0.0
    if std <= EQUAL * mean:
        return _Outliers(0.0, 0.0, 0, std > EQUAL * mean / 2)
    threshold = mean + GAMMA * std
    beyond = norms[norms > threshold]
    near = bool((np.abs(norms - threshold) <= NEAR * threshold).any()) or std < 2 * EQUAL * mean
    return _Outliers(float(beyond.sum()), float((beyond - threshold).sum()), int(beyond.size), near)
