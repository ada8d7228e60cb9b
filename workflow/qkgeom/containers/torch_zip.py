"""torch's zip checkpoints (`pytorch_model.bin`, `.pt`), read by byte range: no tensor is loaded before it is asked for.

torch.load on the meta device reads the zip directory and `data.pkl` only, with the weights_only unpickler, so that a
pickle cannot run code. Each storage then says where its bytes lie in the file. The archive's CRC is checked.

Source: torch/serialization.py, `_load.load_tensor` (`_checkpoint_offset`); a test pins this private attribute.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qkgeom.byte_files import ByteFile, Seekable
from qkgeom.containers.torch_file import TorchFile, broken, config_of, tensors_of, unpickled
from qkgeom.errors import ModelFault

BLOCK = 2**16  # bytes read at once of the directory and the pickle


@dataclass(frozen=True)
class _Record:
    """A stored record of the archive: where its header begins, where the next thing begins, its bytes and their CRC32."""

    header: int
    limit: int
    size: int
    crc: int


@dataclass
class TorchZip(TorchFile):
    """A zip checkpoint; every read takes the whole storage, so that its CRC can be checked."""

    crcs: dict[int, int] = field(default_factory=dict)

    def decode(self, name: str, raw: memoryview, shape: tuple[int, ...]) -> np.ndarray:
        """Checks the CRC32 of a whole storage and takes the tensor's view of it."""
        expected = self.crcs[self.tensors[name].start]
        if zlib.crc32(raw) != expected:
            raise ModelFault(
                "a torch checkpoint is damaged: the bytes of a tensor do not match the archive's checksum",
                where=f"{self}, tensor {name}",
                found=f"CRC32 {zlib.crc32(raw):08x}",
                expected=f"{expected:08x}",
                fix="fetch the file again",
            )
        return super().decode(name, raw, shape)


def open_file(file: ByteFile) -> TorchZip:
    """Reads a zip checkpoint's directory and its pickle, and finds every tensor's bytes.

    Raises:
        ModelFault: not a whole archive, compressed members, or a pickle that needs more than tensors.
    """
    stream = io.BufferedReader(Seekable(file, BLOCK))
    records = _archive_records(file, stream)
    saved = unpickled(file, lambda: _load(stream))
    container = TorchZip(file, {}, config_of(saved))
    for name, tensor in tensors_of(file, saved):
        storage = tensor.untyped_storage()
        start = storage._checkpoint_offset
        stop = start + storage.nbytes()
        record = _record_at(records, start)
        if record is None or record.size != storage.nbytes() or stop > record.limit:
            raise broken(file, f"tensor {name} at bytes {start} to {stop}, where the archive has no such record")
        container.add(name, tensor, start)
        container.crcs[start] = record.crc
    return container


def _archive_records(file: ByteFile, stream: io.BufferedReader) -> list[_Record]:
    """The archive's records in the order of their bytes, by its directory alone: a record's CRC proves its place."""
    records = []
    try:
        with zipfile.ZipFile(stream) as archive:
            entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
            limits = [entry.header_offset for entry in entries[1:]] + [archive.start_dir]
            for entry, limit in zip(entries, limits, strict=True):
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise broken(file, f"record {entry.filename} is compressed", "stored records, as torch writes")
                records.append(_Record(entry.header_offset, limit, entry.file_size, entry.CRC))
                if entry.filename.endswith("/data.pkl"):
                    archive.read(entry)  # checks its CRC; torch does not, and a wrong stride would give wrong weights
    except (zipfile.BadZipFile, ValueError, RuntimeError, OSError, EOFError) as error:  # what zipfile does when lost
        raise broken(file, str(error)) from error
    return records


def _record_at(records: Sequence[_Record], start: int) -> _Record | None:
    """The record whose bytes begin at `start`, somewhere behind its header."""
    position = bisect_left(records, start, key=lambda record: record.header)
    return records[position - 1] if position else None


def _load(stream: io.BufferedReader) -> object:
    import torch

    stream.seek(0)
    return torch.load(stream, map_location="meta", weights_only=True)
