"""Runs benchmarks, prints a table and writes the figures: `python bench/run.py [cpu|gpu] [--output FILE]`.

A benchmark is a file `cpu_<name>.py` or `gpu_<name>.py` of this folder with `measure(tiny) -> list[Figure]`. It has a
process of its own, so that memory and threads of one do not show in another. Nothing but torch is needed here, so that the
benchmarks that need no more run on a machine that has no more.
"""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from figures import Figure
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import write_json

BENCH = Path(__file__).parent
RESULTS = BENCH.parent / "results" / "bench"


def run(kind: str, output: Path | None, tiny: bool, folder: Path) -> None:
    """Runs the benchmarks of a kind, one after another. A missed target is a finding and no error.

    Args:
        kind: cpu or gpu.
        output: JSON file of the figures; by default in results/bench.
        tiny: sizes that show only that the benchmarks run, on any machine.
        folder: of the benchmarks.

    Raises:
        UsageError: there are none, or what all of them need is not here.
        QkgeomError: one failed.
    """
    paths = sorted(folder.glob(f"{kind}_*.py"))
    if not paths:
        raise UsageError("there are no such benchmarks", where=folder, found=kind, expected="cpu or gpu")
    output = output or RESULTS / f"{'tiny-' if tiny else ''}{'bench' if kind == 'cpu' else kind}.json"
    output.unlink(missing_ok=True)  # of another run
    figures, missing = [], {}
    for path in paths:
        try:
            figures += measured(path, tiny)
        except ModuleNotFoundError as error:
            missing[path.name] = error.name
    for name, module in missing.items():
        sys.stderr.write(f"{name} is left out: there is no package {module} here\n")
    if len(missing) == len(paths):
        raise UsageError("no benchmark can run here", found=f"no {', '.join(missing.values())}", fix="run `make setup`")
    show(figures, "tiny sizes: the numbers mean nothing" if tiny else None)
    write_json(output, [figure.record() for figure in figures])


def measured(path: Path, tiny: bool) -> list[Figure]:
    """The figures of one benchmark.

    Raises:
        QkgeomError: it failed.
        ModuleNotFoundError: it needs a package that is not here.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(_measure, path, tiny).result()
        except (UsageError, ModuleNotFoundError):  # what it needs is not here
            raise
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise QkgeomError("a benchmark failed", where=path, found=found) from error


def _measure(path: Path, tiny: bool) -> list[Figure]:
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem).measure(tiny)


def show(figures: Sequence[Figure], caption: str | None) -> None:
    """Prints the table, as plain lines where the package rich is not."""
    header = ("benchmark", "value", "target", "holds", "measured")
    lines = []
    for each in figures:
        target = f"{'≤' if each.at_most else '≥'} {each.target:g}"
        lines.append((each.name, f"{each.value:.3g} {each.unit}", target, "yes" if each.holds else "NO", each.detail))
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        sys.stdout.writelines("\t".join(line) + "\n" for line in [header, *lines, *[(caption,)] * bool(caption)])
        return
    table = Table(*header, caption=caption)
    for line in lines:
        table.add_row(*line)
    Console().print(table)


if __name__ == "__main__":
    parser = ArgumentParser(description="Runs benchmarks, prints a table and writes the figures.")
    parser.add_argument("kind", nargs="?", default="cpu", help="cpu or gpu")
    parser.add_argument("--output", type=Path, help="JSON file of the figures; by default in results/bench")
    parser.add_argument("--tiny", action="store_true", help="sizes that show only that the benchmarks run, on any machine")
    parser.add_argument("--folder", type=Path, default=BENCH, help="folder of the benchmarks")
    try:
        run(**vars(parser.parse_args()))
    except QkgeomError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
