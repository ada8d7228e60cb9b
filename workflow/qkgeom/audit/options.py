"""What an audit is asked to do."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")  # PEP 695 needs Python 3.12


@dataclass(frozen=True)
class Options:
    """How much is checked.

    Attributes:
        sample: layers of each model whose scores are derived anew; None for all of them.
        seed: of the choice.
        from_source: read the sources again too.
        most_bytes: larger checkpoints are not read again.
        results: the folder that holds `models/`, `runs/` and the presets.
        bundled: weights and pictures are not here, since this is a bundle.
    """

    results: Path
    sample: int | None = 2
    seed: int = 0
    from_source: bool = False
    most_bytes: float = 4e9
    bundled: bool = False

    def choose(self, items: Sequence[T], of: str) -> list[T]:
        """A sample of some items in their order, drawn for each model by itself.

        Args:
            items: to choose from.
            of: the model's id.
        """
        import numpy as np

        if self.sample is None or len(items) <= self.sample:
            return list(items)
        generator = np.random.default_rng([self.seed, zlib.crc32(of.encode())])
        return [items[number] for number in sorted(generator.choice(len(items), self.sample, replace=False))]
