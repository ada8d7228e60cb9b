"""`collect`: the scores of all models in one table, their summary, and the loss curves of the training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom import provenance
from qkgeom.collecting import DESCRIPTION, describe_runs, read_losses, read_record, read_scores, summarise, with_sizes
from qkgeom.console import set_up_logging
from qkgeom.errors import UsageError
from qkgeom.files import write_csv
from qkgeom.null import with_z
from qkgeom.registry import MODELS, read_models
from qkgeom.runs import RUNS, read_runs
from qkgeom.settings import read_preset
from qkgeom.sole_writer import be_sole_writer


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
    be_sole_writer(output)
    read_preset(preset)  # it exists
    trained = read_runs(preset, runs)
    folders = run or []
    rows = read_models(models) | {model.model: model for each in trained.values() for model in each.models(preset)}
    strangers = [path.parent for path in scores if path.parent.name not in rows]
    if strangers := [*strangers, *(folder for folder in folders if folder.name not in trained)]:
        found = ", ".join(map(str, strangers))
        fix = "give each a row in workflow/models.tsv (docs/extending.md); its artifact's folder is named as the row"
        raise UsageError("these are of no model in the table of models or of runs", where=models, found=found, fix=fix)
    table = with_z(read_scores(scores))
    records = {f"run:{folder.name}": read_record(folder) for folder in folders}
    scored = with_sizes([rows[path.parent.name] for path in scores], records)
    write_csv(output / "scores.csv", table)
    write_csv(output / "summary.csv", summarise(table, scored))
    write_csv(output / "losses.csv", read_losses(folders))
    write_csv(output / "runs.csv", describe_runs([(trained[folder.name], folder) for folder in folders], preset))
    described = {each.model: {key: getattr(each, key) for key in DESCRIPTION} for each in scored}
    provenance.write_record(
        output / provenance.OF_FOLDER,
        "collect",
        [*scores, *(folder / name for folder in folders for name in ("done.json", "losses.csv"))],
        [output / f"{name}.csv" for name in ("scores", "summary", "losses", "runs")],
        provenance.code_of("collect"),
        ("numpy", "pandas", "scipy"),
        parameters={"preset": preset, "models": described},
    )
