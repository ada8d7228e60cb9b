"""What a person sees while work goes on: log lines and progress on stderr, results on stdout."""

from __future__ import annotations

import logging
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from qkgeom import __version__

logger = logging.getLogger(__name__)
T = TypeVar("T")  # PEP 695 needs Python 3.12
QUIET_INTERVAL = 30.0  # seconds between progress lines in a log


def set_up_logging() -> None:
    """Sends log lines to stderr, the first one saying what runs; on a terminal only what went wrong."""
    level = logging.WARNING if sys.stderr.isatty() else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s", force=True)
    for noisy in ("httpx", "httpx2", "huggingface_hub", "matplotlib", "fontTools"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logger.info("qkgeom %s, python %s: %s", __version__, platform.python_version(), shlex.join(sys.argv[1:]))


def track(items: Sequence[T], label: str) -> Iterator[T]:
    """Goes through `items` with a progress bar on a terminal, or a line now and then in a log."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as rich_track

        yield from rich_track(items, description=label, console=Console(stderr=True), transient=True)
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last > QUIET_INTERVAL:
            last = time.monotonic()
            logger.info("%s: %d of %d", label, done, len(items))
        yield item


def print_table(header: Sequence[str], lines: Sequence[Sequence[str]], colours: Mapping[str, str] | None = None) -> None:
    """Prints a table on a terminal, else tab-separated lines, the header first.

    Args:
        header: the columns.
        lines: their cells.
        colours: style of a line's cell that is exactly this, on a terminal.
    """
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*header)
        for column in table.columns:
            column.overflow = "fold"  # an id must be whole to be copied
        for line in lines:
            table.add_row(*(Text(cell, (colours or {}).get(cell, "")) for cell in line))
        Console(highlight=False).print(table)
    else:
        sys.stdout.writelines("\t".join(line) + "\n" for line in [header, *lines])


def print_whole(header: Sequence[str], lines: Sequence[Sequence[str]], n_key: int, title: str | None = None) -> None:
    """Prints a table of numbers on a terminal, no cell cut or folded: where it is too narrow, lines are longer than it.

    Args:
        header: the columns; only where a name has a line break is it broken.
        lines: their cells.
        n_key: how many columns say what a line is about; the others are flush right.
        title: of the table.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, show_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, no_wrap=True, justify="left" if number < n_key else "right")
    for line in lines:
        table.add_row(*map(Text, line))
    width = Console(width=10**6, height=1).measure(table).maximum
    Console(highlight=False, width=max(width, Console().width), height=1).print(table)


@contextmanager
def progress(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how much of `total` is done: a bar on a terminal, or a line now and then in a log."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(label, total=total)
            yield lambda done: bars.update(task, completed=done)
        return
    began = last = time.monotonic()

    def tell(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > QUIET_INTERVAL:
            last = now
            logger.info("%s: %d of at most %d, %.0f/s", label, done, total, done / (now - began))

    yield tell
