"""What an audit found, for a program (audit.json), for a reader (audit.md) and for a terminal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from qkgeom.audit.chain import Audit
from qkgeom.audit.findings import VERIFIED, Finding, Part
from qkgeom.files import write_json, write_text

SCHEMA = 1
HEADER = ("kind", "name", "verdict", "checked", "remarks")
PLURALS = {"collected": "collected", "run": "runs", "model": "models", "figure": "figures", "table": "tables"}


def as_json(audit: Audit) -> dict[str, object]:
    """The content of audit.json; it holds no time, so that the same results give the same bytes."""
    options = audit.options
    asked = {"sample": "all" if options.sample is None else options.sample, "seed": options.seed}
    asked |= {"from_source": options.from_source, "bundle": options.bundled}
    parts = {plural: [_part(part) for part in audit.parts if part.kind == kind] for kind, plural in PLURALS.items()}
    findings = [vars(finding) for finding in audit.findings]
    head = {"schema": SCHEMA, "preset": audit.preset, "verdict": audit.verdict, "options": asked, "findings": findings}
    return {**head, **parts, "not_of_this_run": audit.strays}


def write_report(audit: Audit, folder: Path) -> None:
    """Writes audit.md and audit.json, also of an audit with findings."""
    write_text(folder / "audit.md", as_markdown(audit))
    write_json(folder / "audit.json", as_json(audit))


def lines_of(audit: Audit) -> list[list[str]]:
    """One line of `HEADER` per part; runs that are verified are left to audit.md, since each is a model too."""
    shown = [part for part in audit.parts if part.kind != "run" or part.verdict != VERIFIED]
    return [[part.kind, part.name, part.verdict, _counts(part), _remarks(part)] for part in shown]


def summary_of(audit: Audit) -> str:
    """How many parts have which verdict, in a line."""
    counts = Counter((part.kind, part.verdict) for part in audit.parts)
    told = ", ".join(
        f"{number} {kind}{'s' if number > 1 and kind != 'collected' else ''} {verdict}"
        for (kind, verdict), number in counts.items()
    )
    return f"{audit.preset}: {audit.verdict} ({told}); {_counted(len(audit.findings), 'findings')}"


def as_markdown(audit: Audit) -> str:
    """A page: the verdict, the findings, then a table per kind."""
    options = audit.options
    how = "all layers" if options.sample is None else f"{options.sample} layers of each model (seed {options.seed})"
    lines = [f"# Audit of {audit.preset}: {audit.verdict}", "", f"Scores derived anew: {how}."]
    lines += [f"Sources read again: {'yes' if options.from_source else 'no'}. What this means: docs/audit.md.", ""]
    if audit.findings:
        lines += ["## Findings", ""]
        for finding in audit.findings:
            lines += [f"- **{finding.where}** {finding.item}", *_nested(finding), ""]
    for kind, plural in PLURALS.items():
        parts = [part for part in audit.parts if part.kind == kind]
        if parts:
            lines += [f"## {plural.capitalize()}", "", "| name | verdict | checked | remarks |", "|---|---|---|---|"]
            cells = [(part.name, part.verdict, _counts(part), _remarks(part).replace("|", "\\|")) for part in parts]
            lines += [*(f"| {' | '.join(each)} |" for each in cells), ""]
    if audit.strays:
        lines += ["Not of this run, and not checked: " + ", ".join(audit.strays) + ".", ""]
    return "\n".join(lines)


def _nested(finding: Finding) -> list[str]:
    told = {"found": finding.found, "expected": finding.expected, "do": finding.fix}
    return [f"    - {label}: {' '.join(text.split())}" for label, text in told.items()]


def _part(part: Part) -> dict[str, object]:
    told = {"name": part.name, "verdict": part.verdict, "checked": part.counts}
    differences = {score: float(f"{value:.2g}") for score, value in part.largest.items()}
    return {
        **told,
        "largest_difference": differences,
        "follows_from": part.follows,
        "not_checked": part.unchecked,
        "notes": part.notes,
        "findings": [vars(finding) for finding in part.findings],
    }


def _counts(part: Part) -> str:
    return ", ".join(_counted(number, *what.partition(" ")) for what, number in part.counts.items())


def _counted(number: int, things: str, blank: str = "", rest: str = "") -> str:
    """`1 record`, `2 records`."""
    return f"{number} {things.removesuffix('s') if number == 1 else things}{blank}{rest}"


def _remarks(part: Part) -> str:
    """The first finding, or what was not checked, in a line."""
    if part.findings:
        more = f" (and {len(part.findings) - 1} more)" if len(part.findings) > 1 else ""
        first = part.findings[0]
        return " ".join(f"{first.where}: {first.item or first.found}{more}".split())
    if part.follows:
        return f"follows from {', '.join(part.follows[:3])}: mend that first"
    return " ".join("; ".join([*part.unchecked, *part.notes]).split())
