"""The scoring engine on a GPU: layers against the dense way, and whole models against the rate of copying them there.

Needs torch and numpy, no more. A model is a few generated layers in bf16, over and over, in pinned memory; the next is copied
while one is scored. What that is compared with is the rate at which one layer is copied alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from against_dense import LLAMA_8B, LLAMA_405B, compare, dense_scores, faster, in_turns, weights
from figures import Figure
from qkgeom.device import full_precision
from qkgeom.engine import Engine
from qkgeom.scores import score_layer
from qkgeom.streaming import stream
from require_gpu import require_gpu

KEPT = 3  # layers of a model that lie in different memory


def measure(tiny: bool) -> list[Figure]:
    """Ratios of speed.

    Raises:
        UsageError: there is no GPU.
    """
    require_gpu(16, tiny)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with full_precision():
        return [
            *compare(device, tiny),
            of_405b(device, tiny),
            streamed("LLaMA-3-8B", LLAMA_8B, 32, device, tiny),
            streamed("LLaMA-3.1-405B", LLAMA_405B, 126, device, tiny),
        ]


def of_405b(device: torch.device, tiny: bool) -> Figure:
    """A layer of LLaMA-3.1-405B, stored in bfloat16."""
    stored = weights(LLAMA_405B, device, tiny, torch.bfloat16)
    dense = [W.float() for W in stored]
    times = in_turns(lambda: dense_scores(*dense), lambda: score_layer(*stored), 1 if tiny else 3)
    return faster("a layer of LLaMA-3.1-405B", *times, 12)


def streamed(name: str, shape: Sequence[int], n_layer: int, device: torch.device, tiny: bool) -> Figure:
    """The rate at which a model's layers are copied and scored, by the rate at which a layer is copied."""
    layer = [W.cpu() for W in weights(shape, device, tiny, torch.bfloat16)]
    layers = [[W.pin_memory() if device.type == "cuda" else W.clone() for W in layer] for _ in range(KEPT)]
    there = [torch.empty_like(W, device=device) for W in layer]
    engine = Engine()

    def copy() -> torch.Tensor:
        return [target.copy_(W, non_blocking=True) for target, W in zip(there, layers[0], strict=True)][-1]

    def score() -> None:
        for here in stream(lambda number: layers[number % KEPT], n_layer, device):
            engine.score(*here)

    copying, scoring = in_turns(copy, score, 1 if tiny else 3)
    size = sum(W.nbytes for W in layer) / 1e9
    detail = f"{scoring:.2f} s for {n_layer} layers; GB/s: {n_layer * size / scoring:.1f} against {size / copying:.1f}"
    return Figure(f"{name} from pinned memory", n_layer * copying / scoring, "of the copy rate", 0.8, detail=detail)
