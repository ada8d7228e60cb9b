"""The record of how a run was trained, for whoever follows a number back to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from qkgeom.errors import QkgeomError
from qkgeom.files import sha256_of
from qkgeom.provenance import OF_FOLDER, named_from, read_record, write_record
from qkgeom.training.state import RECORD

PACKAGES = ("numpy", "tokenizers", "torch", "transformers")


def write_provenance(folder: Path, done: Mapping[str, object], seed: int, corpus: Path | None) -> None:
    """Writes the record of a finished run, unless the one there is of the very same files.

    Args:
        folder: of the run, with its done.json.
        done: what that says.
        seed: of the run.
        corpus: folder of its corpus, if it reads one.
    """
    import torch

    path = folder / OF_FOLDER
    outputs = [folder / name for name in ("done.json", "losses.csv", RECORD) if (folder / name).exists()]
    outputs += sorted(file for file in (folder / "snapshots").rglob("*") if file.is_file())
    try:  # of a run that was trained before this job, which may have other versions or threads
        if read_record(path).outputs == {named_from(folder, file): sha256_of(file) for file in outputs}:
            return
    except QkgeomError:
        pass
    definition = done.get("definition", {})
    write_record(
        path,
        "train",
        [corpus / "corpus.json"] if corpus else [],
        outputs,
        definition.get("code", ""),
        PACKAGES,
        parameters={"definition": json.loads(json.dumps(definition))},
        device=definition.get("device"),
        threads=torch.get_num_threads(),
        seed=seed,
    )
