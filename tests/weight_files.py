"""Checkpoint files in every format, sound and broken, and what is asserted of them."""

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
import safetensors.torch
import torch

from checkpoints import extract
from qkgeom.artifacts import read_layer
from qkgeom.errors import ModelFault
from qkgeom.layouts import layout_for
from qkgeom.sources import open_checkpoint

D, N_HEAD, N_LAYER = 24, 3, 3
CONFIG = {"model_type": "bert", "hidden_size": D, "num_attention_heads": N_HEAD, "num_hidden_layers": N_LAYER}
GGUF_FIELDS = {"embedding_length": 64, "block_count": 1, "attention.head_count": 4, "attention.head_count_kv": 2}


def query(layer: int) -> str:
    return f"encoder.layer.{layer}.attention.self.query.weight"


def key(layer: int) -> str:
    return f"encoder.layer.{layer}.attention.self.key.weight"


def bert(n_layer: int = N_LAYER, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The query and key weights of a BERT, and a tensor that is neither."""
    names = [name for layer in range(n_layer) for name in (query(layer), key(layer))]
    return {"embeddings.weight": torch.randn(5, D).to(dtype), **{name: torch.randn(D, D).to(dtype) for name in names}}


def write(folder: Path, tensors: dict[str, torch.Tensor], file: str = "model.safetensors", config: dict | None = None) -> Path:
    """Writes tensors with their format's own library, and a config.json beside them."""
    folder.mkdir(exist_ok=True)
    (safetensors.torch.save_file if file.endswith("safetensors") else torch.save)(tensors, folder / file)
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    return folder / file


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], kind: str, index: bool = True) -> dict[str, str]:
    """Writes two shards as transformers names them; gives the index's weight_map."""
    stem = "model" if kind == "safetensors" else "pytorch_model"
    files = [f"{stem}-{number:05d}-of-00002.{kind}" for number in (1, 2)]
    listed = {name: files[position % 2] for position, name in enumerate(tensors)}
    for file in files:
        write(folder, {name: tensors[name] for name in tensors if listed[name] == file}, file)
    if index:
        write_index(folder, f"{stem}.{kind}", listed)
    return listed


def write_index(folder: Path, whole: str, listed: dict[str, str]) -> None:
    (folder / f"{whole}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))


def write_gguf(
    path: Path, tensors: dict[str, tuple[np.ndarray, str]], fields: dict[str, int], architecture: str = "llama"
) -> Path:
    """Writes a GGUF file; tensors are arrays with the type in which they are stored."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in fields.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    for name, (array, kind) in tensors.items():
        quantised = gguf.GGMLQuantizationType[kind]
        plain = kind in ("F32", "F16")
        data = array.astype(np.float16 if kind == "F16" else np.float32) if plain else gguf.quants.quantize(array, quantised)
        writer.add_tensor(name, data, raw_dtype=None if plain else quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rezip(
    source: Path,
    target: Path,
    edit: Callable[[str, bytes], bytes] = lambda name, data: data,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Writes a torch archive again with Python's zipfile, its members edited, without torch's alignment records."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for entry in old.infolist():
            if not entry.filename.endswith((".format_version", ".storage_alignment")):
                new.writestr(entry.filename, edit(entry.filename, old.read(entry)))
    return target


def raw(array: np.ndarray | torch.Tensor) -> bytes:
    """An array's values as bytes, bfloat16 too."""
    if isinstance(array, torch.Tensor):
        return array.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return np.ascontiguousarray(array).tobytes()


def extracted(where: Path, into: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """W_q and W_k of every layer, through the artifact."""
    with open_checkpoint(f"file:{where}") as opened:
        manifest = extract(opened, layout_for(opened.config), into, "tiny")
    return [read_layer(into, "final.safetensors", layer) for layer in range(manifest["n_layer"])]


def assert_bert(weights: list[tuple[np.ndarray, np.ndarray]], tensors: dict[str, torch.Tensor]) -> None:
    """The artifact's weights are the tensors, transposed and cut into heads."""
    assert len(weights) == N_LAYER
    for layer, stored in enumerate(weights):
        for array, name in zip(stored, (query(layer), key(layer)), strict=True):
            assert array.shape == (D, N_HEAD, D // N_HEAD)
            assert raw(array.reshape(D, D)) == raw(tensors[name].T)


def gguf_layer(kind: str = "F32") -> dict[str, tuple[np.ndarray, str]]:
    """One layer with grouped queries, and a norm whose size needs padding behind it."""
    return {
        "blk.0.attn_norm.weight": (np.ones(5, np.float32), "F32"),
        "blk.0.attn_q.weight": (np.random.randn(64, 64).astype(np.float32), kind),
        "blk.0.attn_k.weight": (np.random.randn(32, 64).astype(np.float32), kind),
    }


@contextmanager
def fault(*named: object) -> Iterator[None]:
    """The block raises a ModelFault whose message holds every word of `named`."""
    with pytest.raises(ModelFault) as caught:
        yield
    message = str(caught.value)
    assert not [word for word in named if str(word) not in message], message
