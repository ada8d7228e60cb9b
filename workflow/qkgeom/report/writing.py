"""Writes the report of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import write_text
from qkgeom.findings import find
from qkgeom.finished import FinishedRun, find_run
from qkgeom.origins import read_origins
from qkgeom.report.audit import audit_section
from qkgeom.report.facts import facts
from qkgeom.report.page import Contents, fill
from qkgeom.report.parts import read_figures, read_tables
from qkgeom.settings import read_preset
from qkgeom.steps import read_steps

PRINTED = ("symmetry_median", "directionality_excess_median")


def write_report(
    results: Path | None,
    artifacts: Sequence[Path] | None = None,
    rendered: Sequence[Path] | None = None,
    knobs: Sequence[str] = (),
    target: Path | None = None,
) -> Path:
    """Writes `report.html`.

    Args:
        results: see `finished.find_run`, as the next two.
        artifacts: see there.
        rendered: see there.
        knobs: `name=value`, to be stated.
        target: None for `<results>/report.html`.

    Returns:
        Where it is.

    Raises:
        UsageError: a knob is not of this form; there is no such run.
        QkgeomError: a file of the run is missing or cannot be read.
    """
    run = find_run(results, artifacts, rendered)
    steps = read_steps(run.results)
    origins = read_origins(run.artifacts, run.rows)
    contents = Contents(
        preset=run.preset,
        description=str(read_preset(run.preset)["description"]),
        facts=facts(run.preset, _parsed(knobs), steps),
        findings=find(run.artifacts, [*run.figures, *run.tables]),
        left_out=[name for name in run.rows if name not in {folder.name for folder in run.artifacts}],
        audit=audit_section(run.results, _numbers(run)),
        figures=read_figures(run.figures, origins, steps),
        tables=read_tables(run.tables, origins, steps),
        origins=origins,
        scores=_scores(run.results / "collected/summary.csv"),
        steps=steps,
    )
    target = target or run.results / "report.html"
    write_text(target, fill(contents))
    return target


def _numbers(run: FinishedRun) -> list[Path]:
    rendered = [stem.with_name(f"{stem.name}.csv") for stem in (*run.figures, *run.tables)]
    return [*(folder / "scores.csv" for folder in run.artifacts), *rendered]


def _parsed(knobs: Sequence[str]) -> dict[str, str]:
    if wrong := [text for text in knobs if "=" not in text]:
        raise UsageError("a knob is not understood", found=wrong[0], expected="NAME=VALUE")
    return dict(text.split("=", 1) for text in knobs)


def _scores(summary: Path) -> dict[str, Mapping[str, str]]:
    """Medians and verdict of each model's last snapshot, as printed."""
    import pandas as pd

    try:
        table = pd.read_csv(summary, dtype={"model": str}, keep_default_na=False, na_values=[""])
        last = table.drop_duplicates("model", keep="last").set_index("model")
        printed = last[list(PRINTED)].map(lambda value: f"{value:.3f}", na_action="ignore")
        printed = printed.assign(verdict=last["verdict"]).astype(object).fillna("–")
    except (OSError, ValueError, KeyError) as error:
        raise QkgeomError("a summary of scores cannot be read", where=summary, found=error, fix="collect it again") from error
    return printed.to_dict("index")
