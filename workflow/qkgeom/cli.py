"""The command line: one verb per module of `verbs/`, and exit codes: 0 fine, 1 the work failed, 2 wrong usage."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import typer

from qkgeom import verbs
from qkgeom.environment import expand_hf_home
from qkgeom.errors import QkgeomError

app = typer.Typer(
    name="qkgeom",
    help="Symmetry and directionality of query-key weights: extract, score, draw, audit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _module in pkgutil.iter_modules(verbs.__path__):
    app.command(_module.name)(importlib.import_module(f"{verbs.__name__}.{_module.name}").command)


def main() -> None:
    """Runs a verb; an error of ours becomes one message on stderr and an exit code."""
    expand_hf_home()
    try:
        app()
    except QkgeomError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
