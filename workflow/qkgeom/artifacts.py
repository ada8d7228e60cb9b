"""Per-model artifacts: `manifest.json` and one safetensors file per snapshot.

Orientation, everywhere: row-vector convention, q = x W_q. `layer.000.W_q` is [d_model, n_head, d_head] and
`layer.000.W_k` is [d_model, n_kv_head, d_head]; query head h reads key head h // (n_head / n_kv_head).
The manifest is written last: without it there is no artifact. Neither holds a date or a machine's path, so that
the same source gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkgeom.containers import open_container
from qkgeom.containers.base import DTYPE_NAMES
from qkgeom.errors import ModelFault, QkgeomError
from qkgeom.files import whole_file, write_json

SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to be written: its name, shape and dtype, known before its values."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def tensor_name(layer: int, which: str) -> str:
    """`layer.000.W_q` or `layer.000.W_k`."""
    return f"layer.{layer:03d}.{which}"


def write_snapshot(
    target: Path, tensors: list[StoredTensor], values: Iterator[np.ndarray], metadata: Mapping[str, str]
) -> dict[str, str]:
    """Writes a safetensors file tensor by tensor; only the one being written is in memory.

    Args:
        target: the file; it appears only when whole.
        tensors: what comes, in order.
        values: the arrays, in the same order.
        metadata: the header's `__metadata__`.

    Returns:
        sha256 of each tensor's bytes, by name.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the format asks for an aligned start of the data
    digests = {}
    with whole_file(target) as temporary, temporary.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor, value in zip(tensors, values, strict=True):
            if value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise QkgeomError(
                    "a layout gave an array of another shape or type than it announced",
                    where=tensor.name,
                    found=f"{value.dtype} {list(value.shape)}",
                    expected=f"{tensor.dtype} {list(tensor.shape)}",
                )
            raw = memoryview(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
            digests[tensor.name] = hashlib.sha256(raw).hexdigest()
            file.write(raw)
            del value, raw  # before the next tensor is read
    return digests


def write_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """Writes `manifest.json`, the last act of an extraction."""
    write_json(folder / MANIFEST, {"schema": SCHEMA, **manifest})


def find(name: str) -> Path:
    """The folder of an artifact: a path, or the id of a model in results/models/."""
    in_results = Path("results/models") / name
    return in_results if not Path(name).exists() and (in_results / MANIFEST).is_file() else Path(name)


def read_manifest(folder: Path) -> dict[str, object]:
    """Reads a model's manifest.

    Raises:
        QkgeomError: there is none, or it is not one.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        schema = manifest["schema"]
    except FileNotFoundError as error:
        raise QkgeomError("no artifact here", where=folder, expected=path, fix="run `extract` first") from error
    except (ValueError, KeyError, TypeError) as error:
        raise QkgeomError("a manifest cannot be read", where=path, found=error, fix="delete it and extract again") from error
    if schema != SCHEMA:
        raise QkgeomError(
            "a manifest is of another version", where=path, found=schema, expected=SCHEMA, fix="extract the model again"
        )
    return manifest


def read_layer(folder: Path, file: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """W_q and W_k of one layer of a snapshot file.

    Raises:
        ModelFault: the file is missing or cut short, or has no such layer.
    """
    container = open_container(folder / file)
    names = tensor_name(layer, "W_q"), tensor_name(layer, "W_k")
    if absent := [name for name in names if name not in container.tensors]:
        raise ModelFault("an artifact has no such layer", where=container.path, found=f"no {', '.join(absent)}")
    return container.read(names[0]).array, container.read(names[1]).array
