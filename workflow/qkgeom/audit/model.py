"""One model: its stored weights against its manifest, its scores against its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qkgeom.artifacts import MANIFEST, read_manifest
from qkgeom.audit import plain
from qkgeom.audit.findings import SHOWN, Part
from qkgeom.audit.links import Digests, check_record
from qkgeom.audit.options import Options
from qkgeom.audit.rows import Key, Row, compare_layer, read_rows
from qkgeom.errors import QkgeomError
from qkgeom.provenance import beside, code_of

CHUNK = 2**24
PUBLISHED_WAY = "published_way.csv"  # of models that the paper's code read differently
EXTRACT, SCORE = "delete {} and run snakemake: the model is extracted again", "delete {} and run snakemake: it is scored again"
ORIENTATION = "q = x W_q; [d_model, head, d_head]"
STATED = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # the manifest's word -> the file's


def check_model(
    name: str,
    options: Options,
    digests: Digests,
    uri: str | None = None,
    disputed: Collection[tuple[str, str]] = (),
) -> tuple[Part, Mapping | None]:
    """Checks a model's artifact and scores.

    Args:
        name: id of the model.
        options: how much.
        digests: of files.
        uri: what the table of models says it is, if it does.
        disputed: snapshot and layer of scores that are derived anew whatever the sample is.

    Returns:
        What was found, and its manifest, None if it has none that can be read.
    """
    part, folder = Part("model", name), options.results / "models" / name
    path, scores = folder / MANIFEST, folder / "scores.csv"
    again = SCORE.format(scores)
    record = check_record(part, beside(scores), digests, again, lambda file: _in_bundle(file, options))
    if record and record.parameters.get("precision") not in ("auto", "float64"):
        part.found(beside(scores), "parameters, precision", record.parameters.get("precision"), "auto or float64", again)
    if (way := folder / PUBLISHED_WAY).exists():
        check_record(part, beside(way), digests, f"delete {way} and run snakemake: the model is read again")
    if record and record.code != code_of("score"):
        part.notes.append(f"it was scored by other code ({record.code}) than is here ({code_of('score')})")
    try:
        manifest = read_manifest(folder)
    except QkgeomError as error:
        found = f"{error.what} ({error.details})" if path.exists() else "no such file"
        part.found(path, "", found, "the artifact's manifest", EXTRACT.format(path))
        return part, None
    if manifest.get("model") != name:
        part.found(path, "model", manifest.get("model"), name, EXTRACT.format(path))
    if uri is not None and manifest.get("uri") != uri:
        part.found(path, "uri", manifest.get("uri"), f"{uri} (table of models, models.lock)", EXTRACT.format(path))
    if manifest.get("status") == "failed":
        part.unchecked.append("it could not be extracted: " + str(manifest.get("reason")).partition("\n")[0])
        return part, manifest
    rows: Mapping[Key, Row] = {}
    try:
        rows = read_rows(scores)
    except FileNotFoundError:
        if not part.about(scores):  # its digest has told, but where its record is gone, too
            part.found(scores, "", "no such file", "a table of scores", again)
    except (OSError, ValueError) as error:
        part.found(scores, "", error, "a table of scores", again)
    else:
        if strangers := sorted({row["model"] for row in rows.values()} - {name}):
            part.found(scores, "column model", ", ".join(strangers), name, again)
        if not rows:
            part.unchecked.append(f"{scores} is empty: the model could not be scored")
    with blamed_on_manifest(part, path):
        _check_weights(part, folder, manifest, rows, options, disputed)
        return part, manifest
    return part, None


@contextmanager
def blamed_on_manifest(part: Part, path: Path) -> Iterator[None]:
    """Ends the block at an entry of a manifest that is missing or of another kind, with a finding about the manifest."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        part.found(path, "", f"{error!r}", "a manifest as `extract` writes it", EXTRACT.format(path))


def gone(folder: Path, manifest: Mapping) -> list[str]:
    """The snapshots whose weights are not here."""
    return [name for name, entry in manifest.get("snapshots", {}).items() if not (folder / entry["file"]).exists()]


def _in_bundle(file: str, options: Options) -> str | None:
    return "not in a bundle" if options.bundled and file.endswith(".npz") else None


def _check_weights(
    part: Part,
    folder: Path,
    manifest: Mapping,
    rows: Mapping[Key, Row],
    options: Options,
    disputed: Collection[tuple[str, str]],
) -> None:
    """The stored tensors' digests, the completeness of the scores, and a sample of the scores."""
    if missing := gone(folder, manifest):
        what = "the weights" if len(missing) == len(manifest["snapshots"]) else f"the weights of {len(missing)} snapshots"
        why = "are not part of a bundle" if options.bundled else "were dropped after scoring"
        helps = not options.from_source and not manifest["uri"].startswith("run:")
        how = " (--from-source derives the scores)" if helps else ""
        part.unchecked.append(f"{what} {why}: their digests and their scores are not checked here{how}")
    scores, places = folder / "scores.csv", []
    if strangers := sorted({snapshot for snapshot, _, _ in rows} - set(manifest["snapshots"])):
        part.found(scores, "column snapshot", ", ".join(strangers), f"those of {MANIFEST}", SCORE.format(scores))
    for snapshot, entry in manifest["snapshots"].items():
        layers = [layer["layer"] for layer in entry["layers"]]
        _check_completeness(part, scores, snapshot, layers, rows)
        if snapshot in missing:
            continue
        path = folder / entry["file"]
        tensors = _check_tensors(part, path, entry, manifest)
        if not part.about(path):  # else what is derived differs, as it must
            places += [(snapshot, layer, path, tensors) for layer in layers]
    chosen = {place[:2] for place in options.choose(places, part.name)}
    chosen |= {place[:2] for place in places if (place[0], str(place[1])) in disputed}
    for snapshot, layer, path, tensors in [place for place in places if place[:2] in chosen] if rows else ():
        W_q, W_k = (plain.factor(path, tensors[f"layer.{layer:03d}.{which}"]) for which in ("W_q", "W_k"))
        compare_layer(part, scores, rows, snapshot, layer, W_q, W_k, scaled=False)


def _check_completeness(part: Part, scores: Path, snapshot: str, layers: list[int], rows: Mapping[Key, Row]) -> None:
    found = {layer for of, layer, head in rows if of == snapshot and head == "all"}
    expected = set(map(str, layers))
    if rows and found != expected:
        part.found(
            scores,
            f"snapshot {snapshot}",
            f"layers {', '.join(sorted(found, key=int)) or 'none'}",
            f"layers {', '.join(sorted(expected, key=int))} ({MANIFEST})",
            SCORE.format(scores),
        )


def _check_tensors(part: Part, path: Path, entry: Mapping, manifest: Mapping) -> dict[str, plain.Stored]:
    """Compares every tensor of a snapshot's file with the manifest; gives those of the file."""
    again = EXTRACT.format(path.with_name(MANIFEST))
    try:
        tensors, metadata, base = plain.read_header(path)
    except (OSError, ValueError) as error:
        part.found(path, "header", error, "a safetensors file", again)
        return {}
    said = {"model": manifest["model"], "layout": manifest["layout"], "orientation": ORIENTATION}
    if metadata != said:
        part.found(path, "metadata", metadata, said, again)
    expected = {name: each for layer in entry["layers"] for name, each in layer["stored"].items()}
    if set(tensors) != set(expected):
        part.found(path, "tensors", ", ".join(sorted(set(tensors) ^ set(expected))), f"those of {MANIFEST}", again)
    ends = sorted((each.start, each.stop) for each in tensors.values())
    whole = [base, *(stop for _, stop in ends)] == [*(start for start, _ in ends), path.stat().st_size]
    if not whole or path.stat().st_size != entry["bytes"]["stored"]:
        found = f"{path.stat().st_size} bytes, tensors at {ends[0][0] if ends else base} to {ends[-1][1] if ends else base}"
        part.found(path, "", found, f"{entry['bytes']['stored']} bytes, tensors side by side", again)
    try:
        with path.open("rb") as file:
            for name, stored in tensors.items():
                if name in expected:
                    _check_tensor(part, path, file, name, stored, expected[name], again)
    except OSError as error:
        part.found(path, "", error, "a file that can be read", again)
    return tensors


def _check_tensor(part: Part, path: Path, file: object, name: str, stored: plain.Stored, said: Mapping, again: str) -> None:
    part.count("tensors")
    shape = (STATED.get(said["dtype"], said["dtype"]), list(stored.shape))
    if (stored.dtype, said["shape"]) != shape:
        part.found(path, f"tensor {name}", f"{stored.dtype} {list(stored.shape)}", f"{shape[0]} {said['shape']}", again)
    found = sha256_of_range(file, stored.start, stored.stop)
    if found != said["sha256"]:
        if sum("sha256" in finding.found for finding in part.findings) >= SHOWN:
            part.count("further findings of this kind, not listed")
            return
        part.found(path, f"tensor {name}", f"sha256 {found}", f"sha256 {said['sha256']} ({MANIFEST})", again)


def sha256_of_range(file: object, start: int, stop: int) -> str:
    """The sha256 of bytes `start` to `stop` of an open file, of fewer where it ends."""
    digest = hashlib.sha256()
    file.seek(start)
    while start < stop and (part := file.read(min(CHUNK, stop - start))):
        digest.update(part)
        start += len(part)
    return digest.hexdigest()
