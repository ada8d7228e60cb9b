"""`plan`: what a run would move, store and compute, before it does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from typer import Option

from qkgeom.budget import HOW as HOW_OF_BUDGET
from qkgeom.budget import Budget, budget
from qkgeom.console import print_table, set_up_logging
from qkgeom.lock import LOCK, pinned, read_lock
from qkgeom.planning import HOW, Plan, disk, plan_models
from qkgeom.registry import MODELS, Model, read_models
from qkgeom.runs import read_runs
from qkgeom.settings import preset_names, read_preset, read_settings
from qkgeom.sources.hub_many import SLOTS

CONFIG = MODELS.parents[1] / "config.yaml"
HEADER = ("model", "state", "move", "checkpoint", "disk", "seconds", "note")


def command(
    preset: Annotated[str | None, Option(help="only the models of this preset")] = None,
    as_json: Annotated[bool, Option("--json", help="JSON on stdout")] = False,
    models: Annotated[Path, Option(help="table of models")] = MODELS,
    lock: Annotated[Path, Option(help="the lock of the models")] = LOCK,
    results: Annotated[Path, Option(help="the results folder, whose artifacts need not be moved")] = Path("results"),
    hub_slots: Annotated[int, Option(min=1, help="repositories asked at a time")] = SLOTS,
) -> None:
    """Tell what each published model costs: bytes to move of its checkpoint's, disk, rough compute time; and a whole preset.

    No weights are moved: the headers of the checkpoints are, once. Gated models that this token may not read, and models
    without a usable file, say so. Without the hub the numbers are estimates from the table, and say so too.
    """
    set_up_logging()
    presets = [read_preset(each) for each in ([preset] if preset else preset_names())]
    shown = {example["model"] for each in presets for example in each.get("examples", {}).values()}
    rows = [row for row in read_models(models).values() if preset is None or preset in row.presets.split(",")]
    pins = read_lock(lock)
    plans = plan_models([pinned(row, pins) for row in rows], hub_slots, results)
    total, lean = _total(plans), disk(plans, kept=shown)
    whole = _budget(preset, rows, plans, results) if preset else None
    if as_json:
        totals = asdict(total) | {"disk": disk(plans), "disk_dropping": lean}
        answer = {"models": [asdict(plan) for plan in plans], "total": totals, "how": HOW}
        if whole:
            answer |= {"preset": whole.record(), "how_preset": HOW_OF_BUDGET}
        sys.stdout.write(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
        return
    lines = [_cells(plan, (plan.store or 0) + plan.whole if plan.store is not None or plan.whole else None) for plan in plans]
    lines.append(_cells(total, disk(plans)))
    lines.append(_cells(replace(total, model="total, keep_weights: false"), lean))
    print_table(HEADER, lines)
    sys.stderr.write(f"{HOW}\n")
    if whole:
        sys.stderr.write(f"\npreset {preset} with all it trains, roughly: {whole.told()}\n{HOW_OF_BUDGET}\n")


def _budget(preset: str, rows: Sequence[Model], plans: Sequence[Plan], results: Path) -> Budget:
    """Of the preset, with the knobs of this folder's config.yaml, or of the project's where there is none."""
    import yaml

    path = Path("config.yaml") if Path("config.yaml").is_file() else CONFIG
    settings = read_settings({**yaml.safe_load(path.read_text(encoding="utf-8")), "preset": preset})
    return budget(rows, plans, read_runs(preset), settings, results)


def _total(plans: Sequence[Plan]) -> Plan:
    """The sum; a checkpoint that several models share counts once, and so does a file of theirs that moves whole."""
    states = [plan.state for plan in plans]
    note = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    checkpoints, whole = ({plan.uri: getattr(plan, size) or 0 for plan in plans} for size in ("checkpoint", "whole"))
    moves = {plan.uri if plan.whole else plan.model: plan.move or 0 for plan in plans}
    seconds = round(sum(plan.seconds or 0.0 for plan in plans), 1)
    store = sum(plan.store or 0 for plan in plans)
    return Plan("total", "", "", sum(moves.values()), sum(checkpoints.values()), store, seconds, note, sum(whole.values()))


def _cells(plan: Plan, size: int | None) -> tuple[str, ...]:
    if not sys.stdout.isatty():
        numbers = ["" if each is None else str(each) for each in (plan.move, plan.checkpoint, size, plan.seconds)]
    else:
        numbers = [_megabytes(each) for each in (plan.move, plan.checkpoint, size)]
        numbers.append("" if plan.seconds is None else f"{plan.seconds:,.0f}")
    return plan.model, plan.state, *numbers, plan.note


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f} MB"
