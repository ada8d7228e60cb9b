"""Per-model artifacts: `manifest.json` and one safetensors file per snapshot.

Orientation, everywhere: row-vector convention, q = x W_q. `layer.000.W_q` is [d_model, n_head, d_head] and
`layer.000.W_k` is [d_model, n_kv_head, d_head]; query head h reads key head h // (n_head / n_kv_head).
The manifest is written last: without it there is no artifact. Neither holds a date or a machine's path, so that
the same source gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkgeom.containers import Container, open_container
from qkgeom.errors import ModelFault, QkgeomError
from qkgeom.files import write_json

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


def layer_tensors(path: Path, layers: Sequence[int]) -> tuple[Container, list[tuple[str, str]]]:
    """A snapshot's file, and the names of W_q and W_k of these layers in it.

    Raises:
        ModelFault: the file is missing or cut short, or has no such layer.
    """
    container = open_container(path)
    names = [(tensor_name(layer, "W_q"), tensor_name(layer, "W_k")) for layer in layers]
    if absent := [name for pair in names for name in pair if name not in container.tensors]:
        raise ModelFault("an artifact has no such layer", where=container, found=f"no {', '.join(absent)}")
    return container, names


def read_layer(folder: Path, file: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """W_q and W_k of one layer of a snapshot file.

    Raises:
        ModelFault: the file is missing or cut short, or has no such layer.
    """
    container, [names] = layer_tensors(folder / file, [layer])
    W_q, W_k = (
        container.decode(name, container.file.read(*container.range_of(name)), container.tensors[name].shape) for name in names
    )
    return W_q, W_k
