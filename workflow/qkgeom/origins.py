"""The models of a run: what each is, where its weights came from, and what became of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkgeom import artifacts, unscored
from qkgeom.errors import UsageError
from qkgeom.registry import Model, read_models
from qkgeom.runs import read_runs


@dataclass(frozen=True)
class Origin:
    """A model as a reader meets it in a figure.

    Attributes:
        model, label, group, role, objective: as in the table of models.
        folder: of its artifact.
        status: `ok`, or `failed`.
        reason: why it failed, else empty.
        layers: the indices, `0-5`; empty if it failed.
        snapshots: how many.
        uri: what was asked for.
        revision: what was read: a commit, a file's sha256, or the sizes of local files.
        manifest_sha256: digest of the manifest, which holds the sha256 of every tensor.
        made_by: versions that extracted it.
    """

    model: str
    label: str
    group: str
    role: str
    objective: str
    folder: Path
    status: str
    reason: str
    layers: str
    snapshots: int
    uri: str
    revision: str
    manifest_sha256: str
    made_by: Mapping[str, str]


def rows_of(preset: str) -> dict[str, Model]:
    """The rows of a preset by id, published models and those trained here."""
    trained = [model for run in read_runs(preset).values() for model in run.models(preset)]
    rows = {**read_models(), **{model.model: model for model in trained}}
    return {name: row for name, row in rows.items() if preset in row.presets.split(",")}


def read_origins(folders: Iterable[Path], rows: Mapping[str, Model]) -> list[Origin]:
    """The models whose artifacts these are.

    Args:
        folders: of artifacts.
        rows: see `rows_of`.

    Raises:
        UsageError: an artifact is of no row.
        QkgeomError: there is no artifact in a folder, or it cannot be read.
    """
    return [_origin(folder, rows) for folder in folders]


def _origin(folder: Path, rows: Mapping[str, Model]) -> Origin:
    if folder.name not in rows:
        found = f"{folder.name}; the preset has {', '.join(rows)}"
        raise UsageError("an artifact is of no model of this preset", where=folder, found=found, fix="leave it out")
    row = rows[folder.name]
    manifest = artifacts.read_manifest(folder)
    reason = str(manifest.get("reason") or unscored.reason(folder) or "")
    snapshots = manifest.get("snapshots", {})
    last = list(snapshots.values())[-1] if snapshots else {"layers": [], "source": {}, "versions": {}}
    return Origin(
        **{name: getattr(row, name) for name in ("model", "label", "group", "role", "objective")},
        folder=folder,
        status="failed" if reason else "ok",
        reason=reason,
        layers=_ranges([layer["layer"] for layer in last["layers"]]),
        snapshots=len(snapshots),
        uri=str(manifest["uri"]),
        revision=revision(last["source"]),
        manifest_sha256=hashlib.sha256((folder / artifacts.MANIFEST).read_bytes()).hexdigest(),
        made_by=last["versions"],
    )


def revision(source: Mapping) -> str:
    """What pins the bytes that were read, as far as their source has such a thing."""
    if commit := source.get("commit"):
        return f"commit {commit}"
    if digest := source.get("sha256"):
        return f"sha256 {digest}"
    return ", ".join(f"{name}, {record['bytes']} bytes" for name, record in source.get("files", {}).items())


def _ranges(numbers: Sequence[int]) -> str:
    """`0-5, 8` for 0, 1, 2, 3, 4, 5, 8."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)
