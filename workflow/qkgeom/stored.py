"""Scores of artifacts for the pipeline, in which no model's fault may stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from qkgeom import artifacts, unscored
from qkgeom.console import track
from qkgeom.dropping import drop
from qkgeom.errors import DiskFault, ModelFault, QkgeomError, TransientFault
from qkgeom.scoring import Row, write_scores

logger = logging.getLogger(__name__)


Faults = tuple[type[QkgeomError], ...]


def score_in_place(folders: Sequence[Path], scored: Callable[..., list[Row]], recorded: Faults, keep_weights: bool) -> None:
    """Scores artifacts in place; one that cannot be scored stops no other. For the arguments see `score_stored`.

    Raises:
        QkgeomError: the fault of the only one.
        TransientFault: names those of several that could not be scored.
    """
    faults = []
    for folder in folders:
        try:
            write_scores(folder / "scores.csv", score_stored(folder, scored, recorded))
            if not keep_weights:
                drop(folder, artifacts.read_manifest(folder))
        except QkgeomError as fault:
            if len(folders) == 1:
                raise
            logger.error("%s: %s", folder, fault)
            faults.append((folder, fault))
    if faults:
        raise TransientFault(
            f"{len(faults)} of {len(folders)} artifacts could not be scored",
            where=", ".join(str(folder) for folder, _ in faults),
            found="; ".join(fault.what for _, fault in faults),
            fix="mend them, or delete their manifests to extract them again; then run it again",
        )


def score_stored(folder: Path, scored: Callable[..., list[Row]], recorded: Faults) -> list[Row]:
    """The rows of an artifact: none for a model with a fault that is recorded, which a pipeline goes on without.

    Args:
        folder: the artifact.
        scored: gives its rows.
        recorded: faults that are recorded and not raised.
    """
    manifest = artifacts.read_manifest(folder)
    model = manifest["model"]
    if manifest["status"] == "failed":
        if not recorded:
            raise ModelFault("this model was not extracted, so it has no scores", where=folder, found=manifest["reason"])
        logger.warning("%s was not extracted, so it has no scores: %s", model, manifest["reason"])
        return []
    try:
        rows = scored(folder, progress=partial(track, label=f"score {model}"))
    except DiskFault:
        raise
    except recorded as fault:
        unscored.record(folder, str(fault))
        logger.error("%s cannot be scored, and the run goes on without it: %s", model, fault)
        return []
    unscored.clear(folder, scored=True)
    return rows
