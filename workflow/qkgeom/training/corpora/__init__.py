"""The texts that models are trained on. One file per kind of place they come from.

A module of this folder names its corpora in `CORPORA` and reads them with `documents(name, jigsaw_zip)`; nothing else
names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.training.corpora.base import Documents


@cache
def kinds() -> dict[str, str]:
    """Every corpus, with the module of this folder that reads it."""
    modules = [module.name for module in pkgutil.iter_modules(__path__) if module.name != "base"]
    return {name: module for module in modules for name in importlib.import_module(f"{__name__}.{module}").CORPORA}


def kind_of(name: str) -> str:
    """The module of this folder that reads a corpus.

    Raises:
        UsageError: there is no such corpus.
    """
    if name not in kinds():
        raise UsageError("there is no such corpus", found=name, expected=", ".join(kinds()))
    return kinds()[name]


def documents(name: str, jigsaw_zip: Path | None = None) -> Documents:
    """The texts of a corpus.

    Args:
        name: of the corpus.
        jigsaw_zip: the user's file for the corpus that nobody may pass on.

    Raises:
        UsageError: there is no such corpus, or it needs a file that is not there.
        QkgeomError: it cannot be read; also later, while the texts are gone through.
    """
    return importlib.import_module(f"{__name__}.{kind_of(name)}").documents(name, jigsaw_zip)
