"""What every file format offers: tensor names, shapes, byte ranges, and reads of whole rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import ml_dtypes
import numpy as np

from qkgeom.byte_files import ByteFile
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
    """Rows of a tensor as read from its file, with what proves it.

    Attributes:
        array: of the rows' shape.
        raw: the bytes that were read for it.
        origin: what was read, from where.
    """

    array: np.ndarray
    raw: memoryview
    origin: dict[str, object]

    def record(self) -> dict[str, object]:
        """Its origin and the sha256 of its bytes, which is computed now: not everyone wants it, or wants to wait for it."""
        return {**self.origin, "sha256": hashlib.sha256(self.raw).hexdigest()}


@dataclass
class Container:
    """A checkpoint file of one format. Rows are contiguous in every format, so any run of rows is one byte range.

    Attributes:
        file: where its bytes are.
        tensors: name -> where it lies.
        config: what the file itself says of the architecture, in config.json's words (GGUF), else empty.
        format: the format's name.
        package: the package that reads it, whose version the manifest records.
    """

    format: ClassVar[str] = "safetensors"
    package: ClassVar[str] = "numpy"
    file: ByteFile
    tensors: Mapping[str, TensorInfo]
    config: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.file)

    def range_of(self, name: str, rows: tuple[int, int] | None = None) -> tuple[int, int]:
        """The bytes that `read` takes for the same tensor and rows: the first, and one past the last."""
        info = self.tensors[name]
        if rows is None:
            return info.start, info.stop
        row_bytes = (info.stop - info.start) // info.shape[0]
        return info.start + rows[0] * row_bytes, info.start + rows[1] * row_bytes

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Reading:
        """Reads the rows `rows[0]` to `rows[1]` (all by default) of tensor `name`.

        Raises:
            ModelFault: the bytes end early, or hold a type that is not a real number format we read.
            TransientFault: they cannot be fetched now.
        """
        info = self.tensors[name]
        start, stop = self.range_of(name, rows)
        raw = self.file.read(start, stop)
        shape = info.shape if rows is None else (rows[1] - rows[0], *info.shape[1:])
        origin = {
            "tensor": name,
            "file": self.file.name,
            "dtype": info.dtype,
            "shape": list(info.shape),
            "bytes": [start, stop],
        }
        return Reading(self.decode(name, raw, shape), raw, origin)

    def decode(self, name: str, raw: memoryview, shape: tuple[int, ...]) -> np.ndarray:
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
            where=f"{self}, tensor {name}",
            found=self.tensors[name].dtype,
            expected=f"one of {', '.join(DTYPES)}, {', '.join(FLOAT8)} with its scales in a safetensors file, or a GGUF type "
            "that the gguf package dequantises",
            fix="use the unquantised checkpoint of this model",
        )
