"""`train`: the models of rows of runs.tsv, one after another in one process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.errors import ModelFault, UsageError
from qkgeom.files import write_json
from qkgeom.runs import RUNS
from qkgeom.settings import PRESETS
from qkgeom.training.losses import write_losses
from qkgeom.training.one_run import train_run
from qkgeom.training.plans import Plan, plans_of

logger = logging.getLogger(__name__)


def command(
    runs: Annotated[list[str], Argument(help="ids of runs of one preset, <preset>.<run>.s<seed>")],
    output: Annotated[Path, Option("--output", "-o", help="folder of the runs; a killed one goes on from what is there")],
    corpora: Annotated[Path | None, Option(help="folder of the tokenised corpora, for runs that read one")] = None,
    table: Annotated[Path, Option(help="table of training runs")] = RUNS,
    presets: Annotated[Path, Option(help="folder of the presets")] = PRESETS,
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:N or mps (where training uses the CPU)")] = "auto",
    threads: Annotated[int | None, Option(min=1, help="CPU threads; all by default")] = None,
) -> None:
    """Train models, keeping snapshots of their weights; a run that is finished is not trained again."""
    set_up_logging()
    chosen = _device(device, threads)
    plans = plans_of(runs, table, presets, chosen)
    if corpora is None and (readers := [run for run, plan in plans.items() if plan.corpus]):
        raise UsageError("a run reads a corpus, and none is given", found=", ".join(readers), fix="give --corpora")
    for run, plan in plans.items():
        write_json(output / run / "done.json", _train(plan, corpora, output / run))


def _train(plan: Plan, corpora: Path | None, folder: Path) -> Mapping[str, object]:
    """The run's record, also if it cannot be trained: the runs after it, and the figures, go on without it."""
    try:
        return train_run(plan, corpora, folder)
    except ModelFault as fault:
        logger.error("%s failed: %s", folder.name, fault)
        write_losses(folder, [])
        nothing = {"steps": 0, "heldout_loss": None, "n_params": None, "snapshots": []}
        return {"status": "failed", "reason": str(fault), **nothing}


def _device(name: str, threads: int | None) -> str:
    import torch

    from qkgeom.device import choose_device, take_free_gpu

    if threads:
        torch.set_num_threads(threads)
    take_free_gpu(name)
    return str(choose_device(name))
