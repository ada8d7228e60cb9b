"""What every corpus gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Documents:
    """The texts of a corpus.

    Attributes:
        texts: to be gone through once, always in the same order.
        origin: where they come from, for the corpus's record.
        streamed: whether they are downloaded as they are read, so that no more should be read than is needed.
    """

    texts: Iterable[str]
    origin: Mapping[str, object] = field(default_factory=dict)
    streamed: bool = False
