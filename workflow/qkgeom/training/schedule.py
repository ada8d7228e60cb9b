"""How long and how fast a run is trained, and what is kept of it; checked before anything heavy is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qkgeom.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """How a run is trained.

    Attributes:
        steps: optimiser steps.
        batch: sequences per micro-step, over all processes.
        accumulation: micro-steps per step, over all processes.
        learning_rate: peak, decaying linearly to 0.
        warmup: steps of linear warm-up.
        weight_decay: of AdamW.
        log_every: steps per point of the loss curve.
        save_every: steps between states to go on from.
        heldout_batches: batches of held-out examples at most, for the held-out curve.
        snapshots: steps after which a native checkpoint is kept and the held-out loss taken: 0 for the start, rising to
            the last step.
        device: `cpu`, or `cuda`.
        whole: snapshots that hold every weight, as the last one always does, and not queries and keys alone.

    Raises:
        UsageError: the snapshots are not of this run.
    """

    steps: int
    batch: int
    accumulation: int
    learning_rate: float
    warmup: int
    weight_decay: float
    log_every: int
    save_every: int
    heldout_batches: int
    snapshots: tuple[int, ...]
    device: str
    whole: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        kept = self.snapshots
        if len(kept) < 2 or (kept[0], kept[-1]) != (0, self.steps) or list(kept) != sorted(set(kept)):
            raise UsageError(
                "the snapshots do not fit the run",
                found=",".join(map(str, kept)) or "none",
                expected=f"rising steps, 0 first and {self.steps} last",
                fix="mend `snapshots` or `steps` in the preset",
            )
        if strangers := set(self.whole) - set(kept):
            raise UsageError(
                "a run measures updates at steps without a snapshot",
                found=", ".join(map(str, sorted(strangers))),
                expected=f"steps out of {','.join(map(str, kept))}",
                fix="mend `updates: steps` or `snapshots` in the preset",
            )

    def share(self, processes: int) -> tuple[int, int]:
        """Sequences per micro-step, and micro-steps per step, of each of the processes that share a step's examples.

        Whole micro-steps as far as their number allows, so that no batch is cut; else equal parts of a batch.

        Raises:
            UsageError: they cannot be shared equally.
        """
        together = math.gcd(processes, self.accumulation)
        parts = processes // together
        if self.batch % parts:
            raise UsageError(
                "the examples of a step cannot be shared equally",
                found=f"batch {self.batch} and accumulation {self.accumulation} for {processes} processes",
                expected="`gpus_per_run` that divides accumulation x batch as divisors of each",
                fix="change `gpus_per_run` in config.yaml, or `batch` or `accumulation` in the preset",
            )
        return self.batch // parts, self.accumulation // together


def listed_steps(entries: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
    """The steps that a preset lists: single ones, and ranges [first, last, every]."""
    steps: list[int] = []
    for entry in entries:
        steps += [entry] if isinstance(entry, int) else range(entry[0], entry[1] + 1, entry[2])
    return tuple(steps)
