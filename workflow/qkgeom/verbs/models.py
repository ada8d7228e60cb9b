"""`models`: the table of models and how far each is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from qkgeom import artifacts
from qkgeom.console import print_table
from qkgeom.registry import MODELS, read_models
from qkgeom.runs import read_runs


def command(
    preset: Annotated[str | None, Option(help="only the models of this preset, with those that it trains")] = None,
    models: Annotated[Path, Option(help="table of models")] = MODELS,
    results: Annotated[Path, Option(help="the results folder")] = Path("results"),
) -> None:
    """List the models, where their weights come from, and whether they are extracted and scored."""
    rows = list(read_models(models).values())
    if preset is not None:
        rows = [row for row in rows if preset in row.presets.split(",")]
        rows += [model for run in read_runs(preset).values() for model in run.models(preset)]
    cells = [(row.model, _state(results / "models" / row.model), row.role, row.layout, row.presets, row.uri) for row in rows]
    header = ("model", "state", "role", "layout", "presets", "weights")
    print_table(header, cells)


def _state(folder: Path) -> str:
    if not (folder / artifacts.MANIFEST).is_file():
        return "–"
    if artifacts.read_manifest(folder)["status"] == "failed":
        return "failed"
    return "scored" if (folder / "scores.csv").is_file() else "extracted"
