"""A snapshot's safetensors file, written group by group (layer by layer); what a killed writer left is taken up again.

Beside the unfinished file lies a journal: one line for what the file will be, then one per finished group with the
digests of its tensors. A later writer of the same file checks these and goes on after them. A writer holds a lock on its
file, so that two at a time write a file each; on a file system without locks nothing is taken up.
A finished file keeps its journal until `settle`, since the manifest comes last, after the other snapshots of a series.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from qkgeom.artifacts import StoredTensor
from qkgeom.containers.base import DTYPE_NAMES
from qkgeom.errors import QkgeomError, TransientFault
from qkgeom.files import locked, publish, refused, sweep

CHUNK = 2**22  # bytes put in order at a time
BLOCK = 64  # numbers of the last axis put in order at a time


@dataclass
class SnapshotFile:
    """An unfinished snapshot file.

    Attributes:
        groups: the tensors of each group, in order.
        entries: what was recorded with the groups that are in the file already.
        digests: sha256 of each stored tensor's bytes, by name.
    """

    groups: Sequence[Sequence[StoredTensor]]
    data: BinaryIO
    journal: BinaryIO
    entries: list[dict] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    def append(self, arrays: Sequence[np.ndarray], describe: Callable[[], dict]) -> None:
        """Writes the next group.

        Args:
            arrays: its tensors, as announced.
            describe: gives what is recorded with it, and given back to whoever takes the file up again; called in another
                thread while the group is written.

        Raises:
            QkgeomError: an array is not as announced.
        """
        group = self.groups[len(self.entries)]
        for tensor, array in zip(group, arrays, strict=True):
            if array.shape != tensor.shape or array.dtype != tensor.dtype:
                raise QkgeomError(
                    "a layout gave an array of another shape or type than it announced",
                    where=tensor.name,
                    found=f"{array.dtype} {list(array.shape)}",
                    expected=f"{tensor.dtype} {list(tensor.shape)}",
                )
        with ThreadPoolExecutor(1) as beside:
            described = beside.submit(describe)
            digests = {tensor.name: _write(self.data, array) for tensor, array in zip(group, arrays, strict=True)}
            entry = described.result()
        self.data.flush()
        self.journal.write(json.dumps({"entry": entry, "digests": digests}).encode() + b"\n")
        self.journal.flush()
        self.entries.append(entry)
        self.digests |= digests


@contextmanager
def snapshot_file(
    target: Path, groups: Sequence[Sequence[StoredTensor]], metadata: Mapping[str, str], identity: Mapping[str, object]
) -> Iterator[SnapshotFile]:
    """Writes a safetensors file that appears as `target` only when the block has ended and it is whole.

    Args:
        target: the file.
        groups: the tensors of each group, in order.
        metadata: the header's `__metadata__`.
        identity: what the content depends on; only a file of the same identity is taken up again.

    Raises:
        TransientFault: the disk refuses the write. What is written stays for the next try.
    """
    header = _header(groups, metadata)
    first_line = json.dumps({"identity": identity, "header": hashlib.sha256(header).hexdigest()}).encode() + b"\n"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target)
        _reopen(target)
        with ExitStack() as opened:
            path, file = _taken_up(target, groups, len(header), first_line, opened) or _new(
                target, groups, header, first_line, opened
            )
            try:
                yield file
                file.data.flush()
                shutil.copyfile(_journal_of(path), _settled_journal(target))
                publish(path, target)
            except (TransientFault, OSError):
                raise
            except Exception:  # it would fail again
                path.unlink(missing_ok=True)
                raise
            finally:
                if not path.exists():
                    _journal_of(path).unlink(missing_ok=True)
    except OSError as error:
        place = Path(error.filename) if error.filename is not None else target.parent
        if place not in target.parents and target.parent not in place.parents:
            raise  # an error of reading something else inside the block
        raise refused(target, error) from error


def settle(target: Path) -> None:
    """Forgets how a finished file came about: its manifest says all of it now."""
    _settled_journal(target).unlink(missing_ok=True)
    for journal in target.parent.glob(f".*.journal.{glob.escape(target.name)}"):
        if not journal.with_name(journal.name.replace(".journal.", ".partial.", 1)).exists():
            journal.unlink(missing_ok=True)  # of a writer that was killed when its file had just been published


def forget(target: Path) -> None:
    """Removes a finished file for good."""
    target.unlink(missing_ok=True)
    settle(target)


def _header(groups: Sequence[Sequence[StoredTensor]], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in (tensor for group in groups for tensor in group):
        header[tensor.name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format asks for an aligned start of the data
    return struct.pack("<Q", len(encoded)) + encoded


def _write(file: BinaryIO, array: np.ndarray) -> str:
    """Writes an array [d_model, head, d_head] in C order; gives the sha256 of its bytes.

    While one part is written the next is put in order and hashed.
    """
    digest = hashlib.sha256()

    def store(raw: memoryview) -> None:
        start = file.tell()
        file.write(raw)
        if hasattr(os, "posix_fadvise"):  # macOS has none
            # has the kernel begin to move it to the disk, so that there is little to wait for in the end
            os.posix_fadvise(file.fileno(), start, len(raw), os.POSIX_FADV_DONTNEED)

    numbers = array.view(f"u{array.itemsize}")  # numpy copies bfloat16 value by value
    rows = max(1, CHUNK * len(array) // array.nbytes)
    with ThreadPoolExecutor(1) as writer:
        last = writer.submit(int)
        for first in range(0, len(array), rows):
            raw = memoryview(_in_order(numbers[first : first + rows]).reshape(-1).view(np.uint8))
            digest.update(raw)
            last.result()  # no more than two parts in memory
            last = writer.submit(store, raw)
        last.result()
    return digest.hexdigest()


def _in_order(array: np.ndarray) -> np.ndarray:
    """The array in C order; a transposed one in narrow blocks, which is several times as fast as all at once."""
    if array.strides[-1] == array.itemsize:
        return np.ascontiguousarray(array)
    ordered = np.empty(array.shape, array.dtype)
    for head in range(array.shape[1]):
        for first in range(0, array.shape[2], BLOCK):
            block = np.s_[:, head, first : first + BLOCK]
            ordered[block] = array[block]
    return ordered


def _reopen(target: Path) -> None:
    """Makes a finished file without a manifest an unfinished one again."""
    journal, path = _settled_journal(target), _unfinished(target)
    if journal.exists() and target.exists():
        with suppress(FileNotFoundError):  # another process does the same
            journal.replace(_journal_of(path))
            target.replace(path)
    journal.unlink(missing_ok=True)


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{uuid.uuid4().hex[:12]}.partial.{target.name}")


def _new(
    target: Path, groups: Sequence[Sequence[StoredTensor]], header: bytes, first_line: bytes, opened: ExitStack
) -> tuple[Path, SnapshotFile]:
    path = _unfinished(target)
    unseen = path.with_name(path.name.replace(".partial.", ".tmp.", 1))  # until it is locked
    data = opened.enter_context(unseen.open("xb"))
    locked(data, without_locks=False)
    unseen.replace(path)
    journal = opened.enter_context(_journal_of(path).open("xb"))
    data.write(header)
    data.flush()
    journal.write(first_line)
    journal.flush()
    return path, SnapshotFile(groups, data, journal)


def _taken_up(
    target: Path, groups: Sequence[Sequence[StoredTensor]], start: int, first_line: bytes, opened: ExitStack
) -> tuple[Path, SnapshotFile] | None:
    """The file that a killed writer left, if its beginning is what we would write. Others that nobody writes are removed."""
    taken = None
    for path in sorted(target.parent.glob(f".*.partial.{glob.escape(target.name)}")):
        with suppress(FileNotFoundError), ExitStack() as files:
            data = files.enter_context(path.open("r+b"))
            if not locked(data, without_locks=False) or not os.path.samestat(os.fstat(data.fileno()), path.stat()):
                continue  # being written, or just finished
            journal = files.enter_context(_journal_of(path).open("r+b"))
            if taken is None and journal.readline() == first_line:
                taken = path, _checked(SnapshotFile(groups, data, journal), start)
                opened.push(files.pop_all())
                continue
        path.unlink(missing_ok=True)
        _journal_of(path).unlink(missing_ok=True)
    return taken


def _checked(file: SnapshotFile, start: int) -> SnapshotFile:
    """Keeps the groups whose bytes have the digests of the journal, and cuts both files after them."""
    file.data.seek(start)
    good = file.data.tell(), file.journal.tell()
    for group, line in zip(file.groups, file.journal, strict=False):
        try:
            noted = json.loads(line)
        except ValueError:  # cut short
            break
        digests = {tensor.name: _digest(file.data, tensor.nbytes) for tensor in group}
        if digests != noted["digests"]:
            break
        file.entries.append(noted["entry"])
        file.digests |= digests
        good = file.data.tell(), good[1] + len(line)
    for each, end in zip((file.data, file.journal), good, strict=True):
        each.seek(end)
        each.truncate()
    return file


def _digest(file: BinaryIO, size: int) -> str:
    """sha256 of the next bytes, of fewer where the file ends."""
    digest = hashlib.sha256()
    while size and (part := file.read(min(size, CHUNK))):
        digest.update(part)
        size -= len(part)
    return digest.hexdigest()


def _journal_of(path: Path) -> Path:
    return path.with_name(path.name.replace(".partial.", ".journal.", 1))


def _settled_journal(target: Path) -> Path:
    return target.with_name(f".{target.name}.journal")
