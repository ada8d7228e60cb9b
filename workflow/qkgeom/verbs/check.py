"""`check`: the last step of a run, which names every model that is missing from its figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.errors import QkgeomError
from qkgeom.files import write_text
from qkgeom.findings import find
from qkgeom.sole_writer import be_sole_writer


def command(
    artifact: Annotated[list[Path], Argument(help="folders of artifacts, with their scores.csv")],
    allow_missing: Annotated[bool, Option("--allow-missing/--no-allow-missing", help="end well all the same")] = False,
    rendered: Annotated[list[Path] | None, Option(help="a figure or table of this run; others beside it are named")] = None,
    audit: Annotated[Path | None, Option(help="audit.json of this run, whose findings are faults too")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="write the findings here, also if a model failed")] = None,
) -> None:
    """Name every failed model, every layer without a score, what the audit found, and leftovers of other runs.

    Exit code 1 if a model failed or the audit found something.
    """
    set_up_logging()
    be_sole_writer(*filter(None, [output]))
    found = find(artifact, rendered or [])
    wrong = _findings(audit) if audit else []
    text = "\n".join([*found.lines, *wrong]) + "\n"
    sys.stdout.write(text)
    if output:
        write_text(output, text)
    if wrong:
        fix = f"mend each as it says, delete {audit}, and run again"
        raise QkgeomError(f"the audit has {len(wrong)} findings", where=audit.with_name("audit.md"), fix=fix)
    if found.failed and not allow_missing:
        raise QkgeomError(
            f"{len(found.failed)} of {len(artifact)} models are missing from the figures: " + ", ".join(found.failed),
            fix="mend the cause, then `python -m qkgeom retry` and run again; or set `allow_missing: true` in config.yaml",
        )


def _findings(audit: Path) -> list[str]:
    """What an audit found, in a line each."""
    try:
        findings = json.loads(audit.read_text(encoding="utf-8"))["findings"]
        return [f"audit: {each['where']}: {each['item'] or each['found']}" for each in findings]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise QkgeomError("the record of the audit cannot be read", where=audit, found=error, fix="audit again") from error
