"""One file per family of the mini zoo: its real class, its objective, its data, and how well it has to do.

A module of this folder that defines a `Family` with its own name is that family; nothing else names it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from qkgeom.errors import QkgeomError, UsageError
from qkgeom.training.families.base import Family


def names() -> tuple[str, ...]:
    """Every family."""
    return tuple(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def load(name: str) -> Family:
    """The family `name`.

    Raises:
        UsageError: there is none.
        QkgeomError: its file defines no family of that name.
    """
    if name not in names():
        raise UsageError("there is no such family", found=name, expected=", ".join(names()))
    module = importlib.import_module(f"{__name__}.{name}")
    for value in vars(module).values():
        if inspect.isclass(value) and issubclass(value, Family) and getattr(value, "name", None) == name:
            return value()
    raise QkgeomError("a family's file does not define it", where=module.__file__, expected=f"a Family with name = {name!r}")
