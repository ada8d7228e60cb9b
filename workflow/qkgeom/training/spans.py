"""T5's denoising: spans of the text are replaced by sentinels, and the decoder writes what they stood for.

Half of the tokens in spans of 8 on average (T5 itself: 15 % in spans of 3), since a short training needs many targets;
always the same number of both, so that no batch needs padding.

Source: arXiv 1910.10683, section 3.1.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.training.sequences import IGNORED, Blocks
from qkgeom.training.tokens import Corpus

if TYPE_CHECKING:
    import torch

NOISE, MEAN_SPAN = 0.5, 8
START, END = "[PAD]", "[SEP]"  # T5's decoder starts with the padding token


def span_counts(length: int) -> tuple[int, int]:
    """Tokens of a sequence that are replaced, and spans they lie in; the sentinels are as many as the spans."""
    noise = max(1, round(NOISE * length))
    return noise, max(1, round(noise / MEAN_SPAN))


@dataclass(frozen=True)
class Spans(Blocks):
    """The batches of one run: `input_ids`, `decoder_input_ids` and `labels`.

    Attributes:
        corpus: the tokens; sentinel i has the id `vocab_size + i`.
        length: of a sequence of text.
        seed: of the order and of the spans.
    """

    corpus: Corpus
    length: int
    seed: int

    def heldout_batches(self, batch: int, most: int) -> list[dict[str, torch.Tensor]]:
        """At most `most` held-out batches, in which the text alone has a loss: the sentinels are easily guessed."""
        batches = super().heldout_batches(batch, most)
        for each in batches:
            each["labels"][each["labels"] >= self.corpus.vocab_size] = IGNORED
            each["labels"][:, -1] = IGNORED
        return batches

    def targets(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The labels."""
        return batch["labels"]

    def _batch(self, tokens: np.ndarray, seed: tuple[int, int]) -> dict[str, torch.Tensor]:
        import torch

        rng = np.random.default_rng(seed)
        sources, targets = zip(*(self._split(text, rng) for text in tokens), strict=True)
        labels = np.stack(targets)
        shifted = np.concatenate([np.full((len(labels), 1), self.corpus.special[START]), labels[:, :-1]], axis=1)
        batch = {"input_ids": np.stack(sources), "decoder_input_ids": shifted, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _split(self, text: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The text with sentinels for its spans, and the sentinels each with its span, then [SEP]."""
        noise, spans = span_counts(self.length)
        lengths = np.stack([_parts(self.length - noise, spans, rng), _parts(noise, spans, rng)], axis=1).reshape(-1)
        pieces = np.split(text, np.cumsum(lengths)[:-1])
        sentinels = [np.array([self.corpus.vocab_size + span]) for span in range(spans)]
        source = [piece for kept, sentinel in zip(pieces[::2], sentinels, strict=True) for piece in (kept, sentinel)]
        target = [piece for sentinel, taken in zip(sentinels, pieces[1::2], strict=True) for piece in (sentinel, taken)]
        return np.concatenate(source), np.concatenate([*target, [self.corpus.special[END]]])


def _parts(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`total` as a sum of `count` random positive numbers."""
    cuts = np.sort(rng.choice(np.arange(1, total), count - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [total]]))
