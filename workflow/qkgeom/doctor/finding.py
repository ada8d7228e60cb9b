"""What a check is told, and what it answers."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from qkgeom.errors import QkgeomError

LIMIT = 9.0  # seconds for all checks together
SET_UP = "run `make setup` again (or reinstall envs/requirements.txt)"


class State(StrEnum):
    """Whether a run would go well."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"  # it would fail


@dataclass(frozen=True)
class Finding:
    """A line of the answer.

    Attributes:
        check: what it is about, in a word or two.
        state: see `State`.
        found: what is there.
        fix: what to do; empty if nothing is.
    """

    check: str
    state: State
    found: str
    fix: str = ""


def ok(check: str, found: str) -> Finding:
    """Something that is as a run needs it."""
    return Finding(check, State.OK, found)


def warning(check: str, found: str, fix: str) -> Finding:
    """Something that a person should know of."""
    return Finding(check, State.WARNING, found, fix)


def fault(check: str, found: str, fix: str) -> Finding:
    """Something that would make the run fail."""
    return Finding(check, State.FAULT, found, fix)


def error(check: str, found: QkgeomError, fix: str | None = None) -> Finding:
    """A fault that an error of ours tells, with its own advice or a better one."""
    details = f" ({found.details})" if found.details else ""
    return fault(check, found.what + details, fix or found.fix or "mend it, then ask again")


@dataclass(frozen=True)
class Case:
    """What is examined.

    Attributes:
        folder: the project's folder, in which the run would be started.
        preset: instead of the one that config.yaml names.
        slurm: whether the run would use SLURM; None: perhaps, if this machine has its commands.
        deadline: when there must be an answer, as `time.monotonic` counts.
    """

    folder: Path = Path()
    preset: str | None = None
    slurm: bool | None = None
    deadline: float = field(default_factory=lambda: time.monotonic() + LIMIT)

    @property
    def may_submit(self) -> bool:
        """Whether the run may use SLURM."""
        return self.slurm or (self.slurm is None and shutil.which("sbatch") is not None)

    def left(self, most: float = LIMIT) -> float:
        """Seconds until the deadline, at most so many."""
        return max(0.1, min(most, self.deadline - time.monotonic()))
