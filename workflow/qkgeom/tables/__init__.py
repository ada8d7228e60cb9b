"""One file per table: PAPER, CAPTION, GROUP, NEEDS, `table(inputs)` and `printed(table)`; nothing else names it."""

from __future__ import annotations

from pathlib import Path

from qkgeom.files import write_csv, write_text
from qkgeom.rendering import Inputs, beside, load, write_provenance


def render(name: str, inputs: Inputs, stem: Path) -> None:
    """Writes a table as `stem`.csv in full precision, and as printed in .tex and .md.

    The record of how they were made comes last (`qkgeom.provenance`).

    Raises:
        UsageError: there is no such table, or an input that it needs is not given.
        QkgeomError: an input is missing or unreadable.
    """
    from qkgeom.tables._printing import latex, markdown

    module = load(__name__, name, inputs)
    table = module.table(inputs)
    write_csv(beside(stem, "csv"), table)
    printed = module.printed(table)
    write_text(beside(stem, "tex"), latex(printed, module.CAPTION, label=f"tab:{name}"))
    write_text(beside(stem, "md"), markdown(printed, module.CAPTION))
    write_provenance("table", name, inputs, stem, ("csv", "tex", "md"), ("numpy", "pandas"))
