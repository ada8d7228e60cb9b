"""Directories of remote files (safetensors headers, zip directories), kept on disk so that each is moved once.

A file of the cache is the sha256 of what follows, one line of JSON, then the ranges' bytes. What is damaged is ignored.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from qkgeom.errors import TransientFault
from qkgeom.files import whole_file
from qkgeom.sources.base import cache_folder


@dataclass
class Directory:
    """What is read of a file to open it.

    Attributes:
        etag: the storage server's tag of the file.
        ranges: (first byte, one past the last) -> bytes.
    """

    etag: str | None = None
    ranges: dict[tuple[int, int], memoryview] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(map(len, self.ranges.values()))


def load(key: str) -> Directory:
    """The directory of the file with this digest, empty if it is not here."""
    try:
        with _path(key).open("rb") as file:
            digest, content = file.read(32), file.read()
        if hashlib.sha256(content).digest() != digest:
            return Directory()
        line, _, rest = memoryview(content).tobytes().partition(b"\n")
        stated = json.loads(line)
        ranges, data = {}, memoryview(rest)
        for start, stop in stated["ranges"]:
            ranges[start, stop], data = data[: stop - start], data[stop - start :]
        return Directory(stated["etag"], ranges)
    except (OSError, ValueError, KeyError, TypeError):
        return Directory()


def save(key: str, directory: Directory) -> None:
    """Keeps a directory; a cache that cannot be written is done without."""
    line = json.dumps({"etag": directory.etag, "ranges": [list(each) for each in directory.ranges]}).encode() + b"\n"
    digest = hashlib.sha256(line)
    for view in directory.ranges.values():
        digest.update(view)
    with suppress(TransientFault, OSError), whole_file(_path(key)) as temporary, temporary.open("wb") as file:
        file.writelines([digest.digest(), line, *directory.ranges.values()])


def forget(key: str) -> Directory:
    """Removes a directory; gives an empty one."""
    with suppress(OSError):
        _path(key).unlink()
    return Directory()


def _path(key: str) -> Path:
    return cache_folder() / "hub" / "directories" / hashlib.sha256(key.encode()).hexdigest()
