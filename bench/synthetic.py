"""Corpora of made-up tokens."""

from __future__ import annotations

import numpy as np

from qkgeom.training.tokens import SPECIAL, Corpus


def corpus_of(train: np.ndarray, heldout: np.ndarray, vocab_size: int) -> Corpus:
    """A corpus of these ids [n]; the special tokens come first, so that ids from `len(SPECIAL)` on stand for text."""
    return Corpus("synthetic", train, heldout, vocab_size, "", {token: i for i, token in enumerate(SPECIAL)})
