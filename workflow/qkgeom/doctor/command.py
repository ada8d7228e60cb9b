"""Commands of the system, which may hang."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """What a command said.

    Attributes:
        status: its exit status; None if it had not ended in time, 127 if there is no such command.
        out: its stdout.
        error: its stderr.
    """

    status: int | None
    out: str = ""
    error: str = ""

    @property
    def fine(self) -> bool:
        """Whether it ended well."""
        return self.status == 0

    @property
    def said(self) -> str:
        """Why not, in one line."""
        if self.status is None:
            return "no answer in time"
        lines = (self.error or self.out).strip().splitlines()
        return lines[-1] if lines else f"exit status {self.status}"


def run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> Answer:
    """Runs a command for so long at most, and ends it with all that it has started."""
    env = None if environment is None else {**os.environ, **environment}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace", env=env,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Answer(127, error=f"{command[0]}: {error.strerror}")
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # a child of it may hold the pipes open
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=0.5)
        return Answer(None)
    return Answer(process.returncode, out, error)
