"""A state dict in memory, offered like a file: torch tensors or numpy arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from qkgeom.containers.base import DTYPE_NAMES, Container, Reading, TensorInfo


@dataclass
class StateDict(Container):
    """Tensors that are already in memory."""

    values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return "a state dict in memory"

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Reading:
        """Rows of a tensor as a numpy array on the CPU."""
        if self.tensors[name].dtype not in DTYPE_NAMES.values():
            raise self.unreadable_dtype(name)
        value = self.values[name]
        array = value if isinstance(value, np.ndarray) else _to_numpy(value)
        array = np.ascontiguousarray(array[slice(*rows)] if rows else array)
        return Reading(array, memoryview(array.view(np.uint8)), {"tensor": name, "shape": list(self.tensors[name].shape)})


def from_state_dict(state: Mapping[str, object]) -> StateDict:
    """Wraps a state dict; values that are no tensors are left out."""
    tensors = {}
    for name, value in state.items():
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is not None:
            tensors[name] = TensorInfo(tuple(int(n) for n in shape), _dtype_name(dtype), 0, 0)
    return StateDict(None, tensors, values=state)


def _dtype_name(dtype: object) -> str:
    spelled = str(dtype).removeprefix("torch.")
    return next((name for kind, name in DTYPE_NAMES.items() if kind.name == spelled), spelled)


def _to_numpy(value: object) -> np.ndarray:
    import torch

    tensor = value.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
