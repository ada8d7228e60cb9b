"""Checksums of the tensors that an artifact was made from, held against those of an earlier reading of the same bytes.

The checksums of a model that is pinned to a commit are kept in digests.json beside its manifest, not in the manifest alone:
Snakemake deletes that, a rule's output, before it extracts again, and the manifest of a failed model has none. The file
holds nothing that the manifest does not, so `rm` is the way to forget it; the lock of the models is the user's, who may
share it, and would have to be written by many jobs at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from qkgeom.errors import ModelFault, QkgeomError
from qkgeom.files import write_json

EARLIER = "digests.json"


def as_read(snapshot: Mapping) -> dict[str, str]:
    """Which bytes a snapshot's entry of the manifest was read from -> their sha256."""
    records = [record for layer in snapshot["layers"] for record in layer["read"].values()]
    return {"{file}, tensor {tensor}, bytes {bytes[0]}-{bytes[1]}".format(**each): each["sha256"] for each in records}


def as_stored(snapshot: Mapping) -> dict[str, str]:
    """Which tensors an entry of the manifest says are in the snapshot's file -> their sha256."""
    stored = [layer["stored"] for layer in snapshot["layers"]]
    return {f"{snapshot['file']}, tensor {name}": each["sha256"] for layer in stored for name, each in layer.items()}


def require_same(found: Mapping[str, str], expected: Mapping[str, str], where: object, fix: str) -> None:
    """Nothing if every tensor that was expected has its sha256.

    Raises:
        ModelFault: one has not, or is not there; the first of them is named.
    """
    for tensor, digest in expected.items():
        if found.get(tensor) != digest:
            raise ModelFault(
                "the sha256 of a tensor differs from an earlier run's",
                where=f"{where}: {tensor}",
                found=found.get(tensor, "no such tensor"),
                expected=digest,
                fix=fix,
            )


def read_earlier(folder: Path) -> dict[str, dict]:
    """What earlier runs read for this artifact: snapshot -> its `commit`, and the sha256 of its `tensors`.

    Raises:
        QkgeomError: the file cannot be read.
    """
    path = folder / EARLIER
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        return {name: {"commit": each["commit"], "tensors": dict(each["tensors"])} for name, each in earlier.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise QkgeomError(
            "the checksums of earlier runs cannot be read", where=path, found=error, fix="delete the file to forget them"
        ) from error


def require_as_earlier(earlier: Mapping[str, Mapping], name: str, snapshot: Mapping, folder: Path) -> None:
    """Nothing if a snapshot's bytes are those that an earlier run read at the same commit.

    Raises:
        ModelFault: they are not.
    """
    known, source, found = earlier.get(name), snapshot["source"], as_read(snapshot)
    if known is not None and known["commit"] == source.get("commit"):
        common = {tensor: digest for tensor, digest in known["tensors"].items() if tensor in found}
        fix = f"`python -m qkgeom retry` fetches it again; if the earlier run was wrong, delete {folder / EARLIER} first"
        require_same(found, common, f"{source['repo']}@{source['commit']}", fix)


def keep_for_later(earlier: Mapping[str, Mapping], snapshots: Mapping[str, Mapping], folder: Path) -> None:
    """Writes the checksums of all snapshots that are pinned to a commit, with the earlier ones of the same commit."""
    kept = {}
    for name, snapshot in snapshots.items():
        if commit := snapshot["source"].get("commit"):
            known = earlier.get(name, {})
            same = known["tensors"] if known.get("commit") == commit else {}
            kept[name] = {"commit": commit, "tensors": same | as_read(snapshot)}
    if kept:
        write_json(folder / EARLIER, kept)
