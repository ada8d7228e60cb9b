"""`updates`: the weight updates of trained runs against the theory (docs/theory.md), one after another in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.files import write_json
from qkgeom.runs import RUNS
from qkgeom.settings import PRESETS
from qkgeom.sole_writer import be_sole_writer
from qkgeom.training.plans import plans_of


def command(
    runs: Annotated[list[str], Argument(help="ids of trained runs of one preset, <preset>.<run>.s<seed>")],
    output: Annotated[Path, Option("--output", "-o", help="folder of the runs; each gets a folder `updates`")],
    corpora: Annotated[Path, Option(help="folder of the tokenised corpora, and of their tokenizer.json")],
    batches: Annotated[int, Option(min=2, help="training batches at each measured step")] = 8,
    table: Annotated[Path, Option(help="table of training runs")] = RUNS,
    presets: Annotated[Path, Option(help="folder of the presets")] = PRESETS,
    threads: Annotated[int | None, Option(min=1, help="CPU threads; all by default")] = None,
) -> None:
    """Measure the updates of runs at their whole snapshots; a run that is measured is not measured again."""
    set_up_logging()
    be_sole_writer(*(output / run / "updates" for run in runs))
    plans = plans_of(runs, table, presets, "cpu")
    texts = _texts(corpora / "tokenizer.json")
    import torch

    from qkgeom.theory.one_run import FOLDER, measure_run

    if threads:
        torch.set_num_threads(threads)
    for run, plan in plans.items():
        record = measure_run(plan, corpora, output / run, batches, texts)
        write_json(output / run / FOLDER / "done.json", record)  # apart, since a pipeline deletes its outputs before a job


def _texts(path: Path) -> dict[int, str]:
    """What tokens stand for, by id; none without a tokenizer."""
    from tokenizers import Tokenizer

    return {number: text for text, number in Tokenizer.from_file(str(path)).get_vocab().items()} if path.is_file() else {}
