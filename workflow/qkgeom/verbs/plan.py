"""`plan`: what a run would move, store and compute, before it does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Option

from qkgeom.console import print_table, set_up_logging
from qkgeom.lock import LOCK, pinned, read_lock
from qkgeom.planning import HOW, Plan, plan_models
from qkgeom.registry import MODELS, read_models
from qkgeom.settings import read_preset
from qkgeom.sources.hub_many import SLOTS

HEADER = ("model", "state", "move", "checkpoint", "disk", "seconds", "note")


def command(
    preset: Annotated[str | None, Option(help="only the models of this preset")] = None,
    as_json: Annotated[bool, Option("--json", help="JSON on stdout")] = False,
    models: Annotated[Path, Option(help="table of models")] = MODELS,
    lock: Annotated[Path, Option(help="the lock of the models")] = LOCK,
    hub_slots: Annotated[int, Option(min=1, help="repositories asked at a time")] = SLOTS,
) -> None:
    """Tell what each published model costs: bytes to move of its checkpoint's, disk, rough compute time.

    No weights are moved: the headers of the checkpoints are, once. Gated models that this token may not read, and models
    without a usable file, say so. Without the hub the numbers are estimates from the table, and say so too.
    """
    set_up_logging()
    if preset is not None:
        read_preset(preset)  # it exists
    rows = [row for row in read_models(models).values() if preset is None or preset in row.presets.split(",")]
    pins = read_lock(lock)
    plans = plan_models(rows, {row.model: row.uris[-1] if row.series else pinned_uri(row, pins) for row in rows}, hub_slots)
    total = _total(plans)
    if as_json:
        answer = {"models": [asdict(plan) for plan in plans], "total": asdict(total), "how": HOW}
        sys.stdout.write(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
        return
    print_table(HEADER, [_cells(plan) for plan in [*plans, total]])
    sys.stderr.write(f"{HOW}\n")


def _total(plans: Sequence[Plan]) -> Plan:
    """The sum; a checkpoint that several models share counts once."""
    states = [plan.state for plan in plans]
    note = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    checkpoints = {plan.uri: plan.checkpoint or 0 for plan in plans}
    move, store = (sum(getattr(plan, which) or 0 for plan in plans) for which in ("move", "store"))
    seconds = round(sum(plan.seconds or 0.0 for plan in plans), 1)
    return Plan("total", "", "", move, sum(checkpoints.values()), store, seconds, note)


def _cells(plan: Plan) -> tuple[str, ...]:
    if not sys.stdout.isatty():
        numbers = ["" if each is None else str(each) for each in (plan.move, plan.checkpoint, plan.store, plan.seconds)]
    else:
        numbers = [_megabytes(each) for each in (plan.move, plan.checkpoint, plan.store)]
        numbers.append("" if plan.seconds is None else f"{plan.seconds:,.0f}")
    return plan.model, plan.state, *numbers, plan.note


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.1f} MB"
