"""Texts that every installation already has, standing for the paper's three corpora. Nothing is downloaded.

`reference`: the Python language reference (pydoc_data.topics). `docstrings`: docstrings of the packages named in the
lock, read from their source and never imported. `descriptions`: the long descriptions in those packages' metadata.
They differ between Python versions and locks, so their digest is part of every run's record.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import platform
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from qkgeom.digests import LOCK
from qkgeom.training.corpora.base import Documents

PER_PACKAGE = 30_000  # characters of docstrings at most, so that no package drowns the others
FILES_PER_PACKAGE = 60  # read at most, since some packages have thousands without a docstring
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
SHORTEST = 80  # characters; shorter documents are mostly signatures and links


def _reference() -> Iterator[str]:
    topics = importlib.import_module("pydoc_data.topics").topics
    for text in topics.values():
        yield from re.split(r"\n\n(?=\S)", text)  # paragraphs, so that held-out documents are many and small


def _docstrings() -> Iterator[str]:
    for package in _locked():
        room = PER_PACKAGE
        modules = [file for file in package.files or [] if file.suffix == ".py" and not {"tests", ".."} & set(file.parts)]
        for file in sorted(modules, key=str)[:FILES_PER_PACKAGE]:
            for text in _docstrings_of(Path(str(package.locate_file(file)))) if room > 0 else ():
                room -= len(text)
                yield text


def _descriptions() -> Iterator[str]:
    for package in _locked():
        text = package.metadata.get_payload() or package.metadata.get("Description") or ""
        yield from re.split(r"\n\s*\n", str(text))


def _locked() -> Iterator[Distribution]:
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"([A-Za-z0-9][\w.-]*)==", line):
            with suppress(PackageNotFoundError):  # a pin for another platform
                yield distribution(match[1])


def _docstrings_of(path: Path) -> Iterator[str]:
    with suppress(OSError, SyntaxError, ValueError, RecursionError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in other people's strings
        waiting: list[ast.AST] = [ast.parse(path.read_bytes())]
        while waiting:  # ast.walk would go into every expression
            node = waiting.pop()
            yield ast.get_docstring(node, clean=True) or ""
            if not isinstance(node, _FUNCTIONS):
                waiting += (each for each in node.body if isinstance(each, ast.ClassDef | _FUNCTIONS))


CORPORA = {"reference": _reference, "docstrings": _docstrings, "descriptions": _descriptions}


def documents(name: str, jigsaw_zip: Path | None = None) -> Documents:
    """The documents of an embedded corpus, duplicates removed, in an order that depends on nothing but their text."""
    texts = {" ".join(text.split()) for text in CORPORA[name]()}
    long = (text for text in texts if len(text) >= SHORTEST)
    origin = {"kind": "embedded", "python": platform.python_version()}
    return Documents(sorted(long, key=lambda text: hashlib.sha256(text.encode()).digest()), origin)
