"""A model's source, read again: the same bytes, and the same W_q and W_k as its own class makes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from qkgeom.audit import plain
from qkgeom.audit.findings import SHOWN, Part
from qkgeom.audit.model import EXTRACT, gone
from qkgeom.audit.options import Options
from qkgeom.audit.rows import compare_layer, read_rows
from qkgeom.checkpoint import Checkpoint, heads_from
from qkgeom.errors import QkgeomError
from qkgeom.sources import open_checkpoint

SAME = 1e-4  # relative, between what the class multiplies and what is stored


def check_source(part: Part, manifest: Mapping, options: Options) -> None:
    """Reads the sources of a model's snapshots again, the last one and as many more as the sample says.

    Args:
        part: of the model.
        manifest: of the model.
        options: how much.
    """
    names = list(manifest["snapshots"])
    for name in dict.fromkeys([*options.choose(names[:-1], part.name)[: (options.sample or len(names)) - 1], names[-1]]):
        entry = manifest["snapshots"][name]
        source = entry["source"]
        if source.get("adapter"):
            part.unchecked.append("source: it is merged with an adapter, which is not done again")
            continue
        uri = f"hf:{source['repo']}@{source['commit']}" if "commit" in source else source["uri"]
        if uri.startswith("file:results/runs/"):
            uri = f"file:{options.results}/runs/{uri.removeprefix('file:results/runs/')}"
            if options.bundled:
                part.unchecked.append("source: it is a training run, whose checkpoints are not part of a bundle")
                return
        try:
            heads = heads_from(entry.get("n_head"), entry.get("n_kv_head"))
            with ExitStack() as opened:
                checkpoint = opened.enter_context(open_checkpoint(uri, architecture=entry["architecture"], heads=heads))
                _check_snapshot(part, manifest, name, checkpoint, options)
        except QkgeomError as error:
            part.unchecked.append(f"source: {uri} cannot be read here: {error.what} ({error.details})")


def _check_snapshot(part: Part, manifest: Mapping, snapshot: str, checkpoint: Checkpoint, options: Options) -> None:
    entry = manifest["snapshots"][snapshot]
    folder = options.results / "models" / manifest["model"]
    again = EXTRACT.format(folder / "manifest.json")
    if (digest := checkpoint.origin.get("sha256")) != entry["source"].get("sha256"):
        part.found(folder / "manifest.json", f"{snapshot}, sha256 of the source", entry["source"].get("sha256"), digest, again)
    files = {container.file.name: container.file for container in checkpoint.where.values()}
    _check_bytes(part, folder, entry, files, again)
    if (size := sum(file.size for file in files.values())) > options.most_bytes:
        limit = f"{size / 1e9:.1f} GB are more than --most-gb {options.most_bytes / 1e9:g}"
        part.unchecked.append(f"source: only its bytes were compared, since {limit}; W_q and W_k were not derived from it")
        return
    from qkgeom.audit.classes import load
    from qkgeom.audit.probe import Maps, NotProbed, probe

    try:
        maps: list[Maps] = _of_part(probe(*load(checkpoint)), manifest.get("part"))
    except NotProbed as error:
        part.unchecked.append(f"source: only its bytes were compared: {error}")
        return
    if not maps:
        part.unchecked.append(f"source: only its bytes were compared: no module of its class is called {manifest['part']}")
        return
    if len(maps) != len(entry["layers"]):
        found, expected = f"{len(entry['layers'])} layers", f"{len(maps)} self-attentions, as the model's class executes"
        part.found(folder / "manifest.json", snapshot, found, expected, f"mend the layout {manifest['layout']}")
        return
    path = folder / entry["file"]
    # weights that are not those of the extraction say nothing of the layout
    stored = None if snapshot in gone(folder, manifest) or part.about(path) else plain.read_header(path)[0]
    try:
        rows = read_rows(folder / "scores.csv")
    except (OSError, ValueError):  # which `check_model` tells
        rows = {}
    for layer, of_layer in zip(entry["layers"], maps, strict=True):
        W_q, W_k = (plain.Factor(each.numpy()) for each in (of_layer.W_q, of_layer.W_k))
        number = layer["layer"]
        if stored is not None:
            pair = [plain.factor(path, stored[f"layer.{number:03d}.{which}"]) for which in ("W_q", "W_k")]
            _compare_weights(part, path, f"layer {number}", (W_q, W_k), pair, of_layer.name, manifest["layout"])
        if rows:
            compare_layer(part, folder / "scores.csv", rows, snapshot, number, W_q, W_k, scaled=True)


def _check_bytes(part: Part, folder: Path, entry: Mapping, files: Mapping, again: str) -> None:
    """The bytes that the manifest says were read, as the source has them now."""
    for layer in entry["layers"]:
        for record in layer["read"].values():
            item = "tensor {tensor}, bytes {bytes[0]} to {bytes[1]} of {file}".format(**record)
            if record["file"] not in files:
                part.found(folder / "manifest.json", item, "no such file at the source", record["file"], again)
                return
            found = hashlib.sha256(files[record["file"]].read(*record["bytes"])).hexdigest()
            part.count("ranges of the source")
            if found != record["sha256"]:
                expected = f"sha256 {found}, as the source has it"
                part.found(folder / "manifest.json", item, f"sha256 {record['sha256']}", expected, again)
                return


def _of_part(maps: list, part: str | None) -> list:
    """The attentions of one stack of a model, by the words of their modules' names."""
    return maps if part is None else [each for each in maps if any(part in word for word in each.name.split("."))]


def _compare_weights(
    part: Part, path: Path, item: str, source: tuple, stored: list[plain.Factor], module: str, layout: str
) -> None:
    """W_qk of each head: what the class multiplies and what is stored, up to one scalar for the layer."""
    fix = f"mend the layout {layout}: it does not read these weights as the model does"
    group = stored[0].shape[1] // stored[1].shape[1]
    found, expected = stored[0].shape, source[0].shape
    if found[:2] != expected[:2]:
        part.found(
            path, item, f"d_model {found[0]}, {found[1]} heads", f"d_model {expected[0]}, {expected[1]} heads ({module})", fix
        )
        return
    A, B = (each.rows(0, expected[0]) for each in source)
    C = stored[0].rows(0, found[0])
    D = np.repeat(stored[1].rows(0, found[0]), group, axis=1)
    theirs, ours = _products(A, B, A, B), _products(C, D, C, D)  # squared norms of each head's W_qk
    common = _products(A, B, C, D)
    scale = common.sum() / ours.sum() if ours.sum() else 0.0
    errors = np.sqrt(np.clip(theirs - 2 * scale * common + scale**2 * ours, 0, None) / np.where(theirs, theirs, 1))
    part.count("layers derived from the source")
    worst = int(np.argmax(errors))
    wrong = not errors[worst] <= SAME or (scale <= 0 and theirs.sum())
    if wrong and part.about(path) < SHOWN:
        told = f"W_qk of head {worst} is off by {errors[worst]:.2g} of its norm"
        part.found(path, item, told, f"what {module} multiplies, to {SAME:g}", fix)
    part.differs("W_qk from the source", float(errors[worst]))


def _products(A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray) -> np.ndarray:
    """Of each head the inner product of A B^T and C D^T: tr((A^T C)(D^T B)), [n_head]."""
    left, right = np.einsum("ihr,ihs->hrs", A, C, optimize=True), np.einsum("ihs,ihr->hsr", D, B, optimize=True)
    return np.einsum("hrs,hsr->h", left, right)
