"""Rows of a scores.csv held against scores derived anew."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from qkgeom.audit import plain
from qkgeom.audit.findings import SHOWN, Part

# what docs/definitions.md promises of the scores, and float32 of a norm; counts are exact
TOLERANCES = {"symmetry": 1e-5, "directionality": 1e-4, "directionality_excess": 1e-4, "fro_norm": 1e-5}
COUNTS = ("n_row_outliers", "n_col_outliers")
READ = ("model", "snapshot", "layer", "head", "status", *TOLERANCES, *COUNTS)  # columns
FIX = "score the model again: delete its scores.csv and run snakemake"
Row = Mapping[str, str]
Key = tuple[str, str, str]  # snapshot, layer, head


def read_rows(path: Path) -> dict[Key, Row]:
    """The rows of a scores.csv by snapshot, layer and head.

    Raises:
        ValueError: this is no such file, a row is not whole, or two rows are of the same matrix.
        OSError: it cannot be read.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if absent := [name for name in READ if name not in (reader.fieldnames or ())]:
            raise ValueError(f"no column {', '.join(absent)}")
        rows: dict[Key, Row] = {}
        for line in reader:
            if None in line or None in line.values() or not line["layer"].isdecimal():  # e.g. where the file was cut off
                raise ValueError(f"line {reader.line_num} is no whole row")
            key = (line["snapshot"], line["layer"], line["head"])
            if key in rows:
                raise ValueError("two rows of snapshot {}, layer {}, head {}".format(*key))
            rows[key] = line
    return rows


def compare(part: Part, path: Path, key: Key, row: Row | None, derived: plain.Scores, scaled: bool = False) -> None:
    """Adds a finding for each score of a row that is not the derived one.

    Args:
        part: what the row belongs to.
        path: of the scores.csv.
        key: of the row.
        row: as it is there.
        derived: its scores, derived anew.
        scaled: the derived ones are of a multiple of the matrix, so that only its norm may differ.
    """
    part.count("scores derived anew")
    item = "snapshot {}, layer {}, head {}".format(*key)
    if row is None:
        _found(part, path, item, "no such row", "a row")
        return
    statuses = {derived.status, "ok", "no_outliers"} if derived.near else {derived.status}
    if row["status"] not in statuses:
        _found(part, path, f"{item}, status", row["status"], derived.status)
        return
    for score, tolerance in TOLERANCES.items():
        expected = getattr(derived, score)
        if (score == "fro_norm" and scaled) or (derived.near and score.startswith("directionality")):
            continue
        if expected is None or not row[score]:
            if (expected is None) != (not row[score]):
                _found(part, path, f"{item}, {score}", row[score] or "an empty cell", expected)
            continue
        allowed = tolerance * abs(expected) if score == "fro_norm" else tolerance
        difference = abs(_number(row[score]) - expected)
        if not difference <= allowed:  # NaN is none
            _found(part, path, f"{item}, {score}", row[score], f"{expected:.9g}, to {tolerance:g}")
        elif score != "fro_norm":
            part.differs(score, difference)
    for count in () if derived.near else COUNTS:
        expected = getattr(derived, count)
        if row[count] != ("" if expected is None else str(expected)):
            _found(part, path, f"{item}, {count}", row[count] or "an empty cell", expected)


def compare_layer(
    part: Part,
    path: Path,
    rows: Mapping[Key, Row],
    snapshot: str,
    layer: int,
    W_q: plain.Factor,
    W_k: plain.Factor,
    scaled: bool,
) -> None:
    """Derives the scores of a layer, and of its heads where the file has any, and compares them; see `compare`."""
    part.derived.add((snapshot, str(layer)))
    key = (snapshot, str(layer), "all")
    compare(part, path, key, rows.get(key), plain.score(W_q, W_k), scaled)
    group, heads = W_q.shape[1] // W_k.shape[1], [(snapshot, str(layer), str(head)) for head in range(W_q.shape[1])]
    for head, key in enumerate(heads) if any(key in rows for key in heads) else ():
        compare(part, path, key, rows.get(key), plain.score(W_q.head(head), W_k.head(head // group)), scaled)


def _found(part: Part, path: Path, item: str, found: object, expected: object) -> None:
    if part.about(path) < SHOWN:
        part.found(path, item, found, expected, FIX)
    else:
        part.count("further findings of this kind, not listed")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
