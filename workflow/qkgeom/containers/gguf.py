"""GGUF (llama.cpp): tensors by the gguf package, dequantised to float32 row by row.

llama.cpp reorders the rows of q and k inside each head (for its RoPE). The same order on both sides cancels in
q . k, so W_qk does not change and nothing is undone; tests/test_containers.py proves it.

Source: the gguf package, `gguf.GGUFReader` and `gguf.quants`; field names from its `constants.Keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkgeom.byte_files import ByteFile, LocalFile
from qkgeom.containers.base import Container, TensorInfo
from qkgeom.errors import ModelFault

if TYPE_CHECKING:
    from gguf import GGUFReader

# config.json's word -> GGUF's, after the architecture's name
FIELDS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
}


@dataclass
class Gguf(Container):
    """A GGUF file; quantised types are dequantised by the gguf package."""

    format = "gguf"
    package = "gguf"

    def decode(self, name: str, raw: memoryview, shape: tuple[int, ...]) -> np.ndarray:
        """Plain numbers as they are, quantised rows as float32."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        dtype = self.tensors[name].dtype
        if dtype in ("F32", "F16", "BF16", "F64"):
            return super().decode(name, raw, shape)
        try:
            rows = np.frombuffer(raw, np.uint8).reshape(shape[0], -1)
            return dequantize(rows, GGMLQuantizationType[dtype]).reshape(shape)
        except NotImplementedError as error:
            raise self.unreadable_dtype(name) from error


def open_file(file: ByteFile) -> Gguf:
    """Reads a GGUF file's fields and tensor directory.

    Raises:
        ModelFault: not a whole GGUF file.
    """
    path = file.local()  # the package maps it into memory
    try:
        reader = _reader(path)
        architecture = reader.fields["general.architecture"].contents()
        tensors = {
            tensor.name: TensorInfo(
                tuple(int(n) for n in reversed(tensor.shape)),  # ggml counts the fastest axis first
                tensor.tensor_type.name,
                int(tensor.data_offset),
                int(tensor.data_offset + tensor.n_bytes),
            )
            for tensor in reader.tensors
        }
        _require_no_gap(tensors, reader.data_offset, reader.alignment, path.stat().st_size)
    except Exception as error:  # the reader indexes into the file and raises whatever numpy raises there
        raise ModelFault(
            "a GGUF file is truncated or damaged",
            where=path,
            found=f"{path.stat().st_size} bytes ({type(error).__name__}: {error})",
            expected="the fields and tensors that its header announces",
            fix="fetch the file again",
        ) from error
    config = {"model_type": architecture}
    for word, gguf_word in FIELDS.items():
        field = reader.fields.get(f"{architecture}.{gguf_word}")
        if field is not None:
            config[word] = field.contents()
    return Gguf(LocalFile(path, file.name), tensors, config)


def _reader(path: Path) -> GGUFReader:
    """The package's reader, but one that stops at the file's end: it would count through a damaged length item by item."""
    from gguf import GGUFReader

    class Reader(GGUFReader):
        def _get(self, offset: int, dtype: object, count: int = 1, **options: object) -> np.ndarray:
            values = super()._get(offset, dtype, count, **options)
            if len(values) < int(count):
                raise ValueError(f"the file ends inside what begins at byte {offset}")
            return values

    return Reader(path)


def _require_no_gap(tensors: Mapping[str, TensorInfo], start: int, alignment: int, size: int) -> None:
    """Each tensor begins where the one before ends, padded; llama.cpp (gguf.cpp, `gguf_init_from_file`) asks the same."""
    stop = start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != start:
            raise ValueError(f"tensor {name} at byte {info.start}, the one before ends at {start}")
        stop = info.stop
        start = stop + -(stop - start) % alignment
    if tensors and not stop <= size <= start:
        raise ValueError(f"the last tensor ends at byte {stop}")
