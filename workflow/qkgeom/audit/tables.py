"""A table on the disk against the same table made again, cell by cell, so that what differs can be named."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.audit.findings import SHOWN, Part

if TYPE_CHECKING:
    import pandas as pd

KEYS = (
    "model",
    "run",
    "label",
    "claim",
    "role",
    "snapshot",
    "step",
    "layer",
    "head",
    "split",
    "row",
    "col",
)  # what names a row


def compare_tables(part: Part, path: Path, table: pd.DataFrame, again: str) -> None:
    """Adds a finding for each cell of a csv file that is not the one of the table, written as `write_csv` does."""
    part.count("tables made anew")
    compare_texts(part, path, table.to_csv(index=False, float_format="%.9g", lineterminator="\n"), again)


def compare_texts(part: Part, path: Path, expected: str, again: str) -> None:
    """The same with the text of a csv file, or of any other file, of which the first line that differs is named."""
    if not path.exists():  # which its digest has told
        return
    found = path.read_text(encoding="utf-8")
    if found == expected:
        return
    if path.suffix != ".csv":
        lines = zip(found.splitlines(), expected.splitlines(), strict=False)
        number, line, other = next(
            ((n, one, two) for n, (one, two) in enumerate(lines, 1) if one != two), (0, "another length", "the same length")
        )
        part.found(path, f"line {number}" if number else "", line, other, again)
        return
    rows, others = (list(csv.reader(io.StringIO(text))) for text in (found, expected))
    if rows[:1] != others[:1] or len(rows) != len(others):
        part.found(path, "", _size(rows), _size(others), again)
        return
    named = 0
    for number, (row, other) in enumerate(zip(rows, others, strict=True), 1):
        for column, cell, right in zip(others[0], row, other, strict=False):
            if cell != right and named < SHOWN:
                named += 1
                part.found(path, _place(others[0], other, number, column), cell or "an empty cell", right or "none", again)
    if not named:
        part.found(path, "", "another text", "the text that its inputs give", again)


def _size(rows: list[list[str]]) -> str:
    return f"{len(rows)} lines of {', '.join(rows[0]) if rows else 'nothing'}"


def _place(header: list[str], row: list[str], number: int, column: str) -> str:
    """The row as a reader would look it up, e.g. `line 7 (model bert, layer 3), symmetry`."""
    keys = ", ".join(f"{name} {cell}" for name, cell in zip(header, row, strict=False) if name in KEYS and cell)
    return f"line {number}" + (f" ({keys})" if keys else "") + f", column {column}"
