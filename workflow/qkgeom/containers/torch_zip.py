"""torch's zip checkpoints (`pytorch_model.bin`, `.pt`), read by byte range: no tensor is loaded before it is asked for.

openai-whisper's `.pt` brings its sizes with it (`{"dims": {...}, "model_state_dict": {...}}`); they become the config.

torch.load on the meta device reads the zip directory and `data.pkl` only, with the weights_only unpickler, so that a
pickle cannot run code. Each storage then says where its bytes lie in the file. The archive's CRC is checked.

Source: torch/serialization.py, `_load.load_tensor` (`_checkpoint_offset`); a test pins this private attribute.
whisper/__init__.py, `load_model`.
"""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qkgeom.byte_files import ByteFile, Seekable
from qkgeom.containers.base import DTYPE_NAMES, DTYPES, Container, Reading, TensorInfo
from qkgeom.errors import ModelFault, QkgeomError

WRAPPERS = ("model_state_dict", "state_dict", "model", "module")  # keys under which tools hide the state dict
NAMES = {dtype.name: name for dtype, name in DTYPE_NAMES.items()}  # torch and numpy spell these alike
BLOCK = 2**16  # bytes read at once of the directory and the pickle


@dataclass(frozen=True)
class _Record:
    """A stored record of the archive: where its header begins, where the next thing begins, its bytes and their CRC32."""

    header: int
    limit: int
    size: int
    crc: int


@dataclass(frozen=True)
class _View:
    """A tensor as a strided view of its storage, all in elements."""

    offset: int
    stride: tuple[int, ...]


@dataclass
class TorchZip(Container):
    """A zip checkpoint; every read takes the whole storage, so that its CRC can be checked."""

    format = "torch"
    package = "torch"
    views: dict[str, _View] = field(default_factory=dict)
    crcs: dict[int, int] = field(default_factory=dict)

    def range_of(self, name: str, rows: tuple[int, int] | None = None) -> tuple[int, int]:
        """The whole storage of `name`, whatever the rows."""
        return super().range_of(name)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Reading:
        """Reads the whole storage of `name`, checks its CRC32, and returns the rows asked for."""
        whole = super().read(name)
        return Reading(whole.array[slice(*rows)] if rows else whole.array, whole.record)

    def decode(self, name: str, raw: memoryview, shape: tuple[int, ...]) -> np.ndarray:
        """Checks the CRC32 of a whole storage and takes the tensor's view of it."""
        info, view = self.tensors[name], self.views[name]
        if zlib.crc32(raw) != self.crcs[info.start]:
            raise ModelFault(
                "a torch checkpoint is damaged: the bytes of a tensor do not match the archive's checksum",
                where=f"{self}, tensor {name}",
                found=f"CRC32 {zlib.crc32(raw):08x}",
                expected=f"{self.crcs[info.start]:08x}",
                fix="fetch the file again",
            )
        dtype = DTYPES.get(info.dtype)
        if dtype is None:
            raise self.unreadable_dtype(name)
        flat = np.frombuffer(raw, dtype)
        strides = tuple(step * flat.itemsize for step in view.stride)
        return np.lib.stride_tricks.as_strided(flat[view.offset :], info.shape, strides, writeable=False)


def open_file(file: ByteFile) -> TorchZip:
    """Reads a zip checkpoint's directory and its pickle, and finds every tensor's bytes.

    Raises:
        ModelFault: not a whole archive, compressed members, or a pickle that needs more than tensors.
    """
    stream = io.BufferedReader(Seekable(file, BLOCK))
    records = _archive_records(file, stream)
    saved = _load(file, stream)
    container = TorchZip(file, {}, _config(saved))
    for name, tensor in _tensors(_state_dict(file, saved)):
        storage = tensor.untyped_storage()
        start = storage._checkpoint_offset
        stop = start + storage.nbytes()
        record = _record_at(records, start)
        if record is None or record.size != storage.nbytes() or stop > record.limit:
            raise _broken(file, f"tensor {name} at bytes {start} to {stop}, where the archive has no such record")
        dtype = str(tensor.dtype).removeprefix("torch.")
        container.tensors[name] = TensorInfo(tuple(tensor.shape), NAMES.get(dtype, dtype), start, stop)
        container.views[name] = _View(tensor.storage_offset(), tensor.stride())
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
                    raise _broken(file, f"record {entry.filename} is compressed", "stored records, as torch writes")
                records.append(_Record(entry.header_offset, limit, entry.file_size, entry.CRC))
                if entry.filename.endswith("/data.pkl"):
                    archive.read(entry)  # checks its CRC; torch does not, and a wrong stride would give wrong weights
    except (zipfile.BadZipFile, ValueError, RuntimeError, OSError, EOFError) as error:  # what zipfile does when lost
        raise _broken(file, str(error)) from error
    return records


def _record_at(records: Sequence[_Record], start: int) -> _Record | None:
    """The record whose bytes begin at `start`, somewhere behind its header."""
    position = bisect_left(records, start, key=lambda record: record.header)
    return records[position - 1] if position else None


def _load(file: ByteFile, stream: io.BufferedReader) -> object:
    import torch

    stream.seek(0)
    try:
        return torch.load(stream, map_location="meta", weights_only=True)
    except QkgeomError:  # of reading the bytes
        raise
    except pickle.UnpicklingError as error:
        raise ModelFault(
            "a checkpoint's pickle asks for more than tensors, so it was refused and nothing in it was run",
            where=file,
            found=str(error).splitlines()[-1].strip() if "Unsupported" not in str(error) else _unsupported(str(error)),
            expected="a state dict of tensors (torch.load with weights_only=True)",
            fix="use a safetensors version of this model",
        ) from error
    except Exception as error:  # the unpickler raises whatever a damaged pickle leads it to
        raise _broken(file, f"{type(error).__name__}: {error}".splitlines()[0]) from error


def _config(saved: object) -> dict[str, object]:
    dims = saved.get("dims") if isinstance(saved, Mapping) else None
    return {**dims, "model_type": "whisper_openai"} if isinstance(dims, Mapping) and "n_audio_state" in dims else {}


def _state_dict(where: object, saved: object) -> Mapping[str, object]:
    state = saved
    while isinstance(state, Mapping) and (inner := next((k for k in WRAPPERS if isinstance(state.get(k), Mapping)), None)):
        state = state[inner]
    if not isinstance(state, Mapping):
        raise _broken(where, f"a {type(state).__name__}", "a state dict")
    return state


def _tensors(state: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    import torch

    return ((str(name), value) for name, value in state.items() if isinstance(value, torch.Tensor))


def _unsupported(message: str) -> str:
    return next(line.strip() for line in message.splitlines() if "Unsupported" in line)


def _broken(where: object, found: str, expected: str = "a whole zip archive written by torch.save") -> ModelFault:
    return ModelFault(
        "a torch checkpoint is truncated or damaged",
        where=where,
        found=found,
        expected=expected,
        fix="fetch the file again",
    )
