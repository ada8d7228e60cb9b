"""Weights of a layer that a figure shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.artifacts import read_layer, read_manifest
from qkgeom.dropping import weights_of

if TYPE_CHECKING:
    import numpy as np


def read_example(folder: Path, layer: int) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The model's id, and W_q [d_model, n_head, d_head] and W_k [d_model, n_kv_head, d_head] of a layer of its last snapshot.

    None for a failed model, which `check` reports; figures go on without it.

    Raises:
        ModelFault: the artifact has no such layer, or its weights were dropped and cannot be fetched again as they were.
        TransientFault: they were dropped and cannot be fetched now.
    """
    manifest = read_manifest(folder)
    if manifest["status"] != "ok":
        return None
    last = list(manifest["snapshots"])[-1]  # which stands for a series
    with weights_of(folder, manifest, last) as place:  # another preset, whose example it is not, may have dropped them
        return manifest["model"], *read_layer(place, manifest["snapshots"][last]["file"], layer)
