"""From a checkpoint to an artifact: read each layer's query and key weights, store W_q and W_k, write the manifest."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from qkgeom import __version__, artifacts
from qkgeom.artifacts import StoredTensor, tensor_name
from qkgeom.byte_files import Wanted
from qkgeom.checkpoint import Checkpoint
from qkgeom.containers.base import DTYPES, Reading
from qkgeom.digests import code_digest
from qkgeom.float8 import block_of, dequantise, scales_of
from qkgeom.layouts.base import Layout
from qkgeom.locate import Layer, find_layers
from qkgeom.lora import merged
from qkgeom.snapshot_file import settle, snapshot_file

logger = logging.getLogger(__name__)
FINAL = "final"
# as Qwen3, Phi and DeepSeek call them; SwinV2's cosine attention normalises without a weight
QK_NORMS = ("q_norm.weight", "q_layernorm.weight", "kv_a_layernorm.weight", "logit_scale")


def layer_weights(checkpoint: Checkpoint, layout: Layout, layer: Layer) -> tuple[np.ndarray, np.ndarray, dict[str, Reading]]:
    """Reads one layer.

    Returns:
        W_q [d_model, n_head, d_head], W_k [d_model, n_kv_head, d_head], and for each need of the layout what it was
        read from (and more for its scales, where it was 8-bit floats, and for what an adapter adds).
    """
    readings = {key: checkpoint.where[name].read(name, rows) for key, name, rows in tensors_of(checkpoint, layer)}
    arrays = {key: readings[key].array for key in layer.needs}
    for key, need in layer.needs.items():
        if scales := readings.get(f"{key}_scales"):
            first_row = need.rows[0] if need.rows else 0
            arrays[key] = dequantise(arrays[key], scales.array, block_of(checkpoint.config), first_row)
        if product := checkpoint.products.get(layer.names[need.role]):
            A, B = (readings[f"{key}_{part}"].array for part in ("lora_A", "lora_B"))
            arrays[key] = merged(arrays[key], A, B, product)
    W_q, W_k = layout.split(arrays, layer.shape)
    return W_q, W_k, readings


def tensors_of(checkpoint: Checkpoint, layer: Layer) -> Iterator[tuple[str, str, tuple[int, int] | None]]:
    """What `layer_weights` reads, in order: the need's key (with `_scales`, `_lora_A`, `_lora_B`), the tensor's name, the rows.

    Raises:
        ModelFault: the scales of an 8-bit weight are missing or do not fit it.
    """
    for key, need in layer.needs.items():
        name = layer.names[need.role]
        yield key, name, need.rows
        if scales := scales_of(checkpoint, name):
            yield f"{key}_scales", scales, None
        if product := checkpoint.products.get(name):
            yield f"{key}_lora_A", product.A, None
            yield f"{key}_lora_B", product.B, need.rows


def store_snapshot(
    checkpoint: Checkpoint,
    layout: Layout,
    folder: Path,
    model: str,
    snapshot: str,
    progress: Callable[[Sequence[Layer]], Iterator[Layer]] = iter,
) -> dict[str, object]:
    """Writes the weights of one snapshot, layer by layer.

    Args:
        checkpoint: the opened checkpoint.
        layout: how its tensors become W_q and W_k.
        folder: where the artifact goes; made if needed.
        model: id of the model.
        snapshot: `final`, or the step.
        progress: wraps the layers to show how far the work is.

    Returns:
        The snapshot's entry in the manifest.

    Raises:
        ModelFault: the checkpoint cannot be read or does not fit the layout.
        TransientFault: the disk refuses the write.
    """
    layers = find_layers(checkpoint, layout)
    tensors = [tensors_to_store(checkpoint, layout, layer) for layer in layers]
    target = folder / f"{snapshot}.safetensors"
    metadata = {"model": model, "layout": layout.name, "orientation": "q = x W_q; [d_model, head, d_head]"}
    opening = checkpoint.moved()
    with snapshot_file(target, tensors, metadata, _identity(checkpoint, layout)) as file:
        here = len(file.entries)
        rest = layers[here:]
        if here:
            logger.info("%s, %s: %d layers are here already", model, snapshot, here)
        checkpoint.expect([ranges_of(checkpoint, layer) for layer in rest])
        for layer in progress(rest):
            before = checkpoint.moved()
            W_q, W_k, readings = layer_weights(checkpoint, layout, layer)
            file.append((W_q, W_k), partial(_entry, readings, checkpoint.moved() - before))
            del W_q, W_k, readings  # before the next layer is read
    moved = opening + sum(entry["moved"] for entry in file.entries)
    now = checkpoint.moved() - (opening if here else 0)  # headers are kept: whoever stored the layers here had moved them
    before = f"; {here} layers and {moved - now} bytes in earlier runs" if here else ""
    logger.info("%s, %s: %d layers stored, %d bytes moved%s", model, snapshot, len(rest), now, before)
    records = [entry["read"] for entry in file.entries]
    return {
        "file": target.name,
        "source": {"uri": checkpoint.uri, **checkpoint.origin, "bytes_moved_in_all_runs": moved},
        "architecture": checkpoint.config.get("model_type"),
        **(vars(checkpoint.heads) if checkpoint.heads else {}),  # as the user stated them
        "not_in_W_qk": _flags(checkpoint, layout, layers),
        "bytes": {
            "checkpoint": sum(each.tensors[name].stop - each.tensors[name].start for name, each in checkpoint.where.items()),
            "read": sum(record["bytes"][1] - record["bytes"][0] for each in records for record in each.values()),
            "stored": target.stat().st_size,
        },
        "versions": _versions(checkpoint),
        "code": _code(checkpoint, layout),
        "layers": [
            _layer_record(layer, record, stored, file.digests)
            for layer, record, stored in zip(layers, records, tensors, strict=True)
        ],
    }


def finish(folder: Path, model: str, uri: str, layout: Layout, snapshots: Mapping[str, dict]) -> dict[str, object]:
    """Writes the manifest of stored snapshots, the last act of an extraction, and returns it."""
    first = next(iter(snapshots.values()))
    manifest = {
        "model": model,
        "status": "ok",
        "uri": uri,
        "layout": layout.name,
        "part": layout.part,
        "not_in_W_qk": first["not_in_W_qk"],  # one architecture, so the same for all snapshots
        "n_layer": len(first["layers"]),
        "snapshots": {
            name: {key: value for key, value in entry.items() if key != "not_in_W_qk"} for name, entry in snapshots.items()
        },
    }
    artifacts.write_manifest(folder, manifest)
    for entry in snapshots.values():
        settle(folder / entry["file"])
    return manifest


def failed_manifest(model: str, uri: str, reason: str) -> dict[str, object]:
    """The manifest of a model with a permanent fault: the pipeline goes on without it, and `check` names it."""
    return {"model": model, "status": "failed", "reason": reason, "uri": uri}


def tensors_to_store(checkpoint: Checkpoint, layout: Layout, layer: Layer) -> tuple[StoredTensor, StoredTensor]:
    """W_q and W_k of a layer, as the artifact holds them."""
    sizes = layer.shape
    names = [layer.names[need.role] for need in layer.needs.values()]
    published = ["F32" if name in checkpoint.products else checkpoint.where[name].tensors[name].dtype for name in names]
    # the first need is the query's and the last the key's, or both are one fused tensor; what is dequantised, merged or
    # computed is fp32
    q, k = (DTYPES["F32" if layout.computed or dtype not in DTYPES else dtype] for dtype in (published[0], published[-1]))
    return (
        StoredTensor(tensor_name(layer.index, "W_q"), (sizes.d_model, sizes.n_head, sizes.d_head), q),
        StoredTensor(tensor_name(layer.index, "W_k"), (sizes.d_model, sizes.n_kv_head, sizes.d_head), k),
    )


def _entry(readings: Mapping[str, Reading], moved: int) -> dict[str, object]:
    return {"read": {key: reading.record() for key, reading in readings.items()}, "moved": moved}


def _layer_record(layer: Layer, read: Mapping, tensors: Sequence[StoredTensor], digests: Mapping[str, str]) -> dict:
    return {
        "layer": layer.index,
        **vars(layer.shape),
        "read": read,
        "stored": {
            each.name: {"dtype": str(each.dtype), "shape": list(each.shape), "sha256": digests[each.name]} for each in tensors
        },
    }


def ranges_of(checkpoint: Checkpoint, layer: Layer) -> list[Wanted]:
    """The bytes that `layer_weights` reads, in order."""
    wanted = [(checkpoint.where[name], name, rows) for _, name, rows in tensors_of(checkpoint, layer)]
    return [(container.file, *container.range_of(name, rows)) for container, name, rows in wanted]


def _identity(checkpoint: Checkpoint, layout: Layout) -> dict[str, object]:
    """What the stored bytes depend on: the files, the code, and what an adapter's config says."""
    files = sorted({container.file.identity for container in checkpoint.where.values()})
    products = {name: vars(product) for name, product in checkpoint.products.items()}
    return {"files": files, "code": _code(checkpoint, layout), **({"products": products} if products else {})}


def _code(checkpoint: Checkpoint, layout: Layout) -> str:
    """Digest of the code that made W_q and W_k of what was read."""
    readers = {type(each).__module__.removeprefix("qkgeom.") for each in (layout, *checkpoint.where.values())}
    return code_digest("extraction", *sorted(readers))


def _flags(checkpoint: Checkpoint, layout: Layout, layers: Sequence[Layer]) -> dict[str, object]:
    """What the model adds to q . k beyond x W_qk x^T, as the paper leaves it out."""
    siblings = [name.removesuffix("weight") for layer in layers for name in layer.names.values()]
    parents = {name.rsplit(".", 2)[0] for layer in layers for name in layer.names.values()}
    return {
        "position": layout.position_in(checkpoint.config),
        "bias": any(name + "bias" in checkpoint.where for name in siblings)
        or any(f"{parent}.q_bias" in checkpoint.where for parent in parents),
        "qk_norm": any(f"{parent}.{norm}" in checkpoint.where for parent in parents for norm in QK_NORMS),
    }


def _versions(checkpoint: Checkpoint) -> dict[str, str]:
    packages = sorted({"numpy"} | {container.package for container in checkpoint.where.values()})
    return {"qkgeom": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}}
