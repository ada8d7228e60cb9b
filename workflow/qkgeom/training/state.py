"""States to go on from: the Trainer's checkpoints, in `state/` of a run, with what defines the run beside them.

A checkpoint is trusted only if every file has the digest it was sealed with, and only by the very run that left it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from qkgeom.files import write_json
from qkgeom.training.snapshots import disk_faults, snapshot_folder

logger = logging.getLogger(__name__)
STATE, DEFINITION, SEAL = "state", "run.json", "sealed.json"
RECORD = "record.json"  # how a run ended
Definition = Mapping[str, object]


def seal_state(checkpoint: Path) -> None:
    """Writes the digests of a checkpoint's files, last of all."""
    write_json(checkpoint / SEAL, _digests(checkpoint))


def state_to_go_on_from(run: Path, definition: Definition, snapshots: Sequence[int]) -> Path | None:
    """The newest whole checkpoint of this very run; without one, everything in the run's folder is removed.

    Args:
        run: folder of the run.
        definition: all that its result depends on, as JSON; a checkpoint left under another one is not used.
        snapshots: steps whose snapshots a run that goes on must already have.

    Raises:
        TransientFault: the folder cannot be written.
    """
    checkpoint = last_whole_state(run / STATE) if _is_of(run / STATE, definition) else None
    if checkpoint is not None:
        missing = [step for step in snapshots if step <= step_of(checkpoint) and not snapshot_folder(run, step).is_dir()]
        if not missing:
            logger.info("%s: going on from step %d", run.name, step_of(checkpoint))
            return checkpoint
        logger.warning("%s: snapshots of steps %s are gone, so the run starts afresh", run, missing)
    with disk_faults(run):
        for name in (STATE, "snapshots"):
            if (run / name).exists():
                shutil.rmtree(run / name)
        for name in ("losses.csv", RECORD, "done.json"):
            (run / name).unlink(missing_ok=True)
    write_json(run / STATE / DEFINITION, definition)
    return None


def last_whole_state(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; damaged and unfinished ones are removed, with a warning."""
    for checkpoint in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True):
        try:
            sealed = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            sealed = None
        if sealed is not None and sealed == _digests(checkpoint):
            return checkpoint
        logger.warning("%s is damaged or unfinished and is not used", checkpoint)
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None


def step_of(checkpoint: Path) -> int:
    """The step after which the Trainer wrote a checkpoint, from its name."""
    return int(checkpoint.name.rpartition("-")[2])


def read_back(definition: Definition) -> dict[str, object]:
    """A definition as a file gives it back, to be compared with one."""
    return json.loads(json.dumps(definition))


def _is_of(folder: Path, definition: Definition) -> bool:
    """Whether the checkpoints in `folder` are of this run, with a warning if they are not."""
    if not folder.is_dir():
        return False
    wanted = read_back(definition)
    try:
        found = json.loads((folder / DEFINITION).read_text(encoding="utf-8"))
        others = [f"{key} was {found.get(key)}, is {value}" for key, value in wanted.items() if found.get(key) != value]
    except (OSError, ValueError, AttributeError):
        found, others = None, ["its record is damaged"]
    if found != wanted:
        logger.warning("%s is of another run (%s), so this one starts afresh", folder, "; ".join(others))
    return found == wanted


def _digests(checkpoint: Path) -> dict[str, str]:
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != SEAL)
    return {str(path.relative_to(checkpoint)): _digest(path) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
