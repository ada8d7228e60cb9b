"""Scores on a GPU: layers against the straightforward way, and whole models against the rate of copying them there.

Needs torch and nothing else. Layers are generated, in bf16; the straightforward way (`dense.py`) gets them in float32, on
the GPU already. Whole models come from pinned memory, of a few layers over and over, and are copied while others are
scored; what they are compared with is the rate at which one layer is copied alone. TF32 is off everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from dense import dense_head_scores, dense_scores
from figures import Figure
from qkgeom.device import full_precision
from qkgeom.engine import Engine
from qkgeom.errors import UsageError
from qkgeom.streaming import stream

ROUNDS, KEPT = 5, 3  # layers of a model that differ
BERT = (768, 12, 12, 64)  # d_model, n_head, n_kv_head, d_head
LLAMA_8B = (4096, 32, 8, 128)
LLAMA_405B = (16384, 128, 8, 128)
TINY, TINY_BERT = (64, 4, 2, 8), (64, 4, 4, 8)


def measure(tiny: bool) -> list[Figure]:
    """Ratios of speed.

    Raises:
        UsageError: there is no GPU.
    """
    if not tiny and not torch.cuda.is_available():
        raise UsageError(
            "this benchmark needs a CUDA GPU, and there is none",
            found=f"torch {torch.__version__} without CUDA device",
            fix="run it on a machine with one (16 GB of memory), or try it anywhere with --tiny",
        )
    device = torch.device("cpu" if tiny else "cuda")
    bert, small, large = (TINY_BERT, TINY, TINY) if tiny else (BERT, LLAMA_8B, LLAMA_405B)
    with full_precision():
        return [
            against_dense("layer of LLaMA-3-8B on a GPU", layer(small, device), 3.5),
            against_dense("all heads of a LLaMA-3-8B layer on a GPU", layer(small, device), 20, heads=True),
            against_product("layer of BERT-base on a GPU", layer(bert, device)),
            against_dense("layer of LLaMA-3.1-405B on a GPU", layer(large, device), 12),
            against_copying("LLaMA-3-8B from pinned memory", small, 2 if tiny else 32, device),
            against_copying("LLaMA-3.1-405B from pinned memory", large, 2 if tiny else 126, device),
        ]


def layer(shape: tuple[int, int, int, int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """W_q [d_model, n_head, d_head] and W_k [d_model, n_kv_head, d_head], Gaussian, in bf16."""
    d_model, n_head, n_kv_head, d_head = shape
    return tuple(torch.randn(d_model, n, d_head, device=device, dtype=torch.bfloat16) for n in (n_head, n_kv_head))


def against_dense(name: str, weights: tuple[torch.Tensor, torch.Tensor], target: float, heads: bool = False) -> Figure:
    """How many times faster than the straightforward way."""
    engine = Engine(heads)
    W_q, W_k = (W.float() for W in weights)

    def dense() -> None:
        dense_scores(W_q, W_k)
        for head in range(W_q.shape[1] if heads else 0):
            dense_head_scores(W_q, W_k, head)

    ours, theirs = in_turns(lambda: engine.score(*weights), dense)
    return Figure(name, theirs / ours, "x the dense way's speed", target, detail=f"ms: {1e3 * ours:.2f}, {1e3 * theirs:.2f}")


def against_product(name: str, weights: tuple[torch.Tensor, torch.Tensor]) -> Figure:
    """The time by that of the one product M = W_q W_k^T in float32."""
    engine = Engine()
    A, B = (W.float().flatten(1) for W in weights)
    ours, product = in_turns(lambda: engine.score(*weights), lambda: A @ B.T)
    detail = f"ms: {1e3 * ours:.2f}, {1e3 * product:.2f}"
    return Figure(name, ours / product, "x the product's time", 1.15, at_most=True, detail=detail)


def against_copying(name: str, shape: tuple[int, int, int, int], n_layer: int, device: torch.device) -> Figure:
    """The rate at which a model's layers are copied and scored, by that at which a layer is copied."""
    on_gpu = device.type == "cuda"
    layers = [tuple(W.cpu().pin_memory() if on_gpu else W for W in layer(shape, device)) for _ in range(KEPT)]
    there = [torch.empty_like(W, device=device) for W in layers[0]]
    size = sum(W.nbytes for W in layers[0])
    engine = Engine()

    def copy() -> None:
        for target, W in zip(there, layers[0], strict=True):
            target.copy_(W, non_blocking=True)

    def score() -> None:
        for weights in stream(lambda number: layers[number % KEPT], n_layer, device):
            engine.score(*weights)

    scoring, copying = in_turns(score, copy, rounds=2)
    rates = n_layer * size / scoring / 1e9, size / copying / 1e9
    detail = f"{scoring:.2f} s; GB/s: {rates[0]:.1f} against {rates[1]:.1f}"
    return Figure(name, rates[0] / rates[1], "of the copy rate", 0.8, detail=detail)


def in_turns(*works: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Median seconds of each, after a first time that does not count."""
    return [median(times[1:]) for times in zip(*([timed(work) for work in works] for _ in range(rounds + 1)), strict=True)]


def timed(work: Callable[[], object]) -> float:
    """Seconds until a GPU, too, has finished."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    started = perf_counter()
    work()
    wait()
    return perf_counter() - started
