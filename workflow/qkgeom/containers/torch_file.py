"""What torch's two file formats share: a state dict of strided views of storages, and a pickle that may only name tensors.

openai-whisper's `.pt` brings its sizes with it (`{"dims": {...}, "model_state_dict": {...}}`); they become the config.
Source: whisper/__init__.py, `load_model`.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from qkgeom.containers.base import DTYPE_NAMES, DTYPES, Container, Reading, TensorInfo
from qkgeom.errors import ModelFault, QkgeomError

WRAPPERS = ("model_state_dict", "state_dict", "model", "module")  # keys under which tools hide the state dict
NAMES = {dtype.name: name for dtype, name in DTYPE_NAMES.items()}  # torch and numpy spell these alike


@dataclass(frozen=True)
class _View:
    """A tensor as a strided view of its storage, all in elements."""

    offset: int
    stride: tuple[int, ...]


@dataclass
class TorchFile(Container):
    """A checkpoint written by torch.save; every read takes a whole storage."""

    format = "torch"
    package = "torch"
    views: dict[str, _View] = field(default_factory=dict)

    def add(self, name: str, tensor: object, start: int) -> None:
        """Notes a tensor whose storage begins at byte `start`."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        stop = start + tensor.untyped_storage().nbytes()
        self.tensors[name] = TensorInfo(tuple(tensor.shape), NAMES.get(dtype, dtype), start, stop)
        self.views[name] = _View(tensor.storage_offset(), tensor.stride())

    def range_of(self, name: str, rows: tuple[int, int] | None = None) -> tuple[int, int]:
        """The whole storage of `name`, whatever the rows."""
        return super().range_of(name)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Reading:
        """Reads the whole storage of `name` and returns the rows asked for."""
        whole = super().read(name)
        return replace(whole, array=whole.array[slice(*rows)]) if rows else whole

    def decode(self, name: str, raw: memoryview, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor's view of a whole storage."""
        info, view = self.tensors[name], self.views[name]
        dtype = DTYPES.get(info.dtype)
        if dtype is None:
            raise self.unreadable_dtype(name)
        flat = np.frombuffer(raw, dtype)
        strides = tuple(step * flat.itemsize for step in view.stride)
        return np.lib.stride_tricks.as_strided(flat[view.offset :], info.shape, strides, writeable=False)


def unpickled(where: object, load: Callable[[], object]) -> object:
    """What `load` gives, with the unpickler's errors as ours.

    Raises:
        ModelFault: the pickle is damaged, or asks for more than tensors.
    """
    try:
        return load()
    except QkgeomError:  # of reading the bytes
        raise
    except pickle.UnpicklingError as error:
        raise ModelFault(
            "a checkpoint's pickle asks for more than tensors, so it was refused and nothing in it was run",
            where=where,
            found=_asked_for(str(error)),
            expected="a state dict of tensors (torch.load with weights_only=True)",
            fix="use a safetensors version of this model",
        ) from error
    except Exception as error:  # the unpickler raises whatever a damaged pickle leads it to
        raise broken(where, f"{type(error).__name__}: {error}".splitlines()[0]) from error


def config_of(saved: object) -> dict[str, object]:
    """What an openai-whisper checkpoint says of its architecture."""
    dims = saved.get("dims") if isinstance(saved, Mapping) else None
    return {**dims, "model_type": "whisper_openai"} if isinstance(dims, Mapping) and "n_audio_state" in dims else {}


def tensors_of(where: object, saved: object) -> Iterator[tuple[str, object]]:
    """The tensors of what was saved, by name, wherever tools hide them.

    Raises:
        ModelFault: it is no state dict.
    """
    import torch

    state = saved
    while isinstance(state, Mapping) and (inner := next((k for k in WRAPPERS if isinstance(state.get(k), Mapping)), None)):
        state = state[inner]
    if not isinstance(state, Mapping):
        raise broken(where, f"a {type(state).__name__}", "a state dict")
    return ((str(name), value) for name, value in state.items() if isinstance(value, torch.Tensor))


def broken(where: object, found: str, expected: str = "a whole file written by torch.save") -> ModelFault:
    """The error for a file that is not what torch wrote."""
    return ModelFault(
        "a torch checkpoint is truncated or damaged",
        where=where,
        found=found,
        expected=expected,
        fix="fetch the file again",
    )


def _asked_for(message: str) -> str:
    """What the unpickler refused, out of torch's advice on how to load it all the same."""
    if match := re.search(r"GLOBAL (\S+)", message):
        return f"the global {match[1]}"
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("Check the documentation")]
    return lines[-1].removeprefix("WeightsUnpickler error: ") if lines else "no details"
