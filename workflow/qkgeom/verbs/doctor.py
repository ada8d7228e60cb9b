"""`doctor`: whether a run can start, and what to do if not."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Option

from qkgeom.doctor.answer import answer
from qkgeom.doctor.finding import Case


def command(
    preset: Annotated[str | None, Option(help="for a run of this preset; config.yaml's by default")] = None,
    slurm: Annotated[bool | None, Option("--slurm/--no-slurm", help="on SLURM; by default if sbatch is here")] = None,
    as_json: Annotated[bool, Option("--json", help="JSON on stdout")] = False,
) -> None:
    """Check, in about ten seconds, what a run needs: Python, packages, settings, disk, GPU, hub, gated models, SLURM, locks.

    One line each: ok, warning or fault, what was found, and what to do. Exit code 1 if the run would fail.
    """
    sys.exit(answer(Case(preset=preset, slurm=slurm), as_json=as_json))
