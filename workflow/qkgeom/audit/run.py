"""One training run: its files against its record, and what was extracted from it against its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qkgeom.audit.findings import Part
from qkgeom.audit.links import Digests, check_record
from qkgeom.audit.model import sha256_of_range
from qkgeom.audit.options import Options
from qkgeom.provenance import OF_FOLDER

UPDATES = "updates"  # folder in a run's, where its weight updates were measured
AGAIN = "delete the run's folder {} and run snakemake: it is trained again"


def check_run(name: str, options: Options, digests: Digests) -> Part:
    """Checks the files of a run: snapshots, losses, how it ended."""
    part, folder = Part("run", name), options.results / "runs" / name

    def absent(file: str) -> str | None:
        if file.endswith("corpus.json"):
            return "the corpus is not here any more"
        return "not in a bundle" if options.bundled and file.startswith("snapshots/") else None

    record = check_record(part, folder / OF_FOLDER, digests, AGAIN.format(folder), absent)
    if (updates := folder / UPDATES).is_dir():
        again = f"delete {updates} and run snakemake: they are measured again"
        check_record(part, updates / OF_FOLDER, digests, again, absent)
    if options.bundled:
        part.unchecked = ["its checkpoints are not part of a bundle"]
    if record and record.outputs.get("done.json") is None:
        part.found(folder / OF_FOLDER, "outputs", ", ".join(record.outputs), "done.json among them", AGAIN.format(folder))
    return part


def check_reading(part: Part, manifest: Mapping, options: Options) -> None:
    """Compares the bytes that an artifact was read from with those of its run's checkpoints, as they are now.

    Args:
        part: of the model.
        manifest: of the model, whose URI is `run:<name>`.
        options: how much.
    """
    folder = options.results / "runs" / manifest["uri"].removeprefix("run:")
    for snapshot, entry in manifest["snapshots"].items():
        checkpoint = folder / "snapshots" / f"{int(snapshot):07d}"
        for layer in entry["layers"]:
            for record in layer["read"].values():
                _check_range(part, checkpoint / record["file"], record)


def _check_range(part: Part, path: Path, record: Mapping) -> None:
    item = "tensor {tensor}, bytes {bytes[0]} to {bytes[1]}".format(**record)
    again = f"restore {path.parent}, or delete the model's manifest.json and run snakemake: it is extracted again"
    try:
        with path.open("rb") as file:
            found = sha256_of_range(file, *record["bytes"])
    except OSError as error:
        part.found(path, item, error.strerror or error, "the checkpoint that was extracted", again)
        return
    part.count("ranges of checkpoints")
    if found != record["sha256"]:
        part.found(path, item, f"sha256 {found}", f"sha256 {record['sha256']}, as it was extracted", again)
