"""Where the collected scores and a model's own disagree: one of the two was changed, and the weights say which."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from qkgeom.audit.findings import SHOWN, Part
from qkgeom.audit.rows import Key, Row, read_rows

DIGITS = 2e-8  # relative, of a number with 9 digits, or of one that was computed from such


class Dispute(NamedTuple):
    """A cell of which there are two opinions."""

    key: Key
    column: str
    own: str
    collected: str


Disputes = dict[str, list[Dispute]]  # model -> its cells


def disputes_of(models: Sequence[str], results: Path, preset: str) -> Disputes:
    """The cells of models' scores.csv that collected/scores.csv has otherwise; files that cannot be read have none here."""
    collected: dict[str, dict[Key, Row]] = defaultdict(dict)
    try:
        with (results / preset / "collected" / "scores.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                collected[row["model"]][row["snapshot"], row["layer"], row["head"]] = row
    except (OSError, ValueError, KeyError):
        return {}
    disputes = {}
    for model in models:
        try:
            own = read_rows(results / "models" / model / "scores.csv")
        except (OSError, ValueError):
            continue
        cells = [
            Dispute(key, column, cell, other[column])
            for key, row in own.items()
            if (other := collected[model].get(key))
            for column, cell in row.items()
            if column in other and not _same(cell, other[column])
        ]
        if cells:
            disputes[model] = cells
    return disputes


def tell_undecided(part: Part, disputes: Sequence[Dispute], scores: Path, collected: Path, helps: bool) -> None:
    """Adds a finding for each disputed cell of a model whose layer could not be derived anew.

    Args:
        part: of the model, after its scores were derived.
        disputes: of the model.
        scores: its scores.csv.
        collected: the collected one.
        helps: whether `--from-source` would derive them.
    """
    undecided = [each for each in disputes if each.key[:2] not in part.derived]
    how = "audit with --from-source, which derives them" if helps else "delete both and run snakemake"
    for each in undecided[:SHOWN]:
        item = "snapshot {}, layer {}, head {}, ".format(*each.key) + each.column
        fix = f"one of the two files is wrong, and the weights that would tell are not here: {how}"
        part.found(
            scores, item, each.own or "an empty cell", f"{each.collected or 'an empty cell'}, as {collected} has it", fix
        )


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=DIGITS)
    except (TypeError, ValueError):
        return False
