"""`collect`: the scores of a run's models in one table, and their summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.collecting import read_scores, summarise
from qkgeom.console import set_up_logging
from qkgeom.errors import UsageError
from qkgeom.files import write_csv
from qkgeom.registry import MODELS, read_models


def command(
    scores: Annotated[list[Path], Argument(help="scores.csv of each model, in folders named by model id")],
    output: Annotated[Path, Option("--output", "-o", help="folder for scores.csv and summary.csv")],
    models: Annotated[Path, Option(help="table of models")] = MODELS,
) -> None:
    """Put the scores of several models in one table and summarise them per model."""
    set_up_logging()
    rows = read_models(models)
    if strangers := [path for path in scores if path.parent.name not in rows]:
        found = ", ".join(map(str, strangers))
        raise UsageError("these scores are of no model in the table of models", where=models, found=found)
    table = read_scores(scores)
    write_csv(output / "scores.csv", table)
    write_csv(output / "summary.csv", summarise(table, [rows[path.parent.name] for path in scores]))
