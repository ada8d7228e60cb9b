"""The collected tables: made from the models' scores, and the summary's statistics computed again."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from qkgeom.audit.disputes import DIGITS, Disputes
from qkgeom.audit.findings import SHOWN, Part
from qkgeom.audit.links import Digests, check_record, only_outputs
from qkgeom.audit.options import Options
from qkgeom.audit.tables import compare_tables
from qkgeom.collecting import read_losses, read_scores, summarise
from qkgeom.errors import QkgeomError
from qkgeom.null import with_z
from qkgeom.provenance import OF_FOLDER, Record

SCORES = ("symmetry", "directionality", "directionality_excess")
PERCENT = {"median": 50, "q1": 25, "q3": 75}
MEASURED = ("metric", "value", "baseline", "gain", "margin")


def check_collected(preset: str, options: Options, digests: Digests, disputes: Disputes) -> Part:
    """Checks a preset's collected tables, after its models and runs.

    Args:
        preset: whose they are.
        options: how much.
        digests: of files, and those found wrong.
        disputes: rows of scores that differ from the models' own.
    """
    part, folder = Part("collected", preset), options.results / preset / "collected"
    again = f"delete {folder} and run snakemake: the tables are collected again"
    record = check_record(part, folder / OF_FOLDER, digests, again)
    if record is None or not only_outputs(part, folder / OF_FOLDER, record):  # else it differs, as it must
        return part
    if disputes:
        again += "; the models' own scores.csv are the right ones, as the weights say"
    try:
        _check_copies(part, folder, record, again)
        if not part.about(folder / "scores.csv"):
            _check_summary(part, folder, again)
        _check_runs(part, folder, record, again)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, QkgeomError) as error:
        part.found(folder, "", f"{error!r}", "tables that can be read", again)
    return part


def models_of(record: Record) -> list[str]:
    """The ids of the models that were collected, in their order."""
    return [Path(name).parent.name for name in record.inputs if name.endswith("/scores.csv")]


def runs_of(record: Record) -> list[str]:
    """The names of the runs that were collected, in their order."""
    return [Path(name).parent.name for name in record.inputs if name.endswith("/done.json")]


def _check_copies(part: Part, folder: Path, record: Record, again: str) -> None:
    """The tables against what the project's own code makes of the same scores and losses."""
    scores = with_z(read_scores([folder / name for name in record.inputs if name.endswith("/scores.csv")]))
    models = [SimpleNamespace(model=name, **cells) for name, cells in record.parameters["models"].items()]
    runs = [(folder / name).parent for name in record.inputs if name.endswith("/done.json")]
    for name, table in (("scores", scores), ("summary", summarise(scores, models)), ("losses", read_losses(runs))):
        compare_tables(part, folder / f"{name}.csv", table, again)


def _check_summary(part: Part, folder: Path, again: str) -> None:
    """Medians and quartiles over layers, from the collected scores, by numpy alone."""
    values: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    with (folder / "scores.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["head"] == "all":
                for score in SCORES:
                    values[row["model"], row["snapshot"]][score].append(row[score])
    path = folder / "summary.csv"
    with path.open(newline="", encoding="utf-8") as file:
        summary = {(row["model"], row["snapshot"]): row for row in csv.DictReader(file)}
    if set(summary) != set(values):
        strange = ", ".join("{} {}".format(*key) for key in sorted(set(summary) ^ set(values)))
        part.found(path, "rows", strange, "the models and snapshots of scores.csv", again)
    for key, row in summary.items():
        for score, cells in values[key].items():
            numbers = np.array([float(cell) for cell in cells if cell])
            expected = {"n_layers": len(cells)} if score == SCORES[0] else {}
            expected |= {
                f"{score}_{name}": np.percentile(numbers, percent) for name, percent in PERCENT.items() if len(numbers)
            }
            for column, number in expected.items():
                part.count("statistics computed anew")
                _compare(part, path, "{} {}, ".format(*key) + column, row[column], number, again)


def _check_runs(part: Part, folder: Path, record: Record, again: str) -> None:
    """How training runs ended, from their done.json."""
    path, preset = folder / "runs.csv", record.parameters["preset"]
    with path.open(newline="", encoding="utf-8") as file:
        rows = [(f"{preset}.{row['run']}.s{row['seed']}", row) for row in csv.DictReader(file)]
    ends = {Path(name).parent.name: folder / name for name in record.inputs if name.endswith("/done.json")}
    if strange := sorted({run for run, _ in rows} ^ set(ends)):
        part.found(path, "rows", ", ".join(strange), "the runs that were collected", again)
        return
    for run, row in rows:
        done = json.loads(ends[run].read_text(encoding="utf-8"))
        measured: Mapping = done.get("measured", {})
        expected = {key: done[key] for key in ("steps", "status", "heldout_loss")} | {
            key: measured[key] for key in MEASURED if key in measured
        }
        for column, value in expected.items():
            _compare(part, path, f"{row['model']}, {column}", row[column], value, again)


def _compare(part: Part, path: Path, item: str, found: str, expected: object, again: str) -> None:
    """A cell against a value; numbers to 9 digits."""
    if isinstance(expected, (int, float)) and not isinstance(expected, bool):
        try:
            if math.isclose(float(found or "nan"), expected, rel_tol=DIGITS, abs_tol=1e-12):
                return
        except ValueError:
            pass
    elif found == ("" if expected is None else str(expected)):
        return
    if part.about(path) < SHOWN:
        part.found(path, item, found or "an empty cell", expected, again)
