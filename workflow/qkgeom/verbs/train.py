"""`train`: the models of rows of runs.tsv, one after another in one process, or in several that share each of them."""

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
from qkgeom.sole_writer import be_sole_writer
from qkgeom.training import ranks
from qkgeom.training.launching import launch
from qkgeom.training.losses import write_losses
from qkgeom.training.one_run import train_run
from qkgeom.training.plans import Plan, plans_of
from qkgeom.training.run_record import write_provenance

logger = logging.getLogger(__name__)


def command(
    runs: Annotated[list[str], Argument(help="ids of runs of one preset, <preset>.<run>.s<seed>")],
    output: Annotated[Path, Option("--output", "-o", help="folder of the runs; a killed one goes on from what is there")],
    corpora: Annotated[Path | None, Option(help="folder of the tokenised corpora, for runs that read one")] = None,
    table: Annotated[Path, Option(help="table of training runs")] = RUNS,
    presets: Annotated[Path, Option(help="folder of the presets")] = PRESETS,
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:N or mps (where training uses the CPU)")] = "auto",
    threads: Annotated[int | None, Option(min=1, help="CPU threads of a node's processes; all by default")] = None,
    processes: Annotated[int, Option(min=1, help="that train a run together, each on a GPU of its own; the same on a CPU")] = 1,
    nodes: Annotated[int, Option(min=1, help="of a SLURM job, that the processes lie on")] = 1,
) -> None:
    """Train models, keeping snapshots of their weights; a run that is finished is not trained again."""
    set_up_logging()
    be_sole_writer(*(output / run for run in runs))
    if not ranks.is_first():
        logging.getLogger().setLevel(logging.WARNING)
    if processes % nodes:
        found = f"{processes} on {nodes}"
        raise UsageError("the processes cannot be spread over the nodes", found=found, expected="a multiple")
    here = ranks.count_here()  # 1 in what starts the others
    chosen = _device(device, threads and max(1, threads // here), processes // nodes)
    plans = plans_of(runs, table, presets, chosen)
    for plan in plans.values():
        plan.schedule.share(processes)
    if corpora is None and (readers := [run for run, plan in plans.items() if plan.corpus]):
        raise UsageError("a run reads a corpus, and none is given", found=", ".join(readers), fix="give --corpora")
    if processes > ranks.count():
        raise SystemExit(launch(processes, nodes, threads))
    with ranks.connected(chosen):
        for run, plan in plans.items():
            done = _train(plan, corpora, output / run)
            if ranks.is_first():
                write_json(output / run / "done.json", done)
                write_provenance(output / run, done, plan.recipe.seed, corpora / plan.corpus if plan.corpus else None)


def _train(plan: Plan, corpora: Path | None, folder: Path) -> Mapping[str, object]:
    """The run's record, also if it cannot be trained: the runs after it, and the figures, go on without it."""
    try:
        return train_run(plan, corpora, folder)
    except ModelFault as fault:
        logger.error("%s failed: %s", folder.name, fault)
        if ranks.is_first():
            write_losses(folder, [])
        nothing = {"steps": 0, "heldout_loss": None, "n_params": None, "snapshots": []}
        return {"status": "failed", "reason": str(fault), **nothing}


def _device(name: str, threads: int | None, gpus: int) -> str:
    import torch

    from qkgeom.device import choose_device, take_free_gpus

    if threads:
        torch.set_num_threads(threads)
    if gpus > 1 and ":" in name:
        raise UsageError("several processes need several GPUs", found=name, expected="auto, cpu or cuda")
    if ranks.count() == 1:  # else who started them has taken them
        take_free_gpus(name, gpus)
    return str(choose_device(name))
