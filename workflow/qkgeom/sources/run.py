"""`run:name`: the snapshots of a training run of this pipeline, in results/runs/<name>/snapshots/<step>/."""

from __future__ import annotations

import json
from pathlib import Path

from qkgeom.errors import ModelFault

RUNS = Path("results/runs")


def snapshots(address: str) -> list[tuple[str, str]]:
    """The run's snapshots in order: step, and the URI of its checkpoint.

    Raises:
        ModelFault: the run is not done, or diverged.
    """
    folder = RUNS / address
    try:
        done = json.loads((folder / "done.json").read_text(encoding="utf-8"))
        status, last, kept = done["status"], done["steps"], done["snapshots"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFault("this run is not done", where=folder, found=error, fix="train it first") from error
    if status != "ok":
        raise ModelFault("this run diverged", where=folder, found=f"a loss that is not finite by step {last}")
    return [(str(step), f"file:{folder}/snapshots/{step:07d}") for step in kept]
