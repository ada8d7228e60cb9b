"""Whole files or none: write to a temporary name, fsync, rename."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from qkgeom.errors import DiskFault, UsageError

if TYPE_CHECKING:
    import pandas as pd

NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
os.umask(UMASK := os.umask(0))
STALE = 3600.0  # seconds after which a temporary file belongs to nobody


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Gives a temporary path beside `target` that becomes `target` only if the block ends without an error.

    Raises:
        UsageError: `target` is a folder.
        DiskFault: the folder or the disk refuses the write; `target` is then as it was before.
    """
    if target.is_dir():
        raise UsageError("a folder is where a file should be written", where=target, fix="name a file")
    # The name's end is kept, since libraries choose a format by it.
    temporary = target.with_name(f".{uuid.uuid4().hex[:12]}.tmp.{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target)
        yield temporary
        publish(temporary, target)
    except OSError as error:
        if error.filename is not None and Path(error.filename) not in (temporary, target, *target.parents):
            raise  # an error of reading something else inside the block
        raise refused(target, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def publish(temporary: Path, target: Path) -> None:
    """Gives a finished file its name, and makes sure that it is on the disk."""
    make_readable(temporary)
    sync(temporary)
    temporary.replace(target)
    sync(target.parent)


def refused(target: Path, error: OSError) -> DiskFault:
    """The error for a file that the folder or the disk refuses."""
    return DiskFault(
        f"cannot write {target.name}: {error.strerror or error}",
        where=target.parent,
        fix=("free disk space" if error.errno in NO_ROOM else "choose a path that can be written") + ", then run it again",
    )


def locked(file: IO[bytes] | int, without_locks: bool, shared: bool = False) -> bool:
    """Locks a file until it is closed, and says whether nobody else has it locked.

    Args:
        file: open, or the descriptor of a file or folder.
        without_locks: the answer on a file system that has no locks.
        shared: others may lock it, too, if they share it.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return without_locks
    return True


def wait_for_lock(file: IO[bytes]) -> None:
    """Locks a file until it is closed, when nobody else has it locked; not on a file system without locks."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


def make_readable(path: Path) -> None:
    """Gives a file the permissions of any new file; some libraries (safetensors) give theirs to the owner alone."""
    path.chmod(0o666 & ~UMASK)


def write_text(target: Path, text: str) -> None:
    """Writes a whole UTF-8 text file, or leaves `target` as it was."""
    with whole_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(target: Path, content: bytes) -> None:
    """Writes a whole file, or leaves `target` as it was."""
    with whole_file(target) as temporary:
        temporary.write_bytes(content)


def write_json(target: Path, value: object) -> None:
    """Writes `value` as indented JSON, keys in the order given."""
    write_text(target, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_csv(target: Path, table: pd.DataFrame) -> None:
    """Writes a table as csv with 9 significant digits."""
    write_text(target, table.to_csv(index=False, float_format="%.9g", lineterminator="\n"))


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sweep(target: Path) -> None:
    """Removes what a killed writer of `target` left."""
    for left in target.parent.glob(f".*.tmp.{glob.escape(target.name)}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()


def sync(path: Path) -> None:
    """Makes sure that a file or a folder's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
