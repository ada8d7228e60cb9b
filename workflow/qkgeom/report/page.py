"""The page itself: everything that it shows, and the template filled with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from qkgeom import __version__
from qkgeom.findings import Findings
from qkgeom.origins import Origin
from qkgeom.report.parts import Part
from qkgeom.steps import Step

HERE = Path(__file__).parent
LICENCES = "Interactive plots: Vega, Vega-Lite and Vega-Embed (BSD 3-Clause, University of Washington Interactive Data Lab)."


@dataclass(frozen=True)
class Contents:
    """What the page shows.

    Attributes:
        preset: its name.
        description: of the preset.
        facts: what ran, when, with what: name -> value.
        findings: what is missing.
        left_out: models of the preset that the run's knobs left out.
        audit: HTML, or empty.
        figures, tables: see there.
        origins: models of the run.
        scores: by model, cells of the table of models as printed.
        steps: of the run.
    """

    preset: str
    description: str
    facts: Mapping[str, str]
    findings: Findings
    left_out: Sequence[str]
    audit: str
    figures: Sequence[Part]
    tables: Sequence[Part]
    origins: Sequence[Origin]
    scores: Mapping[str, Mapping[str, str]]
    steps: Sequence[Step]


def fill(contents: Contents) -> str:
    """The page as HTML."""
    import jinja2
    import vl_convert
    from markupsafe import Markup

    interactive = any(part.panels for part in contents.figures)
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.ChainableUndefined)
    return templates.get_template("page.html").render(
        **vars(contents) | {"audit": Markup(contents.audit)},
        title=f"qkgeom report: preset {contents.preset}",
        again=f"snakemake --cores 4 --config preset={contents.preset}",
        times=_times(contents.steps),
        number=number,
        moment=moment,
        version=__version__,
        licences=LICENCES if interactive else "",
        css=Markup(_beside("page.css")),
        script=_beside("page.js"),
        any_panels=interactive,
        library=vl_convert.javascript_bundle() if interactive else "",
    )


def number(value: float | None, digits: int) -> str:
    """With so many decimals; a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def moment(when: datetime | None) -> str:
    """A date and time with its offset from UTC; a dash where there is none."""
    return "–" if when is None else when.strftime("%Y-%m-%d %H:%M:%S %z")


def _times(steps: Sequence[Step]) -> list[dict[str, object]]:
    """Per verb, in the order of the run."""
    rows = []
    for verb in dict.fromkeys(step.verb for step in steps):
        of_verb = [step for step in steps if step.verb == verb]
        seconds = [step.seconds for step in of_verb if step.seconds is not None]
        memory = [step.memory_mb for step in of_verb if step.memory_mb is not None]
        measured = {"seconds": number(sum(seconds), 1), "longest": number(max(seconds, default=None), 1)}
        rows.append({"verb": verb, "jobs": len(of_verb), **measured, "memory": number(max(memory, default=None), 0)})
    return rows


def _beside(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
