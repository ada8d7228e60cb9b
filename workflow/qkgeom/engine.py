"""Scores layers where their weights are, and goes on when the memory there does not suffice."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from qkgeom.device import full_precision
from qkgeom.products import GPU_TILE_BYTES
from qkgeom.scores import Score, score_layer
from qkgeom.structure import Norms, Structure, layer_structure

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
SMALLEST_TILE = 2**20  # bytes; products of less are not worth a GPU


class Engine:
    """Scores layers, short of memory in smaller tiles, and at last on the CPU.

    Args:
        heads: also score every head.
        precision: `auto` or `float64`, see `score_layer`.
        alone: no other thread of this process multiplies matrices, see `score_factors`.
    """

    def __init__(self, heads: bool = False, precision: str = "auto", alone: bool = False) -> None:
        self.heads, self.precision, self.alone = heads, precision, alone
        self.tile_bytes: int | None = None  # what suits the device; smaller after it was too much, for all layers to come

    def score(self, W_q: torch.Tensor, W_k: torch.Tensor) -> dict[str, Score]:
        """Scores a layer, see `score_layer`.

        Raises:
            QkgeomError: the shapes do not belong together, or these are no floating-point numbers.
        """
        while (scores := self._try(W_q, W_k)) is None:
            smaller = (self.tile_bytes or GPU_TILE_BYTES) // 2
            if smaller >= SMALLEST_TILE:
                logger.warning("out of memory on %s; going on in tiles of %d MiB", W_q.device, smaller // 2**20)
                self.tile_bytes = smaller
            else:
                logger.warning("out of memory on %s; this layer is scored on the CPU", W_q.device)
                W_q, W_k = W_q.cpu(), W_k.cpu()
        return scores

    def structure(self, W_q: torch.Tensor, W_k: torch.Tensor) -> dict[str, tuple[Structure, Norms]]:
        """The structure of a layer, see `layer_structure`."""
        import torch

        try:
            return layer_structure(W_q, W_k, self.heads)
        except torch.OutOfMemoryError:
            if W_q.device.type == "cpu":
                raise
        logger.warning("out of memory on %s; this layer's structure is found on the CPU", W_q.device)
        return layer_structure(W_q.cpu(), W_k.cpu(), self.heads)

    def _try(self, W_q: torch.Tensor, W_k: torch.Tensor) -> dict[str, Score] | None:
        """The scores, or None where the GPU's memory did not suffice: the error is gone then, and what it held is free."""
        import torch

        try:
            with full_precision():
                return score_layer(W_q, W_k, self.heads, self.precision, self.tile_bytes, self.alone)
        except torch.OutOfMemoryError:
            if W_q.device.type == "cpu":
                raise
            return None
