"""`retry`: forget the models that failed, so that the next run tries them again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom import artifacts
from qkgeom.errors import UsageError


def command(
    models: Annotated[list[str] | None, Argument(help="ids; all failed models by default")] = None,
    results: Annotated[Path, Option(help="the results folder")] = Path("results"),
) -> None:
    """Remove the manifests of failed models, so that the next run tries them again."""
    if not results.is_dir():
        raise UsageError("there is no results folder here", where=results.resolve(), fix="run in the project's folder")
    manifests = {path.parent.name: path for path in sorted((results / "models").glob(f"*/{artifacts.MANIFEST}"))}
    if unknown := sorted(set(models or ()) - set(manifests)):
        raise UsageError("these models have no artifact", found=", ".join(unknown), expected=", ".join(manifests) or "none yet")
    failed = [name for name, path in manifests.items() if artifacts.read_manifest(path.parent)["status"] == "failed"]
    cleared = [name for name in failed if not models or name in models]
    for name in cleared:
        manifests[name].unlink()
        (results / "runs" / name / "done.json").unlink(missing_ok=True)  # a run that diverged is trained again
    sys.stdout.write(f"cleared: {', '.join(cleared)}; run snakemake again\n" if cleared else "no failed model to clear\n")
    if healthy := [name for name in dict.fromkeys(models or ()) if name not in cleared]:
        sys.stdout.write(f"left as they are, since they did not fail: {', '.join(healthy)}\n")
