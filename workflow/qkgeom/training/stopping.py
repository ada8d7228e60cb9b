"""SIGTERM (a time limit, a preemption) asks a run to save its state and end."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Inside the block, SIGTERM sets `requested` instead of ending the process."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> StopRequest:
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
