"""`collect`: the scores of all models in one table, their summary, and the loss curves of the training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.collecting import describe_runs, read_losses, read_scores, summarise
from qkgeom.console import set_up_logging
from qkgeom.errors import UsageError
from qkgeom.files import write_csv
from qkgeom.registry import MODELS, read_models
from qkgeom.runs import RUNS, read_runs


def command(
    scores: Annotated[list[Path], Argument(help="scores.csv of each model, in folders named by model id")],
    output: Annotated[Path, Option("--output", "-o", help="folder for scores, summary, losses and runs (.csv)")],
    run: Annotated[list[Path] | None, Option(help="folder of a finished training run; may repeat")] = None,
    preset: Annotated[str, Option(help="whose training runs these are")] = "mini",
    models: Annotated[Path, Option(help="table of models")] = MODELS,
    runs: Annotated[Path, Option(help="table of training runs")] = RUNS,
) -> None:
    """Put the scores of several models in one table and summarise them per model; likewise the loss curves of runs."""
    set_up_logging()
    trained = read_runs(preset, runs)
    rows = read_models(models) | {name: each.as_model(preset) for name, each in trained.items()}
    folders = [*(path.parent for path in scores), *(run or [])]
    if strangers := [folder for folder in folders if folder.name not in rows]:
        found = ", ".join(map(str, strangers))
        raise UsageError("these are of no model in the table of models or of runs", where=models, found=found)
    table = read_scores(scores)
    write_csv(output / "scores.csv", table)
    write_csv(output / "summary.csv", summarise(table, [rows[path.parent.name] for path in scores]))
    write_csv(output / "losses.csv", read_losses(run or []))
    write_csv(output / "runs.csv", describe_runs([(trained[folder.name], folder) for folder in run or []]))
