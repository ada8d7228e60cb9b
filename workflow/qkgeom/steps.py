"""What a finished run did, step by step, from the logs and benchmarks that it left.

The first line of a step's log says when it began, with which versions, and the command that can be pasted to do it again;
Snakemake's benchmark beside it says how long it took.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

FIRST_LINE = re.compile(
    r"(?P<began>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} INFO qkgeom (?P<qkgeom>\S+), python (?P<python>\S+): (?P<arguments>.*)"
)
DEVICE = re.compile(r"INFO scoring \S+ on (\S+)$", re.MULTILINE)
AFTERWARDS = ("report", "check", "crate")  # verbs that look back on a run


@dataclass(frozen=True)
class Step:
    """One job of a run.

    Attributes:
        verb: of the command line, and the rule's name.
        name: what it was about: a model, figure or table.
        command: as it was run; empty where its log is gone.
        began: with the time zone of this machine; None where its log is gone.
        seconds: wall-clock time; None where its benchmark is gone.
        memory_mb: largest resident memory; None likewise, or where it was too short to be measured.
        qkgeom, python: versions.
        devices: on which scores were computed.
    """

    verb: str
    name: str
    command: str = ""
    began: datetime | None = None
    seconds: float | None = None
    memory_mb: float | None = None
    qkgeom: str = ""
    python: str = ""
    devices: tuple[str, ...] = ()

    @property
    def ended(self) -> datetime | None:
        """When it was done; None if its beginning or its time is not known."""
        known = self.began is not None and self.seconds is not None
        return self.began + timedelta(seconds=self.seconds) if known else None


def read_steps(results: Path) -> list[Step]:
    """The steps of a run in the order in which they began; those without a log come last.

    Args:
        results: `results/<preset>`.
    """
    places = {(path.parent.name, path.stem) for path in results.glob("logs/*/*.log")}
    places |= {(path.parent.name, path.stem) for path in results.glob("benchmarks/*/*.tsv")}
    steps = [_step(results, *place) for place in sorted(places) if place[0] not in AFTERWARDS]
    return sorted(steps, key=lambda step: (step.began is None, step.began and step.began.timestamp()))


def _step(results: Path, verb: str, name: str) -> Step:
    return Step(
        verb, name, **_logged(results / f"logs/{verb}/{name}.log"), **_measured(results / f"benchmarks/{verb}/{name}.tsv")
    )


def _logged(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    if not (found := FIRST_LINE.match(text)):  # it was killed before it could say anything
        return {}
    began = datetime.strptime(found["began"], "%Y-%m-%d %H:%M:%S").astimezone()
    versions = {name: found[name] for name in ("qkgeom", "python")}
    command = f"python -m qkgeom {found['arguments']}"
    return {"began": began, "command": command, "devices": tuple(sorted(set(DEVICE.findall(text)))), **versions}


def _measured(path: Path) -> dict[str, float | None]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
    except OSError:
        return {}
    return {"seconds": _number(rows[-1].get("s")), "memory_mb": _number(rows[-1].get("max_rss"))} if rows else {}


def _number(text: str | None) -> float | None:
    """Snakemake writes `NA` or `-` for what it did not measure."""
    try:
        return float(text or "")
    except ValueError:
        return None
