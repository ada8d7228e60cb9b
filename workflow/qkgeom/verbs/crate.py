"""`crate`: a finished run as a Workflow Run RO-Crate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.crate.writing import write_crate
from qkgeom.errors import UsageError


def command(
    results: Annotated[Path | None, Argument(help="results/<preset>; by default of the preset that config.yaml names")] = None,
    output: Annotated[Path, Option("--output", "-o", help="a name that ends in .zip")] = Path("crate.zip"),
    agent: Annotated[str, Option(help="who ran it: a name, and an ORCID URL after it if there is one")] = "",
) -> None:
    """Pack what a run read, did and made, and the workflow with its lock, as one zip for an archive; no weights."""
    set_up_logging()
    if output.suffix != ".zip":
        raise UsageError("a crate is a zip file", found=output, expected="a name that ends in .zip")
    write_crate(results, output, agent)
    sys.stdout.write(f"{output}: {output.stat().st_size / 1e6:.1f} MB\n")
