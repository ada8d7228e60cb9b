"""Training examples cut from a token file, each a function of (seed, index) alone, so that a resumed run sees the same.

Masked: 15 % of the tokens are predicted, of which 80 % are replaced by [MASK], 10 % by a random token, 10 % kept
(BERT). Autoregressive: every next token is predicted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.errors import UsageError
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    import torch

MASKED = 0.15
IGNORED = -100  # torch's label that has no loss


def shuffled(indices: Sequence[int], size: int, seed: int) -> list[int]:
    """Which of `size` examples each index stands for: every epoch takes each of them once, in an order of its own."""
    return [int(_order(seed, index // size, size)[index % size]) for index in indices]


@lru_cache(maxsize=2)  # a batch lies in one epoch, or on the border of two
def _order(seed: int, epoch: int, size: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(size)


def spread(size: int, most: int) -> np.ndarray:
    """At most `most` of the numbers below `size`, evenly spaced: neighbouring sequences are of one document."""
    return np.arange(0, size, -(-size // most))


def require_room(corpus: Corpus, length: int) -> None:
    """Checks that a corpus has sequences of this length.

    Raises:
        UsageError: it has none.
    """
    if len(corpus.train) < length or len(corpus.heldout) < length:
        raise UsageError(
            "a corpus is shorter than one sequence",
            where=corpus.name,
            found=f"{len(corpus.train)} training and {len(corpus.heldout)} held-out tokens",
            expected=f"at least {length} of each",
            fix="lower `length`, or raise `longest` of the corpora, in the preset",
        )


class Blocks(ABC):
    """Batches of the pieces of equal length that a corpus is cut into; what is made of a piece is up to the kind."""

    corpus: Corpus
    length: int
    seed: int

    def __post_init__(self) -> None:
        require_room(self.corpus, self.length)

    @property
    def digest(self) -> str:
        """Of the corpus."""
        return self.corpus.digest

    def train_batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The training examples of these indices."""
        places = shuffled(indices, len(self.corpus.train) // self.length, self.seed)
        return self._batch(self._texts(self.corpus.train, places), (self.seed, indices[0]))

    def heldout_batches(self, batch: int, most: int) -> list[dict[str, torch.Tensor]]:
        """At most `most` batches of held-out examples, the same for every run of a corpus."""
        ids = self.corpus.heldout
        places = spread(len(ids) // self.length, batch * most)
        return [self._batch(self._texts(ids, places[i : i + batch]), (0, i)) for i in range(0, len(places), batch)]

    def _texts(self, ids: np.ndarray, places: Sequence[int]) -> np.ndarray:
        """The pieces at these places, int64 [batch, length]."""
        return np.stack([ids[place * self.length : (place + 1) * self.length] for place in places]).astype(np.int64)

    @abstractmethod
    def _batch(self, tokens: np.ndarray, seed: tuple[int, int]) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True)
class Sequences(Blocks):
    """The batches of one run: `input_ids` and `labels`, [batch, length] each.

    Attributes:
        corpus: the tokens.
        length: of a sequence.
        masked: whether the objective is masked, else autoregressive.
        seed: of the order and of the masks.
    """

    corpus: Corpus
    length: int
    masked: bool
    seed: int

    def targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The labels; autoregressive without the first of a sequence, since the model shifts them."""
        return batch["labels"] if self.masked else batch["labels"][:, 1:]

    def _batch(self, tokens: np.ndarray, seed: tuple[int, int]) -> dict[str, torch.Tensor]:
        import torch

        labels = tokens.copy()
        if self.masked:
            rng = np.random.default_rng(seed)
            chance, kind = rng.random(tokens.shape), rng.random(tokens.shape)
            ordinary = ~np.isin(tokens, list(self.corpus.special.values()))
            # at least one, since the loss of none is NaN
            predicted = ordinary & (chance <= max(MASKED, chance.min(where=ordinary, initial=1.0)))
            labels[~predicted] = IGNORED
            tokens[predicted & (kind < 0.8)] = self.corpus.special["[MASK]"]
            random_tokens = self.corpus.ordinary[rng.integers(0, len(self.corpus.ordinary), tokens.shape)]
            tokens = np.where(predicted & (kind >= 0.9), random_tokens, tokens)
        return {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
