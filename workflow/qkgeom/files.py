"""Whole files or none: write to a temporary name, fsync, rename."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.errors import TransientFault

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Gives a temporary path beside `target` that becomes `target` only if the block ends without an error.

    Raises:
        TransientFault: the folder or the disk refuses the write; `target` is then as it was before.
    """
    # The name's end is kept, since libraries choose a format by it.
    temporary = target.with_name(f".{uuid.uuid4().hex[:12]}.tmp.{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    except OSError as error:
        if error.filename is not None and Path(error.filename) not in (temporary, target, *target.parents):
            raise  # an error of reading something else inside the block
        raise TransientFault(
            f"cannot write {target.name}: {error.strerror or error}",
            where=target.parent,
            fix="free disk space or choose a folder that can be written, then run the same command again",
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Writes a whole UTF-8 text file, or leaves `target` as it was."""
    with whole_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(target: Path, value: object) -> None:
    """Writes `value` as indented JSON, keys in the order given."""
    write_text(target, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_csv(target: Path, table: pd.DataFrame) -> None:
    """Writes a table as csv with 9 significant digits."""
    write_text(target, table.to_csv(index=False, float_format="%.9g", lineterminator="\n"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
