"""Asking all checks, printing what they found, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from qkgeom.doctor.finding import Case, Finding, State
from qkgeom.doctor.runner import examine

HEADER = ("check", "state", "found", "do")
COLOURS = {State.OK: "green", State.WARNING: "yellow", State.FAULT: "bold red"}


def answer(case: Case, *, as_json: bool) -> int:
    """Examines the case and prints what was found; gives 1 if the run would fail, else 0."""
    findings = examine(case)
    faults = sum(finding.state is State.FAULT for finding in findings)
    if as_json:
        text = json.dumps({"ready": not faults, "findings": [asdict(each) for each in findings]}, indent=1, ensure_ascii=False)
        sys.stdout.write(text + "\n")
    else:
        _print(findings)
        sys.stderr.write(f"faults: {faults}; a run would fail\n" if faults else "no fault: a run can start\n")
    return int(bool(faults))


def _print(findings: Sequence[Finding]) -> None:
    # what a command said may hold tabs and line ends
    lines = [(each.check, each.state.value, " ".join(each.found.split()), " ".join(each.fix.split())) for each in findings]
    try:
        from qkgeom.console import print_table

        print_table(HEADER, lines, {state.value: colour for state, colour in COLOURS.items()})
    except ImportError:  # this, too, may be what is missing
        sys.stdout.writelines("\t".join(line) + "\n" for line in (HEADER, *lines))
