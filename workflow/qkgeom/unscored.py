"""A permanent fault that keeps an artifact from being scored: recorded beside it, so that a pipeline goes on without it.

Such is the fault of weights that were dropped and are gone from their source. The manifest stays as it is, scores.csv is
written without rows, so that no scores of older code remain, `check` names the model, and `retry` clears the record.
"""

from __future__ import annotations

import json
from pathlib import Path

from qkgeom.errors import QkgeomError
from qkgeom.files import refused, write_json

RECORD = "unscored.json"


def record(folder: Path, reason: str) -> None:
    """Says why the artifact in `folder` has no scores."""
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


def clear(folder: Path) -> None:
    """Removes the record.

    Raises:
        TransientFault: the folder refuses it.
    """
    try:
        (folder / RECORD).unlink(missing_ok=True)
    except OSError as error:
        raise refused(folder / RECORD, error) from error
