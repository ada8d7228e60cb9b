"""What is missing from a run: failed models, layers without a score, models that look untrained, leftovers."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkgeom import artifacts, unscored, untrained
from qkgeom.collecting import read_scores
from qkgeom.dropping import dropped


@dataclass(frozen=True)
class Findings:
    """What `check` says.

    Attributes:
        summary: how many models are there.
        failed: reason of each model that is missing from the figures.
        others: one sentence each: layers without a score, models that look untrained, leftovers of other runs.
    """

    summary: str
    failed: dict[str, str]
    others: list[str]

    @property
    def lines(self) -> list[str]:
        """All of it, as text."""
        return [self.summary, *(f"{model} failed: {reason}" for model, reason in self.failed.items()), *self.others]


def find(folders: Sequence[Path], rendered: Sequence[Path]) -> Findings:
    """What is missing from a run.

    Args:
        folders: of its artifacts, with their scores.csv.
        rendered: a file of each of its figures and tables; others beside them are leftovers.

    Raises:
        QkgeomError: an artifact or its scores cannot be read.
    """
    manifests = {folder: artifacts.read_manifest(folder) for folder in folders}
    reasons = {folder: manifest.get("reason") or unscored.reason(folder) for folder, manifest in manifests.items()}
    failed = {str(manifests[folder]["model"]): str(reason) for folder, reason in reasons.items() if reason}
    others = [line for folder in folders for line in _unscored_layers(folder / "scores.csv")]
    others += _untrained([path for folder in folders if (path := folder / "scores.csv").is_file()])
    others += _leftovers(rendered)
    summary = f"{len(folders) - len(failed)} of {len(folders)} models extracted and scored"
    if gone := sum(bool(dropped(folder, manifest)) for folder, manifest in manifests.items()):
        summary += f"; the weights of {gone} were dropped, and scoring them again fetches them again"
    return Findings(summary, failed, others)


def _untrained(scores: Sequence[Path]) -> list[str]:
    """The models whose last snapshot looks untrained, in a line."""
    names = []
    for path in scores:
        table = read_scores([path])
        last = table[table["snapshot"] == table["snapshot"].iloc[-1]] if len(table) else table
        if untrained.verdict(untrained.p_value(last)) == untrained.UNTRAINED:
            names.append(path.parent.name)
    told = f"scores that random weights give too, so {untrained.UNSURE} (docs/null.md)"
    return [f"{told}: {', '.join(names)}"] if names else []


def _leftovers(rendered: Sequence[Path]) -> list[str]:
    """Figures and tables beside those of this run that are not of it."""
    stems = {path.with_suffix("") for path in rendered}
    beside = {path.with_suffix("") for folder in {path.parent for path in rendered} for path in folder.glob("[!.]*.csv")}
    return [f"{stem} is not of this run: its models, or the knobs that it needs, are not" for stem in sorted(beside - stems)]


def _unscored_layers(scores: Path) -> Iterator[str]:
    """Layers without a score, and heads without one in other layers."""
    if not scores.is_file():
        return
    with scores.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] in ("zero", "not_finite")]
    whole = {(row["snapshot"], row["layer"]) for row in rows if row["head"] == "all"}
    for row in rows:
        if row["head"] == "all" or (row["snapshot"], row["layer"]) not in whole:
            where = f"{row['model']} {row['snapshot']} layer {row['layer']} head {row['head']}"
            yield f"{where} has no score: {row['status']}"
