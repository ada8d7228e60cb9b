"""Rows of the workflow's tables (tab-separated, one header line), each checked against the table's schema."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from qkgeom.errors import UsageError
from qkgeom.schemas import require_valid, schema
from qkgeom.settings import PRESETS, preset_names


def read_rows(path: Path, name: str, presets: Path = PRESETS) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row as its place (for messages) and its filled cells.

    Args:
        path: the table.
        name: of its schema; its first column is the row's id, and `presets`, if it has any, names those it takes part in.
        presets: folder of the presets.

    Raises:
        UsageError: an unknown column, a row of another length, one that does not fit the schema, or an unknown preset.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError("a table of the workflow cannot be read", where=path, found=error.strerror) from error
    reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
    known = preset_names(presets)
    columns = list(schema(name)["properties"])
    unknown = set(reader.fieldnames or ()) - set(columns)
    if unknown:
        raise UsageError(f"unknown column {', '.join(sorted(unknown))}", where=path, expected=", ".join(columns))
    for row in reader:
        where = f"{path}, line {reader.line_num} ({row[reader.fieldnames[0]]})"
        if None in row or None in row.values():
            raise UsageError("a row has another number of cells than the header", where=where, fix="separate cells by one tab")
        cells = {column: cell for column, cell in row.items() if cell}
        require_valid(cells, name, where)
        if strange := set(cells["presets"].split(",") if "presets" in columns else ()) - set(known):
            found, fix = ", ".join(sorted(strange)), f"mend the cell `presets`, or add a file to {presets}"
            raise UsageError("a row names an unknown preset", where=where, found=found, expected=", ".join(known), fix=fix)
        yield where, cells
