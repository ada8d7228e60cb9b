"""Scores of artifacts for the pipeline, in which no model's fault may stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from qkgeom import artifacts, provenance, unscored
from qkgeom.console import track
from qkgeom.dropping import drop
from qkgeom.errors import DiskFault, ModelFault, QkgeomError, TransientFault
from qkgeom.scoring import Row, write_scores
from qkgeom.structure import NORMS, write_norms

logger = logging.getLogger(__name__)
Faults = tuple[type[QkgeomError], ...]


def score_in_place(
    folders: Sequence[Path], scored: Callable[..., list[Row]], recorded: Faults, keep_weights: bool, how: Mapping[str, object]
) -> None:
    """Scores artifacts in place; one that cannot be scored stops no other. For the arguments see the functions below.

    Raises:
        QkgeomError: the fault of the only one.
        TransientFault: names those of several that could not be scored.
    """
    faults = []
    for folder in folders:
        try:
            write_own_scores(folder, score_stored(folder, scored, recorded), how)
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


def write_own_scores(folder: Path, rows: Sequence[Row], how: Mapping[str, object]) -> None:
    """Writes an artifact's scores.csv and the record of how it was made.

    Args:
        folder: the artifact.
        rows: its rows; none of a model with a fault, which has norms of no layer.
        how: `parameters`, `device` and `threads` for the record.
    """
    scores = folder / "scores.csv"
    write_scores(scores, rows)
    if not rows and how["parameters"]["structure"]:  # the pipeline waits for the file
        write_norms(folder, {})
    outputs = [path for path in (scores, folder / NORMS) if path.exists()]
    provenance.write_record(
        provenance.beside(scores),
        "score",
        [folder / artifacts.MANIFEST],
        outputs,
        provenance.code_of("score"),
        ("numpy", "torch"),
        **how,
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
