"""`lock`: pin every model of the hub to the commit that its revision is now."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.errors import ModelFault, QkgeomError, UsageError
from qkgeom.lock import LOCK, Pin, hub_address, read_lock, write_lock
from qkgeom.registry import MODELS, read_models
from qkgeom.sources.hub_listing import look_up, parse_address
from qkgeom.sources.hub_many import SLOTS, ask_each


def command(
    only: Annotated[list[str] | None, Argument(metavar="[MODEL]...", help="ids or patterns of ids; all by default")] = None,
    models: Annotated[Path, Option(help="table of models")] = MODELS,
    output: Annotated[Path, Option("--output", "-o", help="the lock")] = LOCK,
    hub_slots: Annotated[int, Option(min=1, help="repositories asked at a time")] = SLOTS,
) -> None:
    """Pin models of the hub to the commit that their revision is now; a series names its revisions itself and is left out.

    A repository that is missing or does not answer is named at the end, with exit code 1; the others are written, and its
    line stays as it was.
    """
    set_up_logging()
    wanted, nowhere = _addresses(models)
    on_hub = [*wanted, *nowhere]
    chosen = [model for model in on_hub if not only or any(fnmatchcase(model, pattern) for pattern in only)]
    if idle := [pattern for pattern in only or () if not any(fnmatchcase(model, pattern) for model in on_hub)]:
        raise UsageError("no model of the hub has this id", where=models, found=", ".join(idle))
    addresses = sorted({wanted[model] for model in chosen if model in wanted})
    answers = ask_each(lambda address: look_up(*parse_address(address)).commit, addresses, hub_slots, "lock")
    before = {model: pin for model, pin in read_lock(output).items() if wanted.get(model) == pin.repository}
    commits = {model: nowhere.get(model) or answers[wanted[model]] for model in chosen}
    found = {model: Pin(model, wanted[model], commit) for model, commit in commits.items() if isinstance(commit, str)}
    write_lock(output, (before | found).values())
    moved = [model for model, pin in found.items() if model in before and before[model] != pin]
    sys.stdout.write(f"{len(found)} models pinned, {len(moved)} of them to another commit than before\n")
    sys.stdout.writelines(f"{model}: {before[model].commit} is now {found[model].commit}\n" for model in moved)
    if failed := [model for model in chosen if model not in found]:
        faults = {str(commits[model]): None for model in failed}  # each once
        sys.stderr.writelines(f"{fault}\n" for fault in faults)
        raise QkgeomError(f"{len(failed)} of {len(chosen)} models are not pinned: {', '.join(failed)}", where=output)


def _addresses(table: Path) -> tuple[dict[str, str], dict[str, ModelFault]]:
    """The rows whose weights are on the hub with their addresses, and those whose name leads nowhere."""
    wanted, nowhere = {}, {}
    for model, row in read_models(table).items():
        try:
            if address := hub_address(row):
                wanted[model] = address
        except ModelFault as fault:
            nowhere[model] = fault
    return wanted, nowhere
