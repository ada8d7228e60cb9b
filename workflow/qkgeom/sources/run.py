"""`run:name`: the snapshots of a training run of this pipeline, in results/runs/<name>/snapshots/<step>/."""

from __future__ import annotations

import json
import re
from pathlib import Path

from qkgeom.errors import ModelFault, UsageError

RUNS = Path("results/runs")
_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


def require_form(address: str) -> None:
    """Raises a UsageError if an address cannot be a run's name."""
    if not _NAME.fullmatch(address):
        raise UsageError("this is not the name of a run", found=address, expected="the id of a row of runs.tsv")


def snapshots(address: str) -> list[tuple[str, str]]:
    """The run's snapshots in order: step, and the URI of its checkpoint.

    Raises:
        ModelFault: the run is not done, could not be trained, diverged, or learned too little.
    """
    folder = RUNS / address
    try:
        done = json.loads((folder / "done.json").read_text(encoding="utf-8"))
        status, last, kept = done["status"], done["steps"], done["snapshots"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFault("this run is not done", where=folder, found=error, fix="train it first") from error
    if status == "not_learned":
        measured = done["measured"]
        raise ModelFault(
            "this model learned too little to be a data point",
            where=folder,
            found="held-out {metric} {value:.3f}, trivial baseline {baseline:.3f}".format(**measured),
            expected=f"better by {measured['margin']:g} at least",
            fix="train it longer or otherwise (its preset), or state another margin in runs.tsv",
        )
    if status == "failed":
        raise ModelFault("this run could not be trained", where=folder, found=done["reason"], fix="mend its row or preset")
    if status != "ok":
        raise ModelFault("this run diverged", where=folder, found=f"a loss that is not finite by step {last}")
    return [(str(step), f"file:{folder}/snapshots/{step:07d}") for step in kept]
