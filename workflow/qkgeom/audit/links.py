"""A record of provenance held against the files it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from qkgeom.audit.findings import Part
from qkgeom.errors import QkgeomError
from qkgeom.files import sha256_of
from qkgeom.provenance import Record, read_record


class Digests:
    """The sha256 of files, each computed once."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}

    def __call__(self, path: Path) -> str:
        """Of a file.

        Raises:
            OSError: it cannot be read.
        """
        path = path.resolve()
        if path not in self._known:
            self._known[path] = sha256_of(path)
        return self._known[path]


def check_record(
    part: Part, path: Path, digests: Digests, again: str, absent: Callable[[str], str | None] = lambda name: None
) -> Record | None:
    """Compares the files of a record with their digests; adds findings, and gives the record if there is one.

    Args:
        part: what the record belongs to.
        path: of the record.
        digests: of files.
        again: how to make the outputs again.
        absent: file -> why it may be missing, None if it may not.
    """
    try:
        record = read_record(path)
    except QkgeomError as error:
        found = f"{error.what} ({error.details})" if path.exists() else "no such file"
        part.found(path, "", found, "the record of how the files beside it were made", again)
        return None
    part.count("records")
    for name, kept in record.outputs.items():
        _check(part, path, name, kept, digests, absent, "what was written then", again)
    for name, kept in record.inputs.items():
        _check(part, path, name, kept, digests, absent, f"what {part.kind} {part.name} was made from", f"it is older; {again}")
    return record


def _check(
    part: Part,
    path: Path,
    name: str,
    kept: str,
    digests: Digests,
    absent: Callable[[str], str | None],
    what: str,
    again: str,
) -> None:
    file = path.parent / name
    plain = Path(*_without_detours(file))
    try:
        found = digests(file)
    except FileNotFoundError:
        if reason := absent(name):
            part.unchecked.append(f"{plain.as_posix()}: {reason}")
        else:
            part.found(plain, "", "no such file", f"{what}, sha256 {kept} ({path.name})", again)
        return
    except OSError as error:
        part.found(plain, "", error, f"{what}, sha256 {kept} ({path.name})", again)
        return
    part.count("files")
    if found != kept:
        part.found(plain, "", f"sha256 {found}", f"{what}, sha256 {kept} ({path.name})", again)


def _without_detours(path: Path) -> list[str]:
    """The parts of a path, `a/../b` as `b`, for a reader."""
    parts: list[str] = []
    for each in path.parts:
        if each == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        else:
            parts.append(each)
    return parts


def differing(found: Mapping[str, object], expected: Mapping[str, object]) -> list[str]:
    """The keys under which two tables differ."""
    return [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
