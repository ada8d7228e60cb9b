"""Scores for a person: a row per layer, and where the model stands among the models already scored."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from qkgeom import untrained
from qkgeom.console import print_table, print_whole
from qkgeom.null import COLUMNS as Z
from qkgeom.scoring import SCORES, Row, cells_of
from qkgeom.structure import COLUMNS as STRUCTURE
from qkgeom.structure import MOST

HEADINGS = ("symmetry", "direc-\ntionality", "direc-\ntionality\n(excess)", "norm", "row/col\noutliers", "status")
Z_HEADINGS = ("symmetry", "directionality", "directionality\n(excess)")
DIRECTIONS = {"effective_rank": "effective\nrank", "top1_share": "share of\nthe largest", "top10_share": "of the\nten largest"}
OUTLIERS = {
    "top_rows": "outlier rows",
    "top_row_share": "share of\nthese rows",
    "top_cols": "outlier columns",
    "top_col_share": "share of\nthese columns",
}
MOST_NAMED = 10  # layers
SUMMARIES = "results/*/collected/summary.csv"


def print_scores(rows: Sequence[Row]) -> None:
    """Prints the rows, their medians over layers, and the standing: on a terminal on stdout.

    Into a pipe or file the rows are those of scores.csv, separated by tabs, and the rest goes to stderr.
    """
    if sys.stdout.isatty():
        _print_tables(rows)
        said = sys.stdout
    else:
        print_table(*cells_of(rows))
        said = sys.stderr
    said.writelines(f"{line}\n" for line in _summary(rows))


def _print_tables(rows: Sequence[Row]) -> None:
    """Scores, z and structure, a table each, so that they fit a terminal of 80 columns."""
    names = ("model", "snapshot", "layer", "head")
    which = [name for name in names if name == "layer" or len({row[name] for row in rows}) > 1]
    of = [[str(row[name]) for name in which] for row in rows]
    has = rows[0] if rows else ()
    print_whole((*which, *HEADINGS), [[*key, *_scores(row)] for key, row in zip(of, rows, strict=True)], len(which))
    if Z[0] in has:
        lines = [[*key, *(_number(row[name], "+.1f") for name in Z)] for key, row in zip(of, rows, strict=True)]
        print_whole((*which, *Z_HEADINGS), lines, len(which), "z: standard deviations from random weights")
    if STRUCTURE[0] in has:
        outliers = f"the {MOST} largest outliers at most, and the squared norm's share in these"
        for columns, title in ((DIRECTIONS, "singular values, and their shares of the squared norm"), (OUTLIERS, outliers)):
            lines = [[*key, *(_structure(name, row[name]) for name in columns)] for key, row in zip(of, rows, strict=True)]
            print_whole((*which, *columns.values()), lines, len(which), title)


def _scores(row: Row) -> list[str]:
    outliers = "–" if row["n_row_outliers"] is None else f"{row['n_row_outliers']}/{row['n_col_outliers']}"
    return [*(_number(row[name], "+.4f") for name in SCORES), _number(row["fro_norm"], ".4g"), outliers, str(row["status"])]


def _structure(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    return _number(value, ".4g" if name == "effective_rank" else ".1%")


def _number(value: object, form: str) -> str:
    return "–" if value is None else format(value, form)


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    """Medians and verdict of each model, how to read them, and the standing of the last."""
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    with_snapshots = len({row["snapshot"] for row in rows}) > 1
    medians = {}
    for model in models:
        of_model = [row for row in rows if row["model"] == model]
        medians = medians_over_layers(of_model)
        if not medians:
            break
        of = f" of {model}" if len(models) > 1 else f" of snapshot {rows[-1]['snapshot']}" if with_snapshots else ""
        yield f"Median over {_scored(of_model)}{of}: " + ", ".join(f"{name} {value:+.3f}" for name, value in medians.items())
        p = untrained.p_of_rows(of_model)
        if Z[0] in rows[0] or untrained.verdict(p) == untrained.UNTRAINED:
            yield untrained.sentence(p)
    if not medians:
        yield "No layer has a score."
        return
    yield "Symmetry 1: symmetric, -1: skew, near 0: neither. Directionality below 0: columns dominate, above 0: rows."
    yield from standing(models[-1], medians["symmetry"], Path())


def _scored(rows: Sequence[Row]) -> str:
    """How many layers of a model's last snapshot a median is over."""
    layers = _last_layers(rows)
    scored = sum(row["symmetry"] is not None for row in layers)
    return "layers" if scored == len(layers) else f"{scored} of {len(layers)} layers, the others have no score"


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
    layers = [row for row in _last_layers(rows) if row["symmetry"] is not None]
    return {name: statistics.median(row[name] for row in layers) for name in SCORES} if layers else {}


def _last_layers(rows: Sequence[Row]) -> list[Row]:
    """The rows of the layers of the last snapshot."""
    return [row for row in rows if row["head"] == "all" and row["snapshot"] == rows[-1]["snapshot"]]


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
