"""models.lock: the commit that each model of the hub is pinned to, so that a moved branch changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.files import write_text
from qkgeom.registry import MODELS, Model
from qkgeom.sources import on_hub, split_uri

LOCK = MODELS.with_suffix(".lock")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, order=True)
class Pin:
    """A line of the lock.

    Attributes:
        model: id of the row.
        repository: as the row names it, with its revision: `org/name@main`.
        commit: what that was when the lock was written.
    """

    model: str
    repository: str
    commit: str


_HEADER = tuple(each.name for each in fields(Pin))


def read_lock(path: Path = LOCK) -> dict[str, Pin]:
    """Every line by model; none if there is no such file.

    Raises:
        UsageError: the file cannot be read, or is no lock.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError("the lock of the models cannot be read", where=path, found=error) from error
    pins: dict[str, Pin] = {}
    for number, line in enumerate(lines, 1):
        cells = tuple(line.split("\t"))
        if number == 1 and cells == _HEADER:
            continue
        if number == 1 or len(cells) != len(_HEADER) or not _COMMIT.fullmatch(cells[-1]) or cells[0] in pins:
            raise UsageError(
                "a line of the lock of the models is wrong",
                where=f"{path}, line {number}",
                found=repr(line),
                expected="a header, then an id (each once), a repository and a commit of 40 digits, separated by one tab",
                fix="run `python -m qkgeom lock`, or restore the file",
            )
        pins[cells[0]] = Pin(*cells)
    return pins


def write_lock(path: Path, pins: Iterable[Pin]) -> None:
    """Writes the whole file, sorted by id, or leaves it as it was."""
    write_text(path, "".join("\t".join(line) + "\n" for line in (_HEADER, *map(astuple, sorted(pins)))))


def hub_address(model: Model) -> str | None:
    """`org/name@revision` of a row whose weights are on the hub, else None; a series is not pinned, its revisions are steps.

    Raises:
        ModelFault: timm has no weights of this name, or not on the hub.
    """
    address = None if model.series else on_hub(model.uri)
    return address if address is None or "@" in address else f"{address}@main"


def pinned_uri(model: Model, pins: Mapping[str, Pin]) -> str:
    """The row's URI, with the commit of the lock for its revision.

    Raises:
        UsageError: the lock's line is of another repository or revision than the row.
        ModelFault: see `hub_address`.
    """
    pin = pins.get(model.model)
    address = pin and hub_address(model)
    if pin is None or address is None:
        return model.uri
    if pin.repository != address:
        raise UsageError(
            "the lock pins another repository or revision than the table of models names",
            where=f"models.lock, {model.model}",
            found=pin.repository,
            expected=address,
            fix=f"run `python -m qkgeom lock {model.model}`",
        )
    scheme, name = split_uri(model.uri)
    return f"{scheme}:{name.partition('@')[0]}@{pin.commit}"
