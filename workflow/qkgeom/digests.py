"""Digests of the code a pipeline step can reach, since Snakemake does not see a change in imported modules.

The imports of a module are read from its source, so nothing is imported. What is found at run time by walking a
folder (layouts, figures, tables, sources) is added by the caller, so that a step depends on its own file only.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
BESIDE = (".tsv", ".csv", ".json", ".html", ".css", ".js")  # of data beside a module
LOCK = PACKAGE.parents[1] / "envs" / "requirements.txt"


def code_digest(*modules: str, without: tuple[str, ...] = (), package: Path = PACKAGE, lock: Path = LOCK) -> str:
    """Digest of the named modules, all qkgeom modules they import, data files beside them, and the environment's lock.

    Args:
        modules: dotted names below the package, e.g. `verbs.score`.
        without: modules that these import, but not for what the step writes.
        package: the package's folder.
        lock: the pinned requirements.

    Returns:
        16 hexadecimal digits.
    """
    files = {file for module in modules for file in _reach(package, module, without)}
    digest = hashlib.sha256(lock.read_bytes())
    for file in sorted(files):
        digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _reach(package: Path, module: str, without: tuple[str, ...] = ()) -> frozenset[Path]:
    """The files of a module and of everything of the package that it imports, at any depth, but for some modules."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file(package, name)
        if path is None or path in found or name in without:
            continue
        found.add(path)
        # a table beside a module, under the same name, is part of it
        found.update(sibling for sibling in path.parent.glob(f"{path.stem}.*") if sibling.suffix in BESIDE)
        waiting += _imports(package, path)
    return frozenset(found)


def _imports(package: Path, path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            names: Iterable[str] = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        prefix = package.name + "."
        yield from (name.removeprefix(prefix) for name in names if name.startswith(prefix))


def _file(package: Path, module: str) -> Path | None:
    base = package.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
