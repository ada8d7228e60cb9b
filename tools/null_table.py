"""Simulates the directionalities of random W_qk, by shape: `python tools/null_table.py` rewrites qkgeom/null.csv (10 minutes).

The symmetry needs no table: `qkgeom.null` has its moments in closed form. Of M = A B^T, with A and B of shape [d, r] of
independent standard Gaussians, the directionalities are simulated in one of two ways:

- `direct`: from A and B themselves, for small shapes.
- `from_norms`: given B^T B, the squared row norms of M are d independent draws of sum_k lambda_k g_k^2, where lambda are
  the eigenvalues of B^T B; likewise the columns given A^T A. As M = U Sigma V^T with U and V independent, rows and columns
  are independent given Sigma, which varies little. The sum is drawn from the shifted gamma distribution of the same mean,
  variance and third cumulant, which the moments of the Wishart matrix B^T B give (Letac and Massam 2004).

Where both can be done they differ by less than 2 % in the standard deviation (tests/test_null.py).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np

TABLE = Path(__file__).parents[1] / "workflow" / "qkgeom" / "null.csv"
SEED = 20250210
D = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
R = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
SMALL = 8192  # d * r up to which M is drawn itself
COLUMNS = ("d", "r", "sd", "q95", "excess_sd", "excess_q95", "excess_kurtosis")


def main() -> None:
    """Writes the table, a row per shape."""
    shapes = list(product(D, R))
    with ProcessPoolExecutor() as pool, TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for shape, numbers in zip(shapes, pool.map(constants, *zip(*shapes, strict=True)), strict=True):
            writer.writerow([*shape, *(format(number, ".4g") for number in numbers)])


def constants(d: int, r: int) -> tuple[float, ...]:
    """A row of the table: of each directionality its standard deviation and the 95 % quantile of its size."""
    n = int(min(40_000, max(10_000, 3e7 / (d * (r if _small(d, r) else 1)))))
    plain, excess = simulate(d, r, n, np.random.default_rng([SEED, d, r]))
    kurtosis = np.mean(excess**4) / np.mean(excess**2) ** 2 if excess.any() else 3.0
    sizes = [number for each in (plain, excess) for number in (np.sqrt(np.mean(each**2)), np.quantile(abs(each), 0.95))]
    return (*sizes, kurtosis)


def simulate(d: int, r: int, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`n` draws of the directionality and of the directionality (excess) of a random W_qk."""
    draws = direct if _small(d, r) else from_norms
    parts = [directionalities(rows, columns) for rows, columns in draws(d, r, n, rng)]
    return tuple(np.concatenate(each)[:n] for each in zip(*parts, strict=True))


def direct(d: int, r: int, n: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row and column norms of A B^T, [matrices, d] each, in batches."""
    batch = max(1, 2**20 // (d * r))
    for _ in range(-(-n // batch)):
        A, B = rng.standard_normal((2, batch, d, r), dtype=np.float32)
        if r < d:
            squares = [((F @ (G.mT @ G)) * F).sum(2).clip(0) for F, G in ((A, B), (B, A))]
        else:
            M2 = (A @ B.mT) ** 2
            squares = [M2.sum(2), M2.sum(1)]
        yield np.sqrt(squares[0]), np.sqrt(squares[1])


def from_norms(d: int, r: int, n: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same up to scale, from the distribution of the norms alone."""
    first = r * d  # E tr W^k of W = B^T B, r x r
    second = r * d * (d + r + 1) / first**2
    third = r * d * (d**2 + r**2 + 3 * r * d + 3 * d + 3 * r + 4) / first**3
    shape = second**3 / (2 * third**2)  # of a gamma distribution of the same skewness
    batch = max(1, 2**20 // d)

    def norms() -> np.ndarray:
        standard = (rng.standard_gamma(shape, (batch, d)) - shape) / np.sqrt(shape)
        squares = np.maximum(1 + np.sqrt(2 * second) * standard, 0)
        return np.sqrt(squares / squares.sum(1, keepdims=True))  # rows and columns have the same sum of squares

    for _ in range(-(-n // batch)):
        yield norms(), norms()


def directionalities(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both directionalities from norms, [matrices, d] each."""
    (R, R_excess), (C, C_excess) = _outliers(rows), _outliers(columns)
    return _contrast(R, C), _contrast(R_excess, C_excess)


def _outliers(norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    threshold = norms.mean(1, keepdims=True) + 2 * norms.std(1, ddof=1, keepdims=True)
    stands_out = norms > threshold
    return (norms * stands_out).sum(1), ((norms - threshold) * stands_out).sum(1)


def _contrast(R: np.ndarray, C: np.ndarray) -> np.ndarray:
    both = R + C
    return np.divide(R - C, both, out=np.zeros_like(both), where=both > 0)


def _small(d: int, r: int) -> bool:
    return d * r <= SMALL


if __name__ == "__main__":
    main()
