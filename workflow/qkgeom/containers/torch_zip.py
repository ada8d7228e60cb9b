"""torch's zip checkpoints (`pytorch_model.bin`, `.pt`), read by byte range: no tensor is loaded before it is asked for.

openai-whisper's `.pt` brings its sizes with it (`{"dims": {...}, "model_state_dict": {...}}`); they become the config.

torch.load on the meta device reads the zip directory and `data.pkl` only, with the weights_only unpickler, so that a
pickle cannot run code. Each storage then says where its bytes lie in the file. The archive's CRC is checked.

Source: torch/serialization.py, `_load.load_tensor` (`_checkpoint_offset`); a test pins this private attribute.
whisper/__init__.py, `load_model`.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qkgeom.containers.base import DTYPE_NAMES, DTYPES, Container, Reading, TensorInfo
from qkgeom.errors import ModelFault

WRAPPERS = ("model_state_dict", "state_dict", "model", "module")  # keys under which tools hide the state dict
NAMES = {dtype.name: name for dtype, name in DTYPE_NAMES.items()}  # torch and numpy spell these alike


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

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Reading:
        """Reads the whole storage of `name`, checks its CRC32, and returns the rows asked for."""
        whole = super().read(name)
        return Reading(whole.array[slice(*rows)] if rows else whole.array, whole.record)

    def decode(self, name: str, raw: bytes, shape: tuple[int, ...]) -> np.ndarray:
        """Checks the CRC32 of a whole storage and takes the tensor's view of it."""
        info, view = self.tensors[name], self.views[name]
        if zlib.crc32(raw) != self.crcs[info.start]:
            raise ModelFault(
                "a torch checkpoint is damaged: the bytes of a tensor do not match the archive's checksum",
                where=f"{self.path}, tensor {name}",
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


def open_file(path: Path) -> TorchZip:
    """Reads a zip checkpoint's directory and its pickle, and finds every tensor's bytes.

    Raises:
        ModelFault: not a whole archive, compressed members, or a pickle that needs more than tensors.
    """
    records = _archive_records(path)
    saved = _load(path)
    container = TorchZip(path, {}, _config(saved))
    for name, tensor in _tensors(_state_dict(path, saved)):
        storage = tensor.untyped_storage()
        start = storage._checkpoint_offset
        stop = start + storage.nbytes()
        if records.get(start, (None, None))[0] != storage.nbytes():
            raise _broken(path, f"tensor {name} at bytes {start} to {stop}, where the archive has no such record")
        dtype = str(tensor.dtype).removeprefix("torch.")
        container.tensors[name] = TensorInfo(tuple(tensor.shape), NAMES.get(dtype, dtype), start, stop)
        container.views[name] = _View(tensor.storage_offset(), tensor.stride())
        container.crcs[start] = records[start][1]
    return container


def _archive_records(path: Path) -> dict[int, tuple[int, int]]:
    """Start byte of each stored record -> (bytes, CRC32)."""
    records = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for entry in archive.infolist():
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise _broken(path, f"record {entry.filename} is compressed", "stored records, as torch writes")
                file.seek(entry.header_offset + 26)  # the local header repeats the name and pads to align the data
                name_length, extra_length = (int.from_bytes(file.read(2), "little") for _ in range(2))
                start = entry.header_offset + 30 + name_length + extra_length
                records[start] = (entry.file_size, entry.CRC)
                if entry.filename.endswith("/data.pkl"):
                    archive.read(entry)  # checks its CRC; torch does not, and a wrong stride would give wrong weights
    except (zipfile.BadZipFile, ValueError, RuntimeError, OSError, EOFError) as error:  # what zipfile does when lost
        raise _broken(path, str(error)) from error
    return records


def _load(path: Path) -> object:
    import torch

    try:
        return torch.load(path, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelFault(
            "a checkpoint's pickle asks for more than tensors, so it was refused and nothing in it was run",
            where=path,
            found=str(error).splitlines()[-1].strip() if "Unsupported" not in str(error) else _unsupported(str(error)),
            expected="a state dict of tensors (torch.load with weights_only=True)",
            fix="use a safetensors version of this model",
        ) from error
    except Exception as error:  # the unpickler raises whatever a damaged pickle leads it to
        raise _broken(path, f"{type(error).__name__}: {error}".splitlines()[0]) from error


def _config(saved: object) -> dict[str, object]:
    dims = saved.get("dims") if isinstance(saved, Mapping) else None
    return {**dims, "model_type": "whisper_openai"} if isinstance(dims, Mapping) and "n_audio_state" in dims else {}


def _state_dict(path: Path, saved: object) -> Mapping[str, object]:
    state = saved
    while isinstance(state, Mapping) and (inner := next((k for k in WRAPPERS if isinstance(state.get(k), Mapping)), None)):
        state = state[inner]
    if not isinstance(state, Mapping):
        raise _broken(path, f"a {type(state).__name__}", "a state dict")
    return state


def _tensors(state: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    import torch

    return ((str(name), value) for name, value in state.items() if isinstance(value, torch.Tensor))


def _unsupported(message: str) -> str:
    return next(line.strip() for line in message.splitlines() if "Unsupported" in line)


def _broken(path: Path, found: str, expected: str = "a whole zip archive written by torch.save") -> ModelFault:
    return ModelFault(
        "a torch checkpoint is truncated or damaged",
        where=path,
        found=found,
        expected=expected,
        fix="fetch the file again",
    )
