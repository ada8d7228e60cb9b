"""The updates of one training run, measured at the steps whose snapshots are whole, on the batches it saw next.

`updates/` in the run's folder then holds updates.csv, resamples.csv, growth.csv, tokens.csv, terms.csv, their record of
provenance and, last, record.json. A run that has it is not measured again unless something that the result depends on has
changed.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, load_model

from qkgeom.digests import code_digest
from qkgeom.errors import ModelFault, QkgeomError, UsageError
from qkgeom.files import write_csv, write_json
from qkgeom.provenance import OF_FOLDER, write_record
from qkgeom.theory.attention import attention_gradients
from qkgeom.theory.factors import factors
from qkgeom.theory.sums import step_sums, without_tokens
from qkgeom.theory.tables import change_rows, growth_rows, score_rows, term_rows, token_rows
from qkgeom.theory.updates import products
from qkgeom.training.families.base import Data
from qkgeom.training.plans import Plan
from qkgeom.training.sequences import IGNORED
from qkgeom.training.snapshots import snapshot_folder
from qkgeom.training.state import read_back
from qkgeom.training.tokens import read_corpus

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

logger = logging.getLogger(__name__)
FOLDER, RECORD = "updates", "record.json"
PACKAGES = ("numpy", "pandas", "torch", "transformers")
TABLES = ("updates", "resamples", "growth", "tokens", "terms")


def measure_run(plan: Plan, corpora: Path, folder: Path, batches: int, texts: Mapping[int, str]) -> Mapping[str, object]:
    """Measures a trained run's updates into its folder, unless that is done.

    Args:
        plan: of the run.
        corpora: folder of the tokenised corpora, by name.
        folder: of the run.
        batches: training batches per step.
        texts: of tokens, for a reader.

    Returns:
        The record: `status` (`ok`, or that of a run that did not end well), `steps`, `batches`, `losses` and `definition`.

    Raises:
        ModelFault: a snapshot is missing or no whole one, its weights are not those of the plan's model, or the model is
            one whose updates cannot be measured (RoPE, no tokens).
        QkgeomError: the run is not trained, its attention cannot be recorded, or a loss is not finite.
        UsageError: the preset does not measure the updates of this run.
    """
    done = _trained(folder)
    definition = read_back({"trained": done.get("definition"), "batches": batches, "code": code_digest("theory.one_run")})
    record = _finished(folder / FOLDER, definition)
    if record is not None:
        return record
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    if done["status"] not in ("ok", "not_learned"):
        logger.warning("%s did not end well (%s), so its updates are not measured", folder.name, done["status"])
        record, tables = {"status": done["status"], "steps": [], "losses": []}, {}
    else:
        record, tables = _measured(plan, corpora, folder, batches, dict(texts))
    written = [folder / FOLDER / f"{name}.csv" for name in tables]
    for path, table in zip(written, tables.values(), strict=True):
        write_csv(path, table)
    write_record(
        folder / FOLDER / OF_FOLDER,
        "updates",
        [folder / "done.json", *([corpora / plan.corpus / "corpus.json"] if plan.corpus else [])],
        written,
        definition["code"],
        PACKAGES,
        parameters={"batches": batches},
        device="cpu",
        threads=torch.get_num_threads(),
        seed=plan.recipe.seed,
    )
    record |= {"batches": batches, "definition": definition}
    write_json(folder / FOLDER / RECORD, record)
    return record


def _measured(
    plan: Plan, corpora: Path, folder: Path, batches: int, texts: dict[int, str]
) -> tuple[dict[str, object], dict[str, pd.DataFrame]]:
    import pandas as pd

    if not plan.family.reads_corpus:
        raise without_tokens(folder.name, f"family {plan.family.name}, which reads no corpus")
    corpus = read_corpus(corpora / plan.corpus)
    data, schedule = plan.family.data(plan.recipe, corpus), plan.schedule
    model = plan.family.build(plan.recipe, corpus).double()
    steps = sorted({*schedule.whole} - {schedule.steps})
    if not steps:
        batch = _batch(data, plan, 0)
        step_sums(model, [batch], [_targets(data, batch)], plan.recipe.seed)  # refuses what no preset could measure
        raise _not_measured(folder.name)
    W_qk = {step: _layer_products(model, folder, step) for step in (*steps, schedule.steps)}
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    losses: dict[str, list[float]] = {}
    for step, until in zip(steps, [*steps[1:], schedule.steps], strict=True):
        _load(model, folder, step)
        chosen = [_batch(data, plan, step + each) for each in range(batches)]
        sums = step_sums(model, chosen, [_targets(data, batch) for batch in chosen], plan.recipe.seed)
        changes = {"realised": _differences(W_qk[until], W_qk[step]), "weights": W_qk[step]}
        if step == steps[0]:
            changes["realised_all"] = _differences(W_qk[schedule.steps], W_qk[step])
        if step == min(steps, key=lambda each: abs(2 * each - schedule.steps)):  # the middle
            changes["realised_second_half"] = _differences(W_qk[schedule.steps], W_qk[step])
        scores, resamples = score_rows(sums, changes, plan.recipe.seed)
        found = {"updates": scores, "resamples": resamples, "growth": growth_rows(sums, W_qk[until])}
        if step == steps[len(steps) // 2]:
            index = len(sums.layers) // 2
            beta = attention_gradients(model, chosen[0])[1][index].beta.sum(1).numpy()
            terms = term_rows(sums.layers[index], beta, chosen[0]["input_ids"].numpy(), texts)
            found |= {"tokens": token_rows(sums, W_qk[until], texts), "terms": terms.assign(layer=index)}
        for name, table in found.items():
            parts[name].append(table.assign(model=folder.name, step=step, until=until))
        losses[str(step)] = sums.losses
        logger.info("%s: updates at step %d of %d, loss %.4f", folder.name, step, schedule.steps, sums.losses[0])
    last = schedule.steps
    parts["updates"].append(change_rows("weights", W_qk[last]).assign(model=folder.name, step=last, until=last))
    tables = {name: pd.concat(each, ignore_index=True) for name, each in parts.items()}
    first = ["model", "step", "until"]
    ordered = {name: table[[*first, *(each for each in table if each not in first)]] for name, table in tables.items()}
    return {"status": "ok", "steps": steps, "losses": losses}, ordered


def _not_measured(run: str) -> UsageError:
    return UsageError(
        "the preset does not measure the updates of a run, so that its snapshots hold no whole model",
        where=run,
        expected="a run that a pattern of the preset's `training: updates: runs` names, and a step before the last in `steps`",
        fix=f"name {run.partition('.')[2]} there (presets/{run.partition('.')[0]}.yaml), and train the run again",
    )


def _trained(folder: Path) -> Mapping[str, object]:
    try:
        return json.loads((folder / "done.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise QkgeomError("a run is not trained", where=folder, found=error, fix="train it first") from error


def _finished(folder: Path, definition: Mapping[str, object]) -> Mapping[str, object] | None:
    """The record of updates that were measured under this very definition."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["definition"] != definition:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    logger.info("%s is measured already", folder)
    return record


def _batch(data: Data, plan: Plan, step: int) -> dict[str, torch.Tensor]:
    """The first micro-batch of the step after `step`, as the run saw it."""
    schedule = plan.schedule
    first = step * schedule.batch * schedule.accumulation
    return data.train_batch(range(first, first + schedule.batch))


def _targets(data: Data, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    targets = data.targets(batch)
    return targets[targets != IGNORED]


def _layer_products(model: torch.nn.Module, folder: Path, step: int) -> list[np.ndarray]:
    """W_qk of every layer at a step, [d, d] each, from the queries and keys of its snapshot."""
    state = load_file(_weights(folder, step))
    return [products(W_q.double(), W_k.double()).sum(0).numpy() for W_q, W_k in factors(state, model.config)]


def _load(model: torch.nn.Module, folder: Path, step: int) -> None:
    path = _weights(folder, step)
    try:
        load_model(model, path)
    except RuntimeError as error:
        raise ModelFault(
            "a snapshot does not hold the whole model",
            where=path,
            found=str(error).splitlines()[-1].strip(),
            expected="every weight of the run's model",
            fix="name its step in the preset's `updates: steps`, and train the run again",
        ) from error


def _weights(folder: Path, step: int) -> Path:
    path = snapshot_folder(folder, step) / "model.safetensors"
    if not path.is_file():
        raise ModelFault("a snapshot is missing", where=path, expected=f"the weights after step {step}", fix="train it again")
    return path


def _differences(later: list[np.ndarray], earlier: list[np.ndarray]) -> list[np.ndarray]:
    return [after - before for after, before in zip(later, earlier, strict=True)]
