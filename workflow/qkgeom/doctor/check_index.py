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
    answers = in_threads(lambda each: why_not(each, case), wheels, len(wheels), case.deadline)
    lost = {each: why for each in wheels if (why := answers.get(each, "no answer in time"))}
    if lost:
        bad = warning if settings.allow_missing else fault
        found = "; ".join(f"{', '.join(wheels[each])} ({why})" for each, why in lost.items())
        fix = f"check the network and pip's index settings; or {LEAVE_OUT}"
        yield bad("package index", f"pip finds no wheel of {found}", fix)
    else:
        yield ok("package index", f"it has the wheels of {', '.join(model for each in wheels for model in wheels[each])}")


def _is_here(uri: str) -> bool:
    file = whole_file_of(uri)
    return file is not None and not file.away


def why_not(requirement: str, case: Case) -> str:
    """Why pip finds no wheel; empty if it finds one."""
    package, _, version = requirement.partition("==")
    answer = run([sys.executable, *_PIP, package], case.left() - 0.5)
    if not answer.fine:
        return answer.said
    listed = answer.out.partition("Available versions:")[2].partition("\n")[0]
    return "" if version in [each.strip() for each in listed.split(",")] else f"no version {version}"
