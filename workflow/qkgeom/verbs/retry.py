"""`retry`: forget the models that failed, so that the next run tries them again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom import artifacts, unscored
from qkgeom.dropping import dropped
from qkgeom.errors import UsageError
from qkgeom.provenance import beside


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
    cleared = []
    for name, path in manifests.items():
        folder, manifest = path.parent, artifacts.read_manifest(path.parent)
        failed, not_scored = manifest["status"] == "failed", unscored.reason(folder) is not None
        if not (failed or not_scored) or (models and name not in models):
            continue
        for scores in (folder / "scores.csv", beside(folder / "scores.csv")):
            scores.unlink(missing_ok=True)
        if failed or not dropped(folder, manifest):  # else the manifest says what to fetch again
            path.unlink()
        if failed:
            (results / "runs" / name / "done.json").unlink(missing_ok=True)  # a run that diverged is trained again
        unscored.clear(folder)
        cleared.append(name)
    sys.stdout.write(f"cleared: {', '.join(cleared)}; run snakemake again\n" if cleared else "no failed model to clear\n")
    if healthy := [name for name in dict.fromkeys(models or ()) if name not in cleared]:
        sys.stdout.write(f"left as they are, since they did not fail: {', '.join(healthy)}\n")
