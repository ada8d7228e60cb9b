"""`table`: Write one table from collected scores and artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.published_values import PUBLISHED
from qkgeom.rendering import Inputs, parse_examples
from qkgeom.sole_writer import be_sole_writer
from qkgeom.tables import render


def command(
    name: Annotated[str, Argument(help="which: the name of a file of qkgeom/tables/")],
    output: Annotated[Path, Option("--output", "-o", metavar="STEM", help="path without ending")],
    summary: Annotated[Path | None, Option(help="summary.csv, one row per model")] = None,
    scores: Annotated[Path | None, Option(help="scores.csv, one row per layer")] = None,
    losses: Annotated[Path | None, Option(help="losses.csv, the loss curves of training runs")] = None,
    runs: Annotated[Path | None, Option(help="runs.csv, one row per training run")] = None,
    updates: Annotated[list[Path] | None, Option(help="folder of a run with measured updates; may repeat")] = None,
    example: Annotated[list[str] | None, Option(metavar="ROLE=FOLDER:LAYER", help="a layer of an artifact; may repeat")] = None,
    published: Annotated[Path, Option(help="published.tsv, what the paper gives")] = PUBLISHED,
    published_way: Annotated[
        list[Path] | None, Option(help="scores of a model read as the paper's code read it; may repeat")
    ] = None,
) -> None:
    """Write a table: STEM.tex, STEM.md as printed, and STEM.csv in full precision."""
    set_up_logging()
    be_sole_writer(output)
    examples, ways = parse_examples(example or []), published_way or ()
    inputs = Inputs(summary, scores, examples, losses, runs, published, ways, None, updates or ())
    render(name, inputs, output)
