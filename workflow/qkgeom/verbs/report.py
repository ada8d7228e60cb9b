"""`report`: a finished run as one self-contained HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.report.writing import write_report
from qkgeom.sole_writer import be_sole_writer


def command(
    results: Annotated[Path | None, Argument(help="results/<preset>; by default of the preset that config.yaml names")] = None,
    model: Annotated[
        list[Path] | None, Option(help="an artifact's folder; may repeat; by default the preset's that are there")
    ] = None,
    rendered: Annotated[list[Path] | None, Option(help="a file of a figure or table; may repeat; by default all there")] = None,
    knob: Annotated[list[str] | None, Option(metavar="NAME=VALUE", help="of config.yaml, to be stated; may repeat")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="by default results/<preset>/report.html")] = None,
) -> None:
    """Write what ran, every figure and table with the models behind it, and what is missing, as one HTML page."""
    set_up_logging()
    be_sole_writer(*filter(None, [output]))
    path = write_report(results, model, rendered, knob or [], output)
    sys.stdout.write(f"{path}: {path.stat().st_size / 1e6:.1f} MB\n")
