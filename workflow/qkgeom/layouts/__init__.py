"""One file per architecture family: the names of its query and key tensors, and how they become W_q and W_k.

Every module of this folder is imported and every `Layout` in it is registered under its name. To add an
architecture, add one file (docs/extending.md); nothing else names it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache

from qkgeom.errors import ModelFault, QkgeomError, UsageError
from qkgeom.layouts.base import Layout


@cache
def all_layouts() -> dict[str, Layout]:
    """Every layout by name.

    Raises:
        QkgeomError: two layouts share a name.
    """
    found: dict[str, Layout] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            if not (inspect.isclass(value) and issubclass(value, Layout) and value.__module__ == module.__name__):
                continue
            if not getattr(value, "name", None):
                continue  # a base class
            if value.name in found:
                raise QkgeomError(f"two layouts are called {value.name}", where=[found[value.name].file, module.__file__])
            found[value.name] = value()
    return found


def layout_named(name: str) -> Layout:
    """The layout `name`.

    Raises:
        UsageError: there is none.
    """
    try:
        return all_layouts()[name]
    except KeyError:
        raise UsageError(
            f"no layout is called {name!r}",
            expected="one of " + ", ".join(sorted(all_layouts())),
            fix="correct the name, or add a file to workflow/qkgeom/layouts/",
        ) from None


def layout_for(config: Mapping[str, object], part: str | None = None) -> Layout:
    """The layout that reads a config.json's architecture (its `model_type`, or timm's `architecture`) and part.

    Raises:
        ModelFault: none does.
        UsageError: several parts do and none was chosen, or the architecture has no such part.
    """
    matching = [layout for layout in all_layouts().values() if layout.reads(config)]
    chosen = [layout for layout in matching if layout.part == part]
    if len(chosen) == 1:
        return chosen[0]
    if matching:
        parts = sorted(str(layout.part) for layout in matching)
        raise UsageError(
            f"this architecture has the parts {', '.join(parts)}"
            if parts != ["None"]
            else "this architecture has one part only",
            found=f"--part {part}" if part else "no --part",
            fix="choose one with --part" if parts != ["None"] else "leave out --part",
        )
    known = sorted({kind for layout in all_layouts().values() for kind in layout.model_types})
    raise ModelFault(
        "no layout reads this architecture",
        found=config.get("model_type") or config.get("architecture") or "a checkpoint that does not say its architecture",
        expected="one of " + ", ".join(known),
        fix="if it is one of these under another name, say so with --architecture (and --n-head, --n-kv-head); "
        "else add a file to workflow/qkgeom/layouts/",
    )
