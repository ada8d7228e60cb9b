"""`models`: the table of models and how far each is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from qkgeom import artifacts
from qkgeom.console import print_table
from qkgeom.dropping import dropped
from qkgeom.registry import MODELS, Model, read_models
from qkgeom.runs import read_runs
from qkgeom.settings import read_preset


def command(
    preset: Annotated[str | None, Option(help="only the models of this preset, with those that it trains")] = None,
    models: Annotated[Path, Option(help="table of models")] = MODELS,
    results: Annotated[Path, Option(help="the results folder")] = Path("results"),
) -> None:
    """List the models, where their weights come from, and whether they are extracted and scored."""
    rows = list(read_models(models).values())
    if preset is not None:
        read_preset(preset)  # it exists
        rows = [row for row in rows if preset in row.presets.split(",")]
        rows += [model for run in read_runs(preset).values() for model in run.models(preset)]
    cells = [
        (row.model, _state(results / "models" / row.model), row.role, row.layout, row.presets, _weights(row)) for row in rows
    ]
    header = ("model", "state", "role", "layout", "presets", "weights")
    print_table(header, cells)


def _state(folder: Path) -> str:
    if not (folder / artifacts.MANIFEST).is_file():
        return "–"
    manifest = artifacts.read_manifest(folder)
    if manifest["status"] == "failed":
        return "failed"
    state = "scored" if (folder / "scores.csv").is_file() else "extracted"
    return f"{state}, weights dropped" if dropped(folder, manifest) else state


def _weights(row: Model) -> str:
    return f"{row.uri} + {row.adapter}" if row.adapter else row.uri
