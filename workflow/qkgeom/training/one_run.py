"""One row of runs.tsv with one seed, from its recipe to its record.

`record.json` is written last, and then `state/` goes. A run that has one is not trained again unless something that
its result depends on has changed; so of several runs in one job, a restart trains only those that are missing.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.digests import code_digest
from qkgeom.errors import ModelFault, UsageError
from qkgeom.files import write_json
from qkgeom.training import ranks
from qkgeom.training.families.base import Data
from qkgeom.training.plans import Plan
from qkgeom.training.state import RECORD, STATE, read_back
from qkgeom.training.tokens import Corpus, read_corpus

if TYPE_CHECKING:
    import torch

    from qkgeom.training.loop import Outcome

logger = logging.getLogger(__name__)
MEASURED = 32  # held-out batches of the metric: of a few, the best constant prediction would look too good


def train_run(plan: Plan, corpora: Path | None, folder: Path) -> Mapping[str, object]:
    """Trains a model into its folder, unless it is there.

    Args:
        plan: of the run.
        corpora: folder of the tokenised corpora, by name; not needed for a run that reads none.
        folder: of the run.

    Returns:
        The record: `status` (`ok`, `diverged`, or `not_learned`: it misses the margin), `steps`, `heldout_loss`,
        `n_params`, `measured` (metric, value, baseline, gain, margin), `snapshots`, `definition`. Of several processes
        (`ranks`) the first writes it, and all return it.

    Raises:
        ModelFault: its recipe and corpus give no examples.
        TransientFault: it was told to stop (SIGTERM, Ctrl-C) and its state is saved, or the disk refuses a write.
    """
    corpus = read_corpus(corpora / plan.corpus) if plan.corpus else None
    try:
        data = plan.family.data(plan.recipe, corpus)
    except UsageError as error:
        raise ModelFault(f"a run has no examples to train on: {error}", where=folder) from error
    code = code_digest("training.one_run", f"training.families.{plan.family.name}")
    definition = {**asdict(plan.recipe), **asdict(plan.schedule), "family": plan.family.name, "margin": plan.margin}
    definition |= {"corpus": plan.corpus, "data_digest": data.digest, "code": code}
    record = ranks.of_first(lambda: _finished(folder, definition))
    return record if record is not None else _trained(plan, corpus, data, folder, definition)


def _trained(
    plan: Plan, corpus: Corpus | None, data: Data, folder: Path, definition: Mapping[str, object]
) -> Mapping[str, object]:
    from qkgeom.training import loop

    family, schedule = plan.family, plan.schedule
    model = family.build(plan.recipe, corpus)
    outcome = loop.train(model, data, folder, schedule, plan.recipe.seed, family.is_query_or_key, definition)
    return ranks.of_first(lambda: _recorded(plan, model, data, folder, outcome, definition))


def _recorded(
    plan: Plan, model: torch.nn.Module, data: Data, folder: Path, outcome: Outcome, definition: Mapping[str, object]
) -> Mapping[str, object]:
    """Measures a trained model and writes its record."""
    family, schedule = plan.family, plan.schedule
    record = {**vars(outcome), "n_params": sum(each.numel() for each in model.parameters())}
    if outcome.status == "diverged":
        logger.warning("%s diverged: its loss is not finite after step %d", folder.name, outcome.steps)
    if outcome.status == "ok":
        measured = family.measure(model, data, data.heldout_batches(schedule.batch, MEASURED))
        record["measured"] = {**vars(measured), "gain": measured.gain, "margin": plan.margin}
        if plan.margin is not None and measured.gain < plan.margin:
            record["status"] = "not_learned"
    record |= {"snapshots": schedule.snapshots, "definition": definition}
    write_json(folder / RECORD, record)
    shutil.rmtree(folder / STATE, ignore_errors=True)  # as large as three models, and of no more use
    return record


def _finished(folder: Path, definition: Mapping[str, object]) -> Mapping[str, object] | None:
    """The record of a finished run with this very definition."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["definition"] != read_back(definition):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    logger.info("%s is trained already", folder)
    return record
