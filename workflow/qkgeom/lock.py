"""models.lock: the commit that each checkpoint of the hub is pinned to, so that a moved branch changes nothing.

A model has a line for its checkpoint, a series one for each step, and a model with an adapter one for the adapter too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from qkgeom import series
from qkgeom.errors import UsageError
from qkgeom.files import write_text
from qkgeom.registry import MODELS, Model
from qkgeom.sources import on_hub, split_uri

LOCK = MODELS.with_suffix(".lock")
ADAPTER = "adapter"
_COMMIT = re.compile(r"[0-9a-f]{40}")
Key = tuple[str, str]  # a model's id and which of its checkpoints


@dataclass(frozen=True)
class Pin:
    """A line of the lock.

    Attributes:
        model: id of the row.
        checkpoint: `final`, the step of a series, or `adapter`.
        repository: as the row names it, with its revision: `org/name@main`.
        commit: what that was when the lock was written.
    """

    model: str
    checkpoint: str
    repository: str
    commit: str

    @property
    def key(self) -> Key:
        """What is pinned."""
        return self.model, self.checkpoint


_HEADER = tuple(each.name for each in fields(Pin))


def read_lock(path: Path = LOCK) -> dict[Key, Pin]:
    """Every line by what it pins; none if there is no such file.

    Raises:
        UsageError: the file cannot be read, or is no lock.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError("the lock of the models cannot be read", where=path, found=error) from error
    pins: dict[Key, Pin] = {}
    for number, line in enumerate(lines, 1):
        cells = tuple(line.split("\t"))
        if number == 1 and cells == _HEADER:
            continue
        if number == 1 or len(cells) != len(_HEADER) or not _COMMIT.fullmatch(cells[-1]) or cells[:2] in pins:
            raise UsageError(
                "a line of the lock of the models is wrong",
                where=f"{path}, line {number}",
                found=repr(line),
                expected=f"the header {' '.join(_HEADER)}, then a line for each checkpoint (once), with a commit of 40 digits, "
                "cells separated by one tab",
                fix="restore the file, or delete it and run `python -m qkgeom lock`",
            )
        pins[cells[:2]] = Pin(*cells)
    return pins


def write_lock(path: Path, pins: Iterable[Pin]) -> None:
    """Writes the whole file, sorted by id and step, or leaves it as it was."""
    write_text(path, "".join("\t".join(line) + "\n" for line in (_HEADER, *map(astuple, sorted(pins, key=_place)))))


def _place(pin: Pin) -> tuple[str, int, str]:
    return pin.model, int(pin.checkpoint) if pin.checkpoint.isdecimal() else -1, pin.checkpoint


def hub_addresses(model: Model) -> dict[str, str]:
    """The row's checkpoints that are on the hub, by `Pin.checkpoint`: `org/name@revision` of each.

    Raises:
        ModelFault: timm has no weights of this name, or not on the hub.
    """
    uris = model.checkpoints | ({ADAPTER: model.adapter} if model.adapter else {})
    addresses = {name: on_hub(uri) for name, uri in uris.items()}
    return {name: address if "@" in address else f"{address}@main" for name, address in addresses.items() if address}


def pinned(model: Model, pins: Mapping[Key, Pin]) -> Model:
    """The row, with the commits of the lock for its revisions.

    Raises:
        UsageError: a line of the lock is of another repository or revision than the row.
        ModelFault: see `hub_addresses`.
    """
    own = {checkpoint: pin for (name, checkpoint), pin in pins.items() if name == model.model}
    addresses = hub_addresses(model) if own else {}  # of a row that is not pinned even its name need not lead anywhere
    commits = {}
    for checkpoint in own.keys() & addresses.keys():
        pin, address = own[checkpoint], addresses[checkpoint]
        if pin.repository != address:
            raise UsageError(
                "the lock pins another repository or revision than the table of models names",
                where=f"models.lock, {model.model} {checkpoint}",
                found=pin.repository,
                expected=address,
                fix=f"run `python -m qkgeom lock {model.model}`",
            )
        commits[checkpoint] = pin.commit
    adapter = _at(model.adapter, commits.pop(ADAPTER, None))
    if model.series:
        return replace(model, series=series.pinned(model.series, commits))
    return replace(model, uri=_at(model.uri, commits.get("final")), adapter=adapter)


def _at(uri: str, commit: str | None) -> str:
    """A URI of the hub at a commit, if there is one."""
    if commit is None:
        return uri
    scheme, name = split_uri(uri)
    return f"{scheme}:{name.partition('@')[0]}@{commit}"
