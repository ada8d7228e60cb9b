"""Names that other libraries give to checkpoints: tables beside the sources, written from those libraries by a tool."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from qkgeom.errors import ModelFault

T = TypeVar("T")  # PEP 695 needs Python 3.12


def read_names(table: Path) -> dict[str, dict[str, str]]:
    """The rows of a table by their column `name`, in its order."""
    with table.open(newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}


def named(names: Mapping[str, T], name: str, library: str, fix: str) -> T:
    """What a name stands for.

    Args:
        names: all names.
        name: as the user gave it.
        library: whose names they are.
        fix: what to do if there is no such name.

    Raises:
        ModelFault: there is none; the message has the nearest ones.
    """
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.0)
    expected = f"one of {len(names)} names; the nearest are {', '.join(near)}"
    raise ModelFault(f"{library} has no weights of this name", found=name, expected=expected, fix=fix)
