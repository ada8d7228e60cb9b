"""`check`: the last step of a run, which names every model that is missing from its figures."""

from __future__ import annotations

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
    output: Annotated[Path | None, Option("--output", "-o", help="write the findings here, also if a model failed")] = None,
) -> None:
    """Name every failed model, every layer without a score, and leftovers of other runs; exit 1 if a model failed."""
    set_up_logging()
    be_sole_writer(*filter(None, [output]))
    found = find(artifact, rendered or [])
    text = "\n".join(found.lines) + "\n"
    sys.stdout.write(text)
    if output:
        write_text(output, text)
    if found.failed and not allow_missing:
        raise QkgeomError(
            f"{len(found.failed)} of {len(artifact)} models are missing from the figures: " + ", ".join(found.failed),
            fix="mend the cause, then `python -m qkgeom retry` and run again; or set `allow_missing: true` in config.yaml",
        )
