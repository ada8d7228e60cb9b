"""`lock`: pin every model of the hub to the commit that its revision is now."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.errors import ModelFault, QkgeomError, UsageError
from qkgeom.lock import LOCK, Key, Pin, hub_addresses, read_lock, write_lock
from qkgeom.registry import MODELS, read_models
from qkgeom.sources.hub_listing import look_up, parse_address
from qkgeom.sources.hub_many import SLOTS, ask_each


def command(
    only: Annotated[list[str] | None, Argument(metavar="[MODEL]...", help="ids or patterns of ids; all by default")] = None,
    models: Annotated[Path, Option(help="table of models")] = MODELS,
    output: Annotated[Path, Option("--output", "-o", help="the lock")] = LOCK,
    hub_slots: Annotated[int, Option(min=1, help="repositories asked at a time")] = SLOTS,
) -> None:
    """Pin models of the hub to the commit that their revision is now: every step of a series, and adapters too.

    A repository that is missing or does not answer is named at the end, with exit code 1; the others are written, and its
    line stays as it was.
    """
    set_up_logging()
    wanted, nowhere = _addresses(models)
    on_hub = list(dict.fromkeys([*(model for model, _ in wanted), *nowhere]))
    chosen = [model for model in on_hub if not only or any(fnmatchcase(model, pattern) for pattern in only)]
    if idle := [pattern for pattern in only or () if not any(fnmatchcase(model, pattern) for model in on_hub)]:
        raise UsageError("no model of the hub has this id", where=models, found=", ".join(idle))
    asked = {key: address for key, address in wanted.items() if key[0] in chosen}
    answers = ask_each(lambda address: look_up(*parse_address(address)).commit, sorted({*asked.values()}), hub_slots, "lock")
    before = {key: pin for key, pin in read_lock(output).items() if wanted.get(key) == pin.repository}
    commits = {key: answers[address] for key, address in asked.items()}
    found = {key: Pin(*key, wanted[key], commit) for key, commit in commits.items() if isinstance(commit, str)}
    write_lock(output, (before | found).values())
    faults = {model: fault for (model, _), fault in commits.items() if not isinstance(fault, str)} | nowhere
    failed = [model for model in chosen if model in faults]
    moved = [key for key, pin in found.items() if key in before and before[key] != pin]
    n_moved = len({model for model, _ in moved})
    sys.stdout.write(f"{len(chosen) - len(failed)} models pinned, {n_moved} of them to another commit than before\n")
    for model, checkpoint in moved:
        name = model if checkpoint == "final" else f"{model}, {checkpoint}"
        old, new = (pins[model, checkpoint].commit for pins in (before, found))
        sys.stdout.write(f"{name}: {old} is now {new}\n")
    if failed:
        said = {str(fault): None for fault in (*commits.values(), *map(nowhere.get, chosen)) if isinstance(fault, QkgeomError)}
        sys.stderr.writelines(f"{fault}\n" for fault in said)  # each once
        raise QkgeomError(f"{len(failed)} of {len(chosen)} models are not pinned: {', '.join(failed)}", where=output)


def _addresses(table: Path) -> tuple[dict[Key, str], dict[str, ModelFault]]:
    """The checkpoints on the hub with their addresses, and the models whose name leads nowhere."""
    wanted, nowhere = {}, {}
    for model, row in read_models(table).items():
        try:
            wanted |= {(model, checkpoint): address for checkpoint, address in hub_addresses(row).items()}
        except ModelFault as fault:
            nowhere[model] = fault
    return wanted, nowhere
