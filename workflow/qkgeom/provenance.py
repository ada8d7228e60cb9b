"""Records of provenance: beside what a step of the pipeline writes, from which bytes and how it was made.

The chain is source -> artifact -> scores -> collected tables -> numbers of figures and tables -> pictures. The manifest is
the record of an extraction (`artifacts.py`); every other step writes one of these, after its outputs:

    results/runs/<run>/provenance.json                     train
    results/runs/<run>/updates/provenance.json             updates
    results/models/<model>/scores.provenance.json          score
    results/models/<model>/published_way.provenance.json   published
    results/<preset>/collected/provenance.json             collect
    results/<preset>/figures/<figure>.provenance.json      figure
    results/<preset>/tables/<table>.provenance.json        table

A record holds no time and no machine's path, so that the same inputs give the same bytes; when a step ran is in its log.
Files are named relative to the record's folder, so that a results folder can be moved.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from qkgeom import __version__
from qkgeom.digests import code_digest
from qkgeom.errors import QkgeomError
from qkgeom.files import sha256_of, write_json

SCHEMA = 1
OF_FOLDER, OF_FILE = "provenance.json", ".provenance.json"  # of all that a step writes into a folder; of the files of one stem
CODE = {"score": ("verbs.score", "containers.safetensors"), "collect": ("verbs.collect",)}  # the modules of a step's digest
# what `score` imports to speak to a person only: an artifact's own scores are not held against random weights, `collect` does
NOT_CODE = {"score": ("standing", "untrained")}


@dataclass(frozen=True)
class Record:
    """How some files were made.

    Attributes:
        step: the verb.
        inputs: file -> its sha256 when it was read.
        outputs: file -> its sha256 when it was written.
        code: digest of the modules that the step can reach, and of the environment's lock (`digests.py`).
        versions: package -> version, of those that compute.
        parameters: what else the outputs depend on.
        device: where it was computed, None where only the CPU serves.
        threads: of the CPU, None where the step does not choose.
        seed: of what is drawn at random, None if nothing is.
    """

    step: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    code: str
    versions: Mapping[str, str]
    parameters: Mapping[str, object] = field(default_factory=dict)
    device: str | None = None
    threads: int | None = None
    seed: int | None = None


def code_of(step: str) -> str:
    """Digest of the code of a step whose modules do not depend on what it makes."""
    return code_digest(*CODE[step], without=NOT_CODE.get(step, ()))


def beside(file: Path) -> Path:
    """The record of a file and of those with the same stem: `scores.csv` -> `scores.provenance.json`."""
    return file.with_name(file.stem + OF_FILE)


def write_record(
    path: Path, step: str, inputs: Iterable[Path], outputs: Iterable[Path], code: str, packages: Iterable[str], **how: object
) -> None:
    """Writes a step's record, its last act.

    Args:
        path: of the record.
        step: the verb.
        inputs: the files that were read.
        outputs: the files that were written.
        code: digest of the step's code.
        packages: those that compute.
        how: `parameters`, `device`, `threads` and `seed`, see `Record`.
    """
    digests = [{named_from(path.parent, file): sha256_of(file) for file in files} for files in (inputs, outputs)]
    versions = {
        "qkgeom": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in sorted(packages)},
    }
    write_json(path, {"schema": SCHEMA, **asdict(Record(step, *digests, code, versions, **how))})


def read_record(path: Path) -> Record:
    """Reads a record.

    Raises:
        QkgeomError: there is none, or it is not one.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (schema := content.pop("schema")) != SCHEMA:
            raise ValueError(f"schema {schema}, not {SCHEMA}")
        record = Record(**content)
        if not all(isinstance(each, dict) for each in (record.inputs, record.outputs, record.versions, record.parameters)):
            raise ValueError("inputs, outputs, versions and parameters are no tables")
        return record
    except FileNotFoundError as error:
        raise QkgeomError("there is no record of how this was made", where=path, fix="make it again") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise QkgeomError("a record of provenance cannot be read", where=path, found=error, fix="make it again") from error


def named_from(folder: Path, file: Path) -> str:
    """The name of a file in a record in `folder`."""
    return Path(os.path.relpath(file, folder)).as_posix()
