"""What every file format offers: tensor names, shapes, byte ranges, and reads of whole rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import ml_dtypes
import numpy as np

from qkgeom.errors import ModelFault

# Spelled as in the safetensors format (https://github.com/huggingface/safetensors, README, "Format").
DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
FLOAT8 = {"F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn)}  # numbers only together with a scale (qkgeom.float8)


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file.

    Attributes:
        shape: as published.
        dtype: `F32`, `F16`, `BF16`, `F64`, or the format's own name of another type (`I8`, `Q4_1`, ...).
        start: first byte in the file.
        stop: one past the last byte in the file.
    """

    shape: tuple[int, ...]
    dtype: str
    start: int
    stop: int


@dataclass(frozen=True)
class Reading:
    """Rows of a tensor as read from its file, with what proves it."""

    array: np.ndarray
    record: dict[str, object]


@dataclass
class Container:
    """A checkpoint file of one format. Rows are contiguous in every format, so any run of rows is one byte range.

    Attributes:
        path: the file.
        tensors: name -> where it lies.
        config: what the file itself says of the architecture, in config.json's words (GGUF), else empty.
        format: the format's name.
        package: the package that reads it, whose version the manifest records.
    """

    format: ClassVar[str] = "safetensors"
    package: ClassVar[str] = "numpy"
    path: Path
    tensors: Mapping[str, TensorInfo]
    config: dict[str, object] = field(default_factory=dict)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Reading:
        """Reads the rows `rows[0]` to `rows[1]` (all by default) of tensor `name`.

        Raises:
            ModelFault: the bytes end early, or hold a type that is not a real number format we read.
        """
        info = self.tensors[name]
        start, stop, shape = info.start, info.stop, info.shape
        if rows is not None:
            row_bytes = (info.stop - info.start) // info.shape[0]
            start, stop = info.start + rows[0] * row_bytes, info.start + rows[1] * row_bytes
            shape = (rows[1] - rows[0], *info.shape[1:])
        raw = self.read_bytes(name, start, stop)
        array = self.decode(name, raw, shape)
        record = {
            "tensor": name,
            "file": self.path.name,
            "dtype": info.dtype,
            "shape": list(info.shape),
            "bytes": [start, stop],
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
        return Reading(array, record)

    def read_bytes(self, name: str, start: int, stop: int) -> bytes:
        """Reads exactly the bytes `start` to `stop` of the file with plain reads (mmap is slow or missing on NFS)."""
        with self.path.open("rb") as file:
            raw = os.pread(file.fileno(), stop - start, start)
            while len(raw) < stop - start and (more := os.pread(file.fileno(), stop - start - len(raw), start + len(raw))):
                raw += more
        if len(raw) != stop - start:
            raise ModelFault(
                "a checkpoint file is truncated",
                where=f"{self.path}, tensor {name}",
                found=f"{start + len(raw)} bytes",
                expected=f"at least {stop} bytes",
                fix="fetch the file again",
            )
        return raw

    def decode(self, name: str, raw: bytes, shape: tuple[int, ...]) -> np.ndarray:
        """Turns the bytes of whole rows into an array of `shape`."""
        kind = self.tensors[name].dtype
        dtype = DTYPES.get(kind) or FLOAT8.get(kind)
        if dtype is None:
            raise self.unreadable_dtype(name)
        return np.frombuffer(raw, dtype).reshape(shape)

    def unreadable_dtype(self, name: str) -> ModelFault:
        """The error for a tensor stored as packed integers or another type without a plain numeric meaning."""
        return ModelFault(
            "a query or key weight is stored in a type that cannot be read as numbers",
            where=f"{self.path}, tensor {name}",
            found=self.tensors[name].dtype,
            expected=f"one of {', '.join(DTYPES)}, {', '.join(FLOAT8)} with its scales in a safetensors file, or a GGUF type "
            "that the gguf package dequantises",
            fix="use the unquantised checkpoint of this model",
        )
