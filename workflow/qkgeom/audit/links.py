"""A record of provenance held against the files it is about."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from qkgeom.audit.findings import Part
from qkgeom.errors import QkgeomError
from qkgeom.files import sha256_of
from qkgeom.provenance import Record, read_record


class Digests:
    """The sha256 of files, each computed once; and which of them were found wrong so far.

    Attributes:
        wrong: files with a finding of their own. What was made from them differs, as it must, and is no finding again.
    """

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}
        self.wrong: set[Path] = set()

    def __call__(self, path: Path) -> str:
        """Of a file.

        Raises:
            OSError: it cannot be read.
        """
        path = path.resolve()
        if path not in self._known:
            self._known[path] = sha256_of(path)
        return self._known[path]

    def blame(self, part: Part) -> Part:
        """Keeps which files a part, which is checked now, has findings about; gives the part."""
        self.wrong |= {Path(finding.where).resolve() for finding in part.findings}
        return part


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
        if (path.parent / name).resolve() in digests.wrong:
            part.follows.append(without_detours(path.parent / name).as_posix())
            continue
        _check(part, path, name, kept, digests, absent, f"what {part.kind} {part.name} was made from", f"it is older; {again}")
    return record


def only_outputs(part: Part, path: Path, record: Record) -> bool:
    """Whether all findings of a part so far are about what its step wrote: its inputs are as they were then."""
    outputs = {without_detours(path.parent / name).as_posix() for name in record.outputs}
    return not part.follows and all(finding.where in outputs for finding in part.findings)


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
    plain = without_detours(file)
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


def without_detours(path: Path) -> Path:
    """A path, `a/../b` as `b`, for a reader."""
    return Path(os.path.normpath(path))
