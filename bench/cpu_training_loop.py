"""Tokens per second of the training loop, as a share of what a plain PyTorch loop gets, on one thread.

Both train the same model on the same batches with the same optimiser, learning rates and clipping, and take turns of a
few steps, so that what else the machine does falls on both. The training loop also does all that it does in a run: its
curve, its snapshots (as many per step as in preset `mini`), its state (more often than there). Held-out losses are left
out (they are of one sequence), and so is what comes before the first step and after the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import get_linear_schedule_with_warmup

from figures import Figure
from qkgeom.errors import QkgeomError
from qkgeom.training import families, loop
from qkgeom.training.families.base import Recipe
from qkgeom.training.losses import mean_loss
from qkgeom.training.schedule import Schedule
from qkgeom.training.tokens import SPECIAL, Corpus
from synthetic import corpus_of

if TYPE_CHECKING:
    from qkgeom.training.families.base import Data
    from qkgeom.training.sequences import Sequences

ROUNDS, TURN = 8, 4
VOCABULARY, TOKENS = 2000, 400_000
FAMILY = families.load("custom")
RECIPE = Recipe("masked", "default", n_layer=4, d_model=64, n_head=2, length=32, dropout=0.1, init_std=0.02, seed=0)
SCHEDULE = Schedule(
    steps=62,  # the clock counts 60: fifteen turns
    batch=32,
    accumulation=1,
    learning_rate=0.003,
    warmup=20,
    weight_decay=0.01,
    log_every=10,
    save_every=30,
    heldout_batches=1,
    snapshots=(0, 20, 40, 62),
    device="cpu",
)
SAME_LOSS = 0.03  # relative; dropout is drawn in another order


def measure(tiny: bool) -> list[Figure]:
    """The ratio of the two loops' median speeds.

    Raises:
        QkgeomError: they did not do the same work.
    """
    torch.set_num_threads(1)
    schedule = replace(SCHEDULE, steps=TURN + 2, batch=2, snapshots=(0, 2, TURN + 2)) if tiny else SCHEDULE
    data = FAMILY.data(RECIPE, synthetic_corpus())
    rounds = 1 if tiny else ROUNDS
    speeds = [one_round(data, schedule) for _ in range(rounds + 1)][1:]  # the first is a warm-up
    ours, plain = (median(each) for each in zip(*speeds, strict=True))
    detail = f"tokens/s, medians of {rounds}: {ours:,.0f} against {plain:,.0f}"
    return [Figure("training loop against a plain PyTorch loop", ours / plain, "of its tokens/s", 0.9, detail=detail)]


def one_round(data: Sequences, schedule: Schedule) -> tuple[float, float]:
    """Trains two models from the same start; tokens per second of the training loop and of the plain one."""
    model, other = (FAMILY.build(RECIPE, data.corpus) for _ in range(2))
    turns = InTurns(data, plain_steps(other, data, schedule))
    with TemporaryDirectory() as folder:
        loop.train(model, turns, Path(folder) / "run", schedule, RECIPE.seed, FAMILY.is_query_or_key, {})
    for _ in turns.other:
        pass
    heldout = data.heldout_batches(64, 4)
    losses = mean_loss(model, heldout), mean_loss(other, heldout)
    if abs(losses[0] / losses[1] - 1) > SAME_LOSS:
        raise QkgeomError("the two loops did not do the same work", found=f"held-out losses {losses[0]} and {losses[1]}")
    tokens = turns.steps * schedule.batch * RECIPE.length
    return tokens / turns.seconds, tokens / turns.seconds_of_other


class InTurns:
    """Training data of a loop that asks one batch ahead, as the Trainer does; at every TURN-th batch another loop's turn comes.

    Args:
        data: the training data.
        other: the steps of the other loop.
    """

    def __init__(self, data: Data, other: Iterator[None]) -> None:
        self.data, self.other = data, other
        self.asked = self.steps = 0
        self.seconds = self.seconds_of_other = 0.0

    def train_batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The training batch of these indices. The first step comes after the second one."""
        if self.asked % TURN == 1:
            self._take_turns()
        self.asked += 1
        return self.data.train_batch(indices)

    def _take_turns(self) -> None:
        now = perf_counter()
        if self.asked > 1:
            self.seconds += now - self.resumed
            self.steps += TURN
            for _ in range(TURN):
                next(self.other)
        self.resumed = perf_counter()
        self.seconds_of_other += self.resumed - now

    def heldout_batches(self, batch: int, most: int) -> list[dict[str, torch.Tensor]]:
        """One sequence."""
        return self.data.heldout_batches(1, 1)


def synthetic_corpus() -> Corpus:
    """Tokens of Zipf's frequencies, so that there is something to learn."""
    frequency = 1 / np.arange(1, VOCABULARY - len(SPECIAL) + 1)
    tokens = np.random.default_rng(0).choice(len(frequency), TOKENS, p=frequency / frequency.sum()) + len(SPECIAL)
    train, heldout = np.split(tokens.astype(np.int32), [TOKENS * 9 // 10])
    return corpus_of(train, heldout, VOCABULARY)


def plain_steps(model: torch.nn.Module, data: Data, schedule: Schedule) -> Iterator[None]:
    """The plain loop, step by step."""
    optimizer = torch.optim.AdamW(model.parameters(), schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True)
    rates = get_linear_schedule_with_warmup(optimizer, schedule.warmup, schedule.steps)
    model.train()
    for first in range(0, schedule.steps * schedule.batch, schedule.batch):
        model(**data.train_batch(range(first, first + schedule.batch))).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        yield
