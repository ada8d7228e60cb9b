"""`check`: the last step of a run, which names every model that is missing from its figures."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom import artifacts, unscored, untrained
from qkgeom.collecting import read_scores
from qkgeom.console import set_up_logging
from qkgeom.dropping import dropped
from qkgeom.errors import QkgeomError
from qkgeom.files import write_text
from qkgeom.sole_writer import be_sole_writer


def command(
    artifact: Annotated[list[Path], Argument(help="folders of artifacts, with their scores.csv")],
    allow_missing: Annotated[bool, Option("--allow-missing/--no-allow-missing", help="end well all the same")] = False,
    rendered: Annotated[list[Path] | None, Option(help="a figure or table of this run; others beside it are named")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="write the findings here, also if a model failed")] = None,
) -> None:
    """Name every failed model, every layer without a score, and leftovers of other runs; exit 1 if a model failed."""
    set_up_logging()
    be_sole_writer(*filter(None, [output]))
    manifests = {folder: artifacts.read_manifest(folder) for folder in artifact}
    reasons = {folder: manifest.get("reason") or unscored.reason(folder) for folder, manifest in manifests.items()}
    failed = [manifest["model"] for folder, manifest in manifests.items() if reasons[folder]]
    findings = [f"{manifest['model']} failed: {reasons[folder]}" for folder, manifest in manifests.items() if reasons[folder]]
    findings += [line for folder in manifests for line in _unscored_layers(folder / "scores.csv")]
    findings += _untrained([path for folder in manifests if (path := folder / "scores.csv").is_file()])
    findings += _leftovers(rendered or [])
    summary = f"{len(manifests) - len(failed)} of {len(manifests)} models extracted and scored"
    if gone := sum(bool(dropped(folder, manifest)) for folder, manifest in manifests.items()):
        summary += f"; the weights of {gone} were dropped, and scoring them again fetches them again"
    text = "\n".join([summary, *findings]) + "\n"
    sys.stdout.write(text)
    if output:
        write_text(output, text)
    if failed and not allow_missing:
        raise QkgeomError(
            f"{len(failed)} of {len(manifests)} models are missing from the figures: " + ", ".join(map(str, failed)),
            fix="mend the cause, then `python -m qkgeom retry` and run again; or set `allow_missing: true` in config.yaml",
        )


def _untrained(scores: list[Path]) -> list[str]:
    """The models whose last snapshot looks untrained, in a line."""
    names = []
    for path in scores:
        table = read_scores([path])
        last = table[table["snapshot"] == table["snapshot"].iloc[-1]] if len(table) else table
        if untrained.verdict(untrained.p_value(last)) == untrained.UNTRAINED:
            names.append(path.parent.name)
    told = f"scores that random weights give too, so {untrained.UNSURE} (docs/null.md)"
    return [f"{told}: {', '.join(names)}"] if names else []


def _leftovers(rendered: list[Path]) -> list[str]:
    """Figures and tables beside those of this run that are not of it."""
    stems = {path.with_suffix("") for path in rendered}
    beside = {path.with_suffix("") for folder in {path.parent for path in rendered} for path in folder.glob("[!.]*.csv")}
    return [f"{stem} is not of this run: its models, or the knobs that it needs, are not" for stem in sorted(beside - stems)]


def _unscored_layers(scores: Path) -> list[str]:
    """Layers without a score, and heads without one in other layers."""
    if not scores.is_file():
        return []
    with scores.open(newline="", encoding="utf-8") as file:
        unscored = [row for row in csv.DictReader(file) if row["status"] in ("zero", "not_finite")]
    whole = {(row["snapshot"], row["layer"]) for row in unscored if row["head"] == "all"}
    return [
        f"{row['model']} {row['snapshot']} layer {row['layer']} head {row['head']} has no score: {row['status']}"
        for row in unscored
        if row["head"] == "all" or (row["snapshot"], row["layer"]) not in whole
    ]
