"""Files as byte ranges: what a source gives and a container reads, wherever the bytes lie."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from qkgeom.errors import ModelFault


class ByteFile(ABC):
    """A file whose bytes can be read in any order.

    Attributes:
        name: its name in the checkpoint.
        size: in bytes.
        identity: changes when the content does, as far as anyone can tell without reading it.
    """

    name: str
    size: int
    identity: str

    @abstractmethod
    def read(self, start: int, stop: int) -> memoryview:
        """Exactly the bytes `start` to `stop`.

        Raises:
            ModelFault: the file ends before.
            TransientFault: they cannot be fetched now.
        """

    @abstractmethod
    def local(self) -> Path:
        """The whole file on this machine, for formats that cannot be read by range."""

    def too_short(self, found: int, stop: int) -> ModelFault:
        """The error for a read beyond the file's end."""
        return ModelFault(
            "a checkpoint file is truncated",
            where=self,
            found=f"{found} bytes",
            expected=f"at least {stop} bytes",
            fix="fetch the file again",
        )


Wanted = tuple[ByteFile, int, int]  # bytes of a file: the first, and one past the last


def fetch_nothing(groups: Sequence[Sequence[Wanted]]) -> None:
    """What a source does ahead of reading whose files are here already."""


class LocalFile(ByteFile):
    """A file on this machine, read with plain reads (mmap is slow or missing on NFS)."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        found = path.stat()
        self.path, self.name, self.size = path, name or path.name, found.st_size
        self.identity = f"{path.resolve()} {found.st_size} {found.st_mtime_ns}"

    def __str__(self) -> str:
        return str(self.path)

    def local(self) -> Path:
        """The file itself."""
        return self.path

    def read(self, start: int, stop: int) -> memoryview:
        """Exactly the bytes `start` to `stop`."""
        view = empty(stop - start)
        with self.path.open("rb", buffering=0) as file:
            done = read_into(view, file, start)
        if done != len(view):
            raise self.too_short(start + done, stop)
        return view


class Seekable(io.RawIOBase):
    """A file in Python's sense over a `ByteFile`, read in blocks that are kept, so that small reads are few requests.

    Args:
        file: the file.
        block: bytes read at once at least.
    """

    def __init__(self, file: ByteFile, block: int) -> None:
        self.file, self.block, self.position = file, block, 0
        self.blocks: dict[int, memoryview] = {}

    def seekable(self) -> bool:
        """True."""
        return True

    def readable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset from the start, from here or from the end."""
        self.position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.file.size}[whence]
        return self.position

    def tell(self) -> int:
        """The position in bytes."""
        return self.position

    def readinto(self, target: memoryview) -> int:
        """Fills `target` up to the end of a block; gives the number of bytes, 0 at the end of the file."""
        if not 0 <= self.position < self.file.size:
            return 0
        number, within = divmod(self.position, self.block)
        if number not in self.blocks:
            self.blocks[number] = self.file.read(number * self.block, min((number + 1) * self.block, self.file.size))
        part = self.blocks[number][within : within + len(target)]
        target[: len(part)] = part
        self.position += len(part)
        return len(part)


def read_into(view: memoryview, file: BinaryIO, start: int) -> int:
    """Fills `view` with a file's bytes from `start` on; gives their number, less than asked for where the file ends."""
    done = 0
    while done < len(view) and (count := os.preadv(file.fileno(), [view[done:]], start + done)):
        done += count
    return done


def empty(size: int) -> memoryview:
    """A new buffer, not zeroed."""
    return memoryview(np.empty(size, np.uint8))
