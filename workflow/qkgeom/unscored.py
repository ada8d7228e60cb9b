"""A fault that keeps an artifact from being scored: recorded beside it, so that a pipeline goes on without it.

Such is the fault of weights that were dropped and are gone from their source. The manifest stays as it is, scores.csv is
written without rows, so that scores of older code do not pass for this one's, `check` names the model, and `retry` clears
the record. The scores that were there are kept under another name.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from qkgeom.errors import QkgeomError
from qkgeom.files import refused, write_json

RECORD = "unscored.json"
SCORES, EARLIER = "scores.csv", "scores.earlier.csv"


def record(folder: Path, reason: str) -> None:
    """Says why the artifact in `folder` has no scores; those that it had are set aside.

    Raises:
        TransientFault: the folder refuses it.
    """
    try:
        with suppress(FileNotFoundError):
            if (folder / SCORES).read_bytes().count(b"\n") > 1:
                (folder / SCORES).replace(folder / EARLIER)
    except OSError as error:
        raise refused(folder / EARLIER, error) from error
    if (folder / EARLIER).exists():
        reason += f"\n  its earlier scores are kept in {folder / EARLIER}"
    write_json(folder / RECORD, {"status": "failed", "reason": reason})


def reason(folder: Path) -> str | None:
    """Why an artifact has no scores; None if nothing is recorded.

    Raises:
        QkgeomError: the record cannot be read.
    """
    path = folder / RECORD
    try:
        return json.loads(path.read_text(encoding="utf-8"))["reason"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QkgeomError("a record cannot be read", where=path, found=error, fix="delete it and score again") from error


def clear(folder: Path, scored: bool = False) -> None:
    """Removes the record, and once the artifact is `scored` again also the scores that were set aside.

    Raises:
        TransientFault: the folder refuses it.
    """
    for name in (RECORD, EARLIER) if scored else (RECORD,):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise refused(folder / name, error) from error
