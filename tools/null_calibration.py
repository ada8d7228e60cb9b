"""How often untrained models are called `not random`: `python tools/null_calibration.py [models per initialisation]`.

Models of random shape (d 32 to 256, 1 to 12 layers, grouped queries too) are drawn in the initialisations that libraries
use, none of which built the null model's table, and scored by the code that scores everything else. A second table
shows the other error: models whose keys resemble their queries a little, as training makes them, called `untrained`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import torch
from torch import nn

from qkgeom.scores import score_layer
from qkgeom.untrained import ALPHA, p_value

WIDTHS = (32, 48, 64, 96, 128, 192, 256)
HEAD_SIZES = (8, 16, 32, 64)
GROUPS = (1, 1, 2, 4)  # query heads per key head, most models have as many of both
# each fills a weight as nn.Linear stores it, [heads * d_head, d_model]; the layer's number is for those that scale by depth
INITIALISATIONS: dict[str, Callable[[torch.Tensor, int], object]] = {
    "normal": lambda weight, layer: nn.init.normal_(weight, std=0.02),
    "normal, smaller in deeper layers": lambda weight, layer: nn.init.normal_(weight, std=0.02 / (2 * layer + 2) ** 0.5),
    "truncated normal": lambda weight, layer: nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04),
    "Xavier uniform": lambda weight, layer: nn.init.xavier_uniform_(weight),
    "Kaiming uniform (torch's Linear)": lambda weight, layer: nn.init.kaiming_uniform_(weight, a=5**0.5),
    "orthogonal": lambda weight, layer: nn.init.orthogonal_(weight),
}


def main() -> None:
    """Prints both tables."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print_row = "{:36} {:>7} {:>12} {:>12} {:>12}".format
    sys.stdout.write(print_row("initialisation", "models", f"p < {ALPHA}", "p < 0.05", "p > 0.95") + "\n")
    for seed, name in enumerate(INITIALISATIONS):
        p = p_values(name, n, seed)
        shares = [f"{np.mean(p < ALPHA):.4f}", f"{np.mean(p < 0.05):.4f}", f"{np.mean(p > 0.95):.4f}"]
        sys.stdout.write(print_row(name, n, *shares) + "\n")
    print_row = "{:>22} {:>7} {:>20} {:>24}".format
    sys.stdout.write("\n" + print_row("keys = queries, part of", "models", "symmetry, median", "still called untrained") + "\n")
    for part in (0.05, 0.1, 0.2, 0.3):
        rows = [model("normal", np.random.default_rng([100, seed]), part) for seed in range(n // 4)]
        missed = np.mean([p_value(each) >= ALPHA for each in rows])
        symmetry = np.median(np.concatenate([each["symmetry"] for each in rows]))
        sys.stdout.write(print_row(part, n // 4, f"{symmetry:.4f}", f"{missed:.3f}") + "\n")


def p_values(initialisation: str, n: int, seed: int) -> np.ndarray:
    """The p-values of `n` untrained models."""
    return np.array([p_value(model(initialisation, np.random.default_rng([seed, each]))) for each in range(n)])


def model(initialisation: str, rng: np.random.Generator, part: float = 0.0) -> pd.DataFrame:
    """Scores of one model of random shape, a row per layer.

    Args:
        initialisation: of `INITIALISATIONS`.
        rng: for the shape and the weights.
        part: how much of the keys is their group's queries, 0 to 1.
    """
    d_model = int(rng.choice(WIDTHS))
    d_head = int(rng.choice([size for size in HEAD_SIZES if size <= d_model // 2]))
    n_head = d_model // d_head
    group = int(rng.choice([size for size in GROUPS if n_head % size == 0]))
    torch.manual_seed(int(rng.integers(2**63)))
    fill = INITIALISATIONS[initialisation]
    layers = weights(fill, (d_model, n_head, d_head, group), int(rng.integers(1, 13)), part)
    sizes = {"head": "all", "d_model": d_model, "n_kv_head": n_head // group, "d_head": d_head}
    return pd.DataFrame([{**sizes, **vars(score_layer(*pair)["all"])} for pair in layers])


def weights(
    fill: Callable[[torch.Tensor, int], object], shape: tuple[int, int, int, int], n_layers: int, part: float
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """W_q and W_k of each layer; shape is d_model, n_head, d_head and query heads per key head."""
    d_model, n_head, d_head, group = shape
    for layer in range(n_layers):
        W_q, W_k = (torch.empty(heads * d_head, d_model) for heads in (n_head, n_head // group))
        fill(W_q, layer)
        fill(W_k, layer)
        W_q, W_k = (W.T.unflatten(1, (-1, d_head)) for W in (W_q, W_k))
        yield W_q, (1 - part**2) ** 0.5 * W_k + part * W_q.unflatten(1, (-1, group)).sum(2) / group**0.5


if __name__ == "__main__":
    main()
