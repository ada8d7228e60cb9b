"""Corpora of made-up tokens, and artifacts of made-up weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16

from qkgeom.artifacts import StoredTensor, tensor_name, write_manifest
from qkgeom.snapshot_file import snapshot_file
from qkgeom.training.tokens import SPECIAL, Corpus


def corpus_of(train: np.ndarray, heldout: np.ndarray, vocab_size: int) -> Corpus:
    """A corpus of these ids [n]; the special tokens come first, so that ids from `len(SPECIAL)` on stand for text."""
    return Corpus("synthetic", train, heldout, vocab_size, "", {token: i for i, token in enumerate(SPECIAL)})


def write_artifact(folder: Path, n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_head: int) -> Path:
    """An artifact in bf16 whose layers all have the same Gaussian weights."""
    rng = np.random.default_rng(0)
    shapes = {"W_q": (d_model, n_head, d_head), "W_k": (d_model, n_kv_head, d_head)}
    weights = [rng.standard_normal(shape, np.float32).astype(bfloat16) for shape in shapes.values()]
    names = [[tensor_name(layer, which) for which in shapes] for layer in range(n_layer)]
    groups = [[StoredTensor(n, W.shape, W.dtype) for n, W in zip(pair, weights, strict=True)] for pair in names]
    with snapshot_file(folder / "final.safetensors", groups, {}, {}) as file:
        for _ in range(n_layer):
            file.append(weights, dict)
    entry = {"file": "final.safetensors", "layers": [{"layer": layer} for layer in range(n_layer)]}
    write_manifest(folder, {"model": folder.name, "status": "ok", "snapshots": {"final": entry}})
    return folder
