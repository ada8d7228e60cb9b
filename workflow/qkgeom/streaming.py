"""Layers one after another on the device that scores them: the next is read and copied while the present one is scored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Weights = tuple[torch.Tensor, torch.Tensor]  # W_q [d_model, n_head, d_head] and W_k [d_model, n_kv_head, d_head]

logger = logging.getLogger(__name__)


def stream(read: Callable[[int], Weights], count: int, device: torch.device) -> Iterator[Weights]:
    """Gives the layers 0 to `count` - 1 on `device`, never more than two of them in memory.

    A layer may be overwritten once the next is asked for: whatever is computed from it has to be finished then.

    Args:
        read: gives a layer's weights on the CPU, in pinned memory for a CUDA device; called in a thread. They have to
            stay as they are until the second call after.
        count: number of layers.
        device: where they are wanted. A layer that its memory cannot hold is given on the CPU.
    """
    if not count:
        return
    copies = _CudaCopies(device) if device.type == "cuda" else _Copies(device)
    with ThreadPoolExecutor(1, "layers") as thread:
        coming = thread.submit(lambda: copies.start(0, read(0)))
        for following in range(1, count + 1):
            layer = coming.result()
            if following < count:
                coming = thread.submit(lambda number=following: copies.start(number, read(number)))
            yield copies.wait(layer)


class _Copies:
    """Copies to a device that shares the memory, or that torch copies to in one go."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self, number: int, weights: Weights) -> Weights:
        """Copies layer `number`."""
        return tuple(W.to(self.device) for W in weights)

    def wait(self, layer: Weights) -> Weights:
        """The layer, which can be used now."""
        return layer


class _CudaCopies:
    """Copies from pinned memory to one of two places on a GPU in turn, on a stream beside the one that computes."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.places: list[Weights] = [(), ()]

    def start(self, number: int, weights: Weights) -> tuple[Weights, torch.cuda.Event | None]:
        """Starts to copy layer `number`; gives it and what tells that it has come."""
        import torch

        with torch.cuda.stream(self.stream):
            try:
                place = self._place(number % 2, weights)
            except torch.OutOfMemoryError:
                logger.warning("layer %d does not fit into the memory of %s; it is scored on the CPU", number, self.device)
                return weights, None
            for there, here in zip(place, weights, strict=True):
                there.copy_(here, non_blocking=True)
            return place, self.stream.record_event()

    def wait(self, layer: tuple[Weights, torch.cuda.Event | None]) -> Weights:
        """The layer, which the GPU uses only when it has come."""
        import torch

        weights, copied = layer
        if copied:
            torch.cuda.current_stream(self.device).wait_event(copied)
        return weights

    def _place(self, number: int, weights: Weights) -> Weights:
        """Memory on the GPU for such a layer: that of the layer before the last, if it was of the same shape and type."""
        import torch

        kind = [(W.shape, W.dtype) for W in weights]
        if [(W.shape, W.dtype) for W in self.places[number]] != kind:
            self.places[number] = ()  # frees it first
            self.places[number] = tuple(torch.empty_like(W, device=self.device) for W in weights)
        return self.places[number]
