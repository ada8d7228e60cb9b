"""Folders for files that are only needed while this process works; those of processes that were killed are removed."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qkgeom.errors import DiskFault
from qkgeom.files import locked

logger = logging.getLogger(__name__)
PREFIX = "qkgeom-scratch-"


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Gives a new folder that is gone afterwards, and is locked until then.

    Args:
        parent: where; `$TMPDIR`, or /tmp, by default.

    Raises:
        DiskFault: none can be made there.
    """
    try:
        parent = parent or Path(tempfile.gettempdir())
        _sweep(parent)
        folder, lock = _new(parent)
    except OSError as error:
        fix = "free disk space, or set TMPDIR to a folder with room, then run the same command again"
        raise DiskFault("a temporary folder cannot be made", where=parent, found=error, fix=fix) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _new(parent: Path) -> tuple[Path, int]:
    """A locked folder, and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        with suppress(FileNotFoundError):  # another process swept it before it was locked
            lock = os.open(folder, os.O_RDONLY)
            if locked(lock, without_locks=True) and folder.exists():
                return folder, lock
            os.close(lock)


def _sweep(parent: Path) -> None:
    """Removes the folders that nobody has locked; none on a file system without locks."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or gone
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                if os.fstat(lock).st_uid == os.getuid() and locked(lock, without_locks=False):
                    shutil.rmtree(folder)
                    logger.info("removed %s, which a killed process had left", folder)
            finally:
                os.close(lock)
