"""A snapshot's layers as torch tensors, read from its file into the same memory over and over."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from qkgeom.artifacts import layer_tensors
from qkgeom.byte_files import read_into
from qkgeom.containers import Container
from qkgeom.errors import TransientFault
from qkgeom.streaming import stream

if TYPE_CHECKING:
    import torch

    from qkgeom.streaming import Weights

TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class _Part:
    """One tensor of a layer: where it lies in the file, and in the memory that its layer is read to."""

    start: int
    stop: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + self.stop - self.start


def stream_layers(path: Path, layers: Sequence[int], device: torch.device) -> Iterator[Weights]:
    """Gives W_q and W_k of each layer of a snapshot's file, as stored, on `device`; see `stream`.

    Raises:
        ModelFault: the file is missing, damaged, cut short, holds no numbers, or has no such layer.
        TransientFault: it cannot be read now.
    """
    container, names = layer_tensors(path, layers)
    parts = [_parts(container, pair) for pair in names]
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):  # macOS has none
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # the system reads further ahead
        yield from stream(_Reader(container, file, parts, pinned=device.type == "cuda"), len(layers), device)


class _Reader:
    """Reads layers into two buffers in turn."""

    def __init__(self, container: Container, file: BinaryIO, parts: Sequence[Sequence[_Part]], pinned: bool) -> None:
        import torch

        self.container, self.file, self.parts = container, file, parts
        size = max((pair[-1].end for pair in parts), default=0)
        self.buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for _ in parts[:2]]

    def __call__(self, number: int) -> Weights:
        """The weights of a layer, until the second call after."""
        return tuple(self._read(part, self.buffers[number % 2]) for part in self.parts[number])

    def _read(self, part: _Part, buffer: torch.Tensor) -> torch.Tensor:
        raw = buffer[part.offset : part.end]
        try:
            found = read_into(memoryview(raw.numpy()), self.file, part.start)
        except OSError as error:
            raise TransientFault(
                "weights cannot be read", where=self.container, found=error.strerror, fix="run it again"
            ) from error
        if found != len(raw):
            raise self.container.file.too_short(part.start + found, part.stop)
        return raw.view(part.dtype).view(part.shape)


def _parts(container: Container, names: Sequence[str]) -> list[_Part]:
    import torch

    parts, offset = [], 0
    for name in names:
        info = container.tensors[name]
        if info.dtype not in TORCH_NAMES:
            raise container.unreadable_dtype(name)
        part = _Part(info.start, info.stop, offset, getattr(torch, TORCH_NAMES[info.dtype]), info.shape)
        offset = -(-part.end // ALIGNMENT) * ALIGNMENT
        parts.append(part)
    return parts
