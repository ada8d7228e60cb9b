"""The command line where the environment is broken: `doctor` all the same, with the standard library alone."""

from __future__ import annotations

import argparse
import sys

from qkgeom.doctor.answer import answer
from qkgeom.doctor.finding import SET_UP, Case


def main(broken: ImportError) -> int:
    """Runs `doctor`; of any other verb it says why it cannot be run.

    Args:
        broken: why the command line could not be imported.
    """
    if sys.argv[1:2] != ["doctor"]:
        sys.stderr.write(
            f"error: the environment is broken: {broken}\n  do:       {SET_UP}; `python -m qkgeom doctor` tells more\n"
        )
        return 1
    options = parser().parse_args(sys.argv[2:])
    return answer(Case(preset=options.preset, slurm=options.slurm), as_json=options.json)


def parser() -> argparse.ArgumentParser:
    """The options of `verbs/doctor.py`."""
    made = argparse.ArgumentParser("python -m qkgeom doctor")
    made.add_argument("--preset")
    made.add_argument("--slurm", action=argparse.BooleanOptionalAction)
    made.add_argument("--json", action="store_true")
    return made
