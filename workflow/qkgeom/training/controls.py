"""Training examples of the theory's controls: the objective lies in the batch alone, so that one model can change it.

The model is bidirectional, and predicts the label at its own position. A batch for the next token has labels moved by one
and a causal mask; a prefix batch has a mask that lets the first half see itself both ways, and no loss within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.training.sequences import IGNORED, Blocks, Sequences
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Controlled(Blocks):
    """The batches of one objective: `input_ids`, `labels` and, but for the masked one, `attention_mask`.

    Attributes:
        corpus: the tokens.
        length: of a sequence.
        seed: of the order, of masks and of shuffling.
        objective: `masked`, `autoregressive` or `prefix`.
        shuffled: whether the tokens of each sequence come in random order.
    """

    corpus: Corpus
    length: int
    seed: int
    objective: str
    shuffled: bool = False

    def targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The labels, each at the position that predicts it."""
        return batch["labels"]

    def _batch(self, tokens: np.ndarray, seed: tuple[int, int]) -> dict[str, torch.Tensor]:
        import torch

        if self.shuffled:
            tokens = np.random.default_rng((*seed, 1)).permuted(tokens, axis=1)
        if self.objective == "masked":
            return Sequences(self.corpus, self.length, True, self.seed)._batch(tokens, seed)
        prefix = self.length // 2 if self.objective == "prefix" else 1
        labels = np.full_like(tokens, IGNORED)
        labels[:, prefix - 1 : -1] = tokens[:, prefix:]
        seen = np.tri(self.length, dtype=bool)
        seen[:prefix, :prefix] = True
        mask = np.broadcast_to(seen, (len(tokens), 1, *seen.shape)).copy()
        batch = {"input_ids": tokens, "labels": labels, "attention_mask": mask}
        return {name: torch.from_numpy(array) for name, array in batch.items()}


@dataclass(frozen=True)
class Swapped:
    """Batches whose objective changes in training; held-out ones have the second.

    Attributes:
        first: until the change.
        second: from then on.
        after: training examples before the change.
    """

    first: Controlled
    second: Controlled
    after: int

    @property
    def digest(self) -> str:
        """Of the corpus."""
        return self.first.digest

    def train_batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The training examples of these indices."""
        return (self.first if indices[0] < self.after else self.second).train_batch(indices)

    def heldout_batches(self, batch: int, most: int) -> list[dict[str, torch.Tensor]]:
        """At most `most` batches of held-out examples."""
        return self.second.heldout_batches(batch, most)

    def targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The labels."""
        return self.second.targets(batch)
