"""Scores on a terminal: a table per layer, and where the model stands among the models already scored."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom import untrained
from qkgeom.null import COLUMNS as Z
from qkgeom.scoring import SCORES, Row
from qkgeom.structure import COLUMNS as STRUCTURE

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("symmetry", "direction-\nality", "direction-\nality\n(excess)", "norm", "row / col\noutliers")
STRUCTURE_HEADINGS = (
    *("effective\nrank", "largest sin-\ngular value", "ten largest\nof them"),
    *("of the\nrows", "largest out-\nlier rows", "of the\ncolumns", "largest out-\nlier columns"),
)
Z_HEADINGS = ("z sym-\nmetry", "z direc-\ntionality", "z (excess)")
MOST_NAMED = 10  # layers
SUMMARIES = "results/*/collected/summary.csv"


def print_scores(rows: Sequence[Row]) -> None:
    """Prints the rows, their medians over layers, and the standing, on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False)
    with_heads = any(row["head"] != "all" for row in rows)
    with_snapshots = len({row["snapshot"] for row in rows}) > 1
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    shown = {"model": len(models) > 1, "snapshot": with_snapshots, "layer": True, "head": with_heads}
    which = [name for name in shown if shown[name]]
    with_null = bool(rows) and Z[0] in rows[0]
    table = Table(*which, *HEADINGS, *(Z_HEADINGS if with_null else ()), "status")
    for column in table.columns[len(which) : -1]:
        column.justify = "right"
    for row in rows:
        scores = [_number(row[name]) for name in SCORES]
        outliers = f"{row['n_row_outliers']} / {row['n_col_outliers']}" if row["n_row_outliers"] is not None else "–"
        norm = "–" if row["fro_norm"] is None else f"{row['fro_norm']:.4g}"
        z = [_z(row[name]) for name in Z] if with_null else []
        table.add_row(*(str(row[name]) for name in which), *scores, norm, outliers, *z, str(row["status"]))
    console.print(table)
    if rows and STRUCTURE[0] in rows[0]:
        console.print(_structure_table(rows, which))
    for model in models:
        medians = medians_over_layers([row for row in rows if row["model"] == model])
        if not medians:
            console.print("No layer has a score.")
            return
        of = f" of {model}" if len(models) > 1 else f" of snapshot {rows[-1]['snapshot']}" if with_snapshots else ""
        console.print(f"Median over layers{of}: " + ", ".join(f"{name} {value:+.3f}" for name, value in medians.items()))
        p = untrained.p_of_rows([row for row in rows if row["model"] == model])
        if with_null or untrained.verdict(p) == untrained.UNTRAINED:
            console.print(untrained.sentence(p))
    console.print("Symmetry 1: symmetric, -1: skew, near 0: neither. Directionality below 0: columns dominate, above 0: rows.")
    for line in standing(models[-1], medians["symmetry"], Path()):
        console.print(line)


def _structure_table(rows: Sequence[Row], which: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(*which, *STRUCTURE_HEADINGS, title="shares of the squared norm")
    for column in table.columns[len(which) :]:
        column.justify = "right"
    for row in rows:
        rank, *others = (row[name] for name in STRUCTURE)
        cells = ["–" if each is None else each if isinstance(each, str) else f"{100 * each:.1f} %" for each in others]
        table.add_row(*(str(row[name]) for name in which), "–" if rank is None else f"{rank:.4g}", *cells)
    return table


def verdicts(rows: Sequence[Row]) -> list[str]:
    """The verdict's sentence of each model, of its last snapshot."""
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    told = [untrained.sentence(untrained.p_of_rows([row for row in rows if row["model"] == model])) for model in models]
    return told if len(models) < 2 else [f"{model}: {sentence}" for model, sentence in zip(models, told, strict=True)]


def unscored_layers(rows: Sequence[Row]) -> str:
    """The layers that are zero or not finite, as the end of a sentence; empty if there are none."""
    several = {name: len({row[name] for row in rows}) > 1 for name in ("model", "snapshot")}
    layers = [
        " ".join([*(str(row[name]) for name in several if several[name]), f"layer {row['layer']} ({row['status']})"])
        for row in rows
        if row["head"] == "all" and row["symmetry"] is None
    ]
    more = f", and {len(layers) - MOST_NAMED} more" if len(layers) > MOST_NAMED else ""
    return f"; no score: {', '.join(layers[:MOST_NAMED])}{more}" if layers else ""


def medians_over_layers(rows: Sequence[Row]) -> dict[str, float]:
    """Median of each score over the layers that have one (the last snapshot of a series)."""
    last = rows[-1]["snapshot"] if rows else None
    layers = [row for row in rows if row["head"] == "all" and row["snapshot"] == last and row["symmetry"] is not None]
    return {name: statistics.median(row[name] for row in layers) for name in SCORES} if layers else {}


def standing(model: str, symmetry: float, root: Path) -> list[str]:
    """Where a median symmetry lies among the other encoders and decoders of the last run below `root`, a line each.

    The custom models (group `training`) are left out: they are one recipe many times, some with a symmetric start.
    """
    summaries = sorted(root.glob(SUMMARIES), key=lambda path: path.stat().st_mtime)
    if not summaries:
        return []
    with summaries[-1].open(newline="", encoding="utf-8") as file:
        scored = {row["model"]: row for row in csv.DictReader(file) if _counts(row)}  # the last snapshot wins
    scored.pop(model, None)
    lines = []
    for role in ("encoder", "decoder"):
        values = [float(row["symmetry_median"]) for row in scored.values() if row["role"] == role]
        if len(values) == 1:
            lines.append(f"One scored {role}: symmetry {values[0]:+.3f}")
        elif values:
            lines.append(
                f"Scored {role}s: {sum(value < symmetry for value in values)} of {len(values)} are less symmetric than this "
                f"model; they range from {min(values):+.3f} to {max(values):+.3f}, median {statistics.median(values):+.3f}"
            )
    return [*lines, f"({summaries[-1]})"] if lines else []


def _counts(row: Mapping[str, str]) -> bool:
    return bool(row["symmetry_median"]) and row["group"] != "training"


def _number(value: object) -> str:
    return "–" if value is None else f"{value:+.4f}"


def _z(value: object) -> str:
    return "–" if value is None else f"{value:+.1f}"
