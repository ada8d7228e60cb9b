"""Runs benchmarks, prints a table and writes the figures: `python bench/run.py [cpu|gpu] [--output FILE]`.

A benchmark is a file `cpu_<name>.py` or `gpu_<name>.py` of this folder with `measure(tiny) -> list[Figure]`. It has a
process of its own, so that memory and threads of one do not show in another.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from figures import Figure
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import write_json

BENCH = Path(__file__).parent
RESULTS = BENCH.parent / "results" / "bench"


def run(
    kind: Annotated[str, typer.Argument(help="cpu or gpu")] = "cpu",
    output: Annotated[Path | None, typer.Option(help="JSON file of the figures; by default in results/bench")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="sizes that show only that the benchmarks run, on any machine")] = False,
    folder: Annotated[Path, typer.Option(help="folder of the benchmarks")] = BENCH,
) -> None:
    """Runs the benchmarks of a kind, one after another. A missed target is a finding and no error."""
    paths = sorted(folder.glob(f"{kind}_*.py"))
    if not paths:
        raise UsageError("there are no such benchmarks", where=folder, found=kind, expected="cpu or gpu")
    output = output or RESULTS / f"{'tiny-' if tiny else ''}{'bench' if kind == 'cpu' else kind}.json"
    output.unlink(missing_ok=True)  # of another run
    figures = [figure for path in paths for figure in measured(path, tiny)]
    show(figures, "tiny sizes: the numbers mean nothing" if tiny else None)
    write_json(output, [figure.record() for figure in figures])


def measured(path: Path, tiny: bool) -> list[Figure]:
    """The figures of one benchmark.

    Raises:
        QkgeomError: it failed.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(_measure, path, tiny).result()
        except UsageError:  # what it needs is not here
            raise
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise QkgeomError("a benchmark failed", where=path, found=found) from error


def _measure(path: Path, tiny: bool) -> list[Figure]:
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem).measure(tiny)


def show(figures: Sequence[Figure], caption: str | None) -> None:
    """Prints the table."""
    table = Table("benchmark", "value", "target", "holds", "measured", caption=caption)
    for each in figures:
        target = f"{'≤' if each.at_most else '≥'} {each.target:g}"
        table.add_row(each.name, f"{each.value:.3g} {each.unit}", target, "yes" if each.holds else "NO", each.detail)
    Console().print(table)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    try:
        app()
    except QkgeomError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
