"""The scoring engine against the straightforward way: float32, K expanded to all heads, M = W_q W_k^T formed once.

Both take turns on the same weights and the same number of threads; the shortest times are compared. Needs only torch,
numpy and the engine, so that it runs on any machine with a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import torch

from figures import Figure
from qkgeom.scores import score_factors, score_layer

LLAMA_8B, LLAMA_405B, BERT_BASE = (4096, 32, 8, 128), (16384, 128, 8, 128), (768, 12, 12, 64)  # d, heads, key heads, d_head
ROUNDS = 5


def compare(device: torch.device, tiny: bool) -> list[Figure]:
    """The engine's speed on a layer of LLaMA-3-8B, its heads, and a layer of BERT-base."""
    rounds = 1 if tiny else ROUNDS
    W_q, W_k = weights(LLAMA_8B, device, tiny)
    heads = [(W_q[:, h], W_k[:, h * W_k.shape[1] // W_q.shape[1]]) for h in range(W_q.shape[1])]
    some = heads[:: max(1, len(heads) // 4)]  # the dense way takes as long for each
    layer = in_turns(lambda: dense_scores(W_q, W_k), lambda: score_layer(W_q, W_k), rounds)
    dense, ours = in_turns(
        lambda: [of_matrix(A @ B.T) for A, B in some], lambda: [score_factors(A, B) for A, B in heads], min(2, rounds)
    )
    bert = weights(BERT_BASE, device, tiny)
    product, scored = in_turns(lambda: bert[0].flatten(1) @ bert[1].flatten(1).T, lambda: score_layer(*bert), 20 * rounds)
    return [
        faster("a layer of LLaMA-3-8B", *layer, 3.5),
        faster("32 heads of LLaMA-3-8B", dense * len(heads) / len(some), ours, 20),
        Figure(
            "a layer of BERT-base",
            scored / product,
            "x the product M alone",
            1.15,
            True,
            f"ms: {1e3 * scored:.2f}, {1e3 * product:.2f}",
        ),
    ]


def faster(name: str, dense: float, ours: float, target: float) -> Figure:
    """How many times as fast as the dense way."""
    return Figure(name, dense / ours, "x faster than dense", target, detail=f"s: {ours:.3g} against {dense:.3g}")


def weights(shape: Sequence[int], device: torch.device, tiny: bool, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Random W_q and W_k of a layer, the same each time."""
    d, n_head, n_kv_head, d_head = (shape[0] // 16, *shape[1:3], shape[3] // 16) if tiny else shape
    generator = torch.Generator(device).manual_seed(0)
    return [
        torch.empty(d, heads, d_head, dtype=dtype, device=device).normal_(0, 0.02, generator=generator)
        for heads in (n_head, n_kv_head)
    ]


def in_turns(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The shortest seconds of two functions that are called in turns, after one call each."""
    times = [(seconds(one), seconds(other)) for _ in range(rounds + 1)][1:]
    first, second = zip(*times, strict=True)
    return min(first), min(second)


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes; its result, as the engine's, is a number that the host has, or a GPU is waited for."""
    started = perf_counter()
    result = function()
    if isinstance(result, torch.Tensor) and result.is_cuda:
        torch.cuda.synchronize(result.device)
    return perf_counter() - started


def dense_scores(W_q: torch.Tensor, W_k: torch.Tensor) -> tuple[float, float, float]:
    """The baseline: symmetry and both directionalities of a layer, word for word.

    Args:
        W_q: [d_model, n_head, d_head], float32.
        W_k: [d_model, n_kv_head, d_head], float32.
    """
    K = W_k.repeat_interleave(W_q.shape[1] // W_k.shape[1], dim=1)
    return of_matrix(W_q.flatten(1) @ K.flatten(1).T)


def of_matrix(M: torch.Tensor) -> tuple[float, float, float]:
    """Symmetry, directionality and its excess form of a matrix [d, d]."""
    S, N = (M + M.T) / 2, (M - M.T) / 2
    symmetry = (S.norm() ** 2 - N.norm() ** 2) / M.norm() ** 2
    (R, R_excess), (C, C_excess) = outliers(M.norm(dim=1)), outliers(M.norm(dim=0))
    return float(symmetry), float((R - C) / (R + C)), float((R_excess - C_excess) / (R_excess + C_excess))


def outliers(norms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the norms beyond mean + 2 std, and of their excess."""
    threshold = norms.mean() + 2 * norms.std()
    beyond = norms[norms > threshold]
    return beyond.sum(), (beyond - threshold).sum()
