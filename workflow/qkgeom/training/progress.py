"""What a person sees of a run: a bar on a terminal, or a line now and then in a log."""

from __future__ import annotations

import logging
import sys
import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)
INTERVAL = 10.0  # seconds between lines in a log


class Progress(TrainerCallback):
    """Step, loss, steps per second and time left, while its block lasts.

    Args:
        name: of the run.
    """

    def __init__(self, name: str) -> None:
        self.name, self.loss = name, "-"
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rest]}")
        terminal = sys.stderr.isatty()
        self.bar = Bar(*columns, console=Console(file=sys.stderr), transient=True) if terminal else None

    def __enter__(self) -> Progress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Starts the clock at the step the run starts from."""
        self.began = self.told = time.monotonic()
        self.first = state.global_step
        if self.bar:
            self.task = self.bar.add_task(self.name, total=args.max_steps, completed=self.first, rest="")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remembers the loss."""
        if logs and "loss" in logs:
            self.loss = f"{float(logs['loss']):.4f}"

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Moves the bar, or writes a line when one is due."""
        if self.bar or time.monotonic() - self.told >= INTERVAL:
            self._tell(state.global_step, args.max_steps)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Writes the last line."""
        self._tell(state.global_step, args.max_steps)

    def _tell(self, step: int, steps: int) -> None:
        self.told = time.monotonic()
        rate = (step - self.first) / max(self.told - self.began, 1e-9)
        left = timedelta(seconds=round((steps - step) / rate)) if rate else "?"
        told = f"loss {self.loss}, {rate:.1f} steps/s, {left} left"
        if self.bar:
            self.bar.update(self.task, completed=step, rest=told)
        else:
            logger.info("%s: step %d of %d: %s", self.name, step, steps, told)
