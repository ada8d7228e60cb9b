"""Results from the future, left by a clock that was put back: they would be newer than whatever is made of them now.

Snakemake refuses an output that is older than its input, at every run until the clock has passed that time.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)
INPUTS_FIRST = (
    *("*/corpora/tokenizer.json", "*/corpora/*/corpus.json", "runs/*/done.json", "models/*/manifest.json"),
    *("models/*/scores.csv", "*/collected/*.csv", "*/figures/*", "*/tables/*"),
)


def bring_into_the_present(results: Path) -> None:
    """Gives the pipeline's files that are from the future the present time, each before what is made of it."""
    for pattern in INPUTS_FIRST:
        for path in results.glob(pattern):
            with suppress(OSError):  # another user's, or gone
                if path.stat().st_mtime > time.time():
                    os.utime(path)
                    logger.warning("%s was from the future", path)
