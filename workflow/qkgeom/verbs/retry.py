"""`retry`: forget the models that failed, so that the next run tries them again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom import artifacts, unscored
from qkgeom.errors import UsageError


def command(
    models: Annotated[list[str] | None, Argument(help="ids; all failed models by default")] = None,
    results: Annotated[Path, Option(help="the results folder")] = Path("results"),
) -> None:
    """Remove what is recorded of failed models, so that the next run extracts them, or scores them, again."""
    if not results.is_dir():
        raise UsageError("there is no results folder here", where=results.resolve(), fix="run in the project's folder")
    manifests = {path.parent.name: path for path in sorted((results / "models").glob(f"*/{artifacts.MANIFEST}"))}
    if unknown := sorted(set(models or ()) - set(manifests)):
        raise UsageError("these models have no artifact", found=", ".join(unknown), expected=", ".join(manifests) or "none yet")
    folders = {name: path.parent for name, path in manifests.items()}
    failed = [name for name, folder in folders.items() if artifacts.read_manifest(folder)["status"] == "failed"]
    not_scored = [name for name, folder in folders.items() if name not in failed and unscored.reason(folder) is not None]
    cleared = [name for name in [*failed, *not_scored] if not models or name in models]
    for name in cleared:
        if name in failed:
            manifests[name].unlink()
            (results / "runs" / name / "done.json").unlink(missing_ok=True)  # a run that diverged is trained again
        else:  # its manifest says what to fetch again
            (folders[name] / "scores.csv").unlink(missing_ok=True)
        unscored.clear(folders[name])
    sys.stdout.write(f"cleared: {', '.join(cleared)}; run snakemake again\n" if cleared else "no failed model to clear\n")
