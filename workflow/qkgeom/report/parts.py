"""What the page is filled with, read from the results of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.errors import QkgeomError
from qkgeom.figures import NOT_THERE
from qkgeom.origins import Origin
from qkgeom.rendering import specs
from qkgeom.report.markup import caption, data_uri, first_sentence, html
from qkgeom.report.plots import panels
from qkgeom.steps import Step

if TYPE_CHECKING:
    import pandas as pd

HERE = Path(__file__).parents[1]
RECORD = "provenance.json"  # ending of the record that a step leaves


@dataclass(frozen=True)
class Part:
    """A figure or table of the page.

    Attributes:
        name: of its files.
        paper: its number in the paper; empty if it is not in it.
        text: caption of a figure, or a whole table, as HTML.
        files: ending -> data URI, to download.
        command: what makes it again; empty where its log is gone.
        models: that it shows.
        panels: interactive versions, as JSON.
        picture: of a figure, as a data URI.
        alt: for those who do not see it.
    """

    name: str
    paper: str
    text: str
    files: Mapping[str, str]
    command: str
    models: tuple[Origin, ...]
    panels: tuple[str, ...] = ()
    picture: str = ""
    alt: str = ""
    title: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.name.replace("_", " ").capitalize().replace("Wqk", "W_qk"))


def read_figures(stems: Iterable[Path], origins: Sequence[Origin], steps: Sequence[Step]) -> list[Part]:
    """Figures with their captions, numbers and models, those of the paper first.

    Args:
        stems: paths without ending.
        origins: the models of the run.
        steps: the run's.

    Raises:
        QkgeomError: a file of a figure is missing or cannot be read.
    """
    commands = _commands(steps, "figure")
    return sorted(
        (_figure(stem, origins, commands) for stem in stems), key=lambda part: (not part.paper, part.paper, part.name)
    )


def read_tables(stems: Iterable[Path], origins: Sequence[Origin], steps: Sequence[Step]) -> list[Part]:
    """Tables as printed, with their numbers and models, those of the paper first; likewise."""
    commands, known = _commands(steps, "table"), specs(HERE / "tables")
    parts = []
    for stem in stems:
        name = stem.name
        paper = known[name].paper if name in known and known[name].paper != NOT_THERE else ""
        text = html(_read(stem, "md"), f"table {name}")
        files = _files(stem, ("csv", "tex"))
        shown = _models(_numbers(stem), origins)
        parts.append(Part(name, paper, text, files, commands.get(name, ""), shown))
    return sorted(parts, key=lambda part: (not part.paper, part.paper, part.name))


def _figure(stem: Path, origins: Sequence[Origin], commands: Mapping[str, str]) -> Part:
    paper, text = caption(_read(stem, "md"))
    numbers = _numbers(stem)
    return Part(
        name=stem.name,
        paper="" if paper == "not in the paper" else paper,
        text=html(text),
        files=_files(stem, ("csv", "pdf")),
        command=commands.get(stem.name, ""),
        models=_models(numbers, origins),
        panels=tuple(json.dumps(panel, separators=(",", ":")).replace("<", "\\u003c") for panel in panels(numbers, origins)),
        picture=data_uri(stem.with_name(f"{stem.name}.png")),
        alt=f"{first_sentence(text)} The caption says more, and the numbers can be downloaded below.",
    )


def _files(stem: Path, endings: Sequence[str]) -> dict[str, str]:
    """Those of a figure or table as data URIs, and the record of how they were made, if there is one."""
    there = [RECORD] if stem.with_name(f"{stem.name}.{RECORD}").is_file() else []
    return {ending: data_uri(stem.with_name(f"{stem.name}.{ending}")) for ending in [*endings, *there]}


def _models(numbers: pd.DataFrame, origins: Sequence[Origin]) -> tuple[Origin, ...]:
    """Those that a column `model` or `model_...` names."""
    columns = [column for column in numbers if column == "model" or column.startswith("model_")]
    named = {name for column in columns for name in numbers[column].dropna()}
    return tuple(origin for origin in origins if origin.model in named)


def _commands(steps: Sequence[Step], verb: str) -> dict[str, str]:
    return {step.name: step.command for step in steps if step.verb == verb}


def _numbers(stem: Path) -> pd.DataFrame:
    import pandas as pd

    path = stem.with_name(f"{stem.name}.csv")
    try:
        # pandas would take a model called "NA" for a missing value
        return pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    except (OSError, ValueError) as error:
        raise QkgeomError("the numbers of a figure or table cannot be read", where=path, found=error) from error


def _read(stem: Path, ending: str) -> str:
    path = stem.with_name(f"{stem.name}.{ending}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise QkgeomError("a file of a figure or table cannot be read", where=path, found=error, fix="make it again") from error
