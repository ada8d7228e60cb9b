"""Useful tokens per second of the paper's BERT-base on one GPU: our settings against the authors'.

Ours are the training loop's own: bf16 (fp16 on a GPU without it), SDPA, packed sequences. Theirs are those of their
train.py (their repository, commit 20d0428) and requirements (transformers 4.39.1): fp16, one document per sequence,
padded to 512, and what that version does for BERT, eager attention and AdamW unfused. Both run here on the installed
versions, on the same documents, with micro-batches of 32 and no accumulation. The documents are synthetic: log-normal
lengths with median 350 and mean 720 tokens, an assumption about encyclopaedia articles. The shorter the documents, the
more there is to gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from figures import Figure
from qkgeom.training import families, loop
from qkgeom.training.families.base import Recipe
from qkgeom.training.schedule import Schedule
from qkgeom.training.sequences import Sequences
from qkgeom.training.tokens import SPECIAL, Corpus
from require_gpu import require_gpu
from synthetic import corpus_of

if TYPE_CHECKING:
    from qkgeom.training.families.base import Data

ROUNDS, WARM_UP = 2, 10
PADDING = 0  # the id of [PAD]
MEDIAN, SIGMA = 350, 1.2  # of a document's tokens
DOCUMENTS, VOCABULARY = 2000, 30522
FAMILY = families.load("custom")
RECIPE = Recipe("masked", "default", n_layer=12, d_model=768, n_head=12, length=512, dropout=0.1, init_std=0.02, seed=0)
SCHEDULE = Schedule(
    steps=60,
    batch=32,
    accumulation=1,
    learning_rate=5e-5,
    warmup=200,
    weight_decay=0.01,
    log_every=200,
    save_every=1000,
    heldout_batches=1,
    snapshots=(0, 60),
    device="cuda",
)


def measure(tiny: bool) -> list[Figure]:
    """The ratio of the median speeds.

    Raises:
        UsageError: there is no GPU.
    """
    require_gpu(40, tiny)
    recipe, schedule, scale, rounds, skipped = RECIPE, SCHEDULE, 1.0, ROUNDS, WARM_UP
    if tiny:
        recipe = replace(RECIPE, n_layer=1, d_model=16, n_head=2, length=32)
        schedule = replace(SCHEDULE, steps=6, batch=2, snapshots=(0, 6), device="cpu")
        scale, rounds, skipped = recipe.length / RECIPE.length, 1, 1
    documents = synthetic_documents(scale)
    synchronize = torch.cuda.synchronize if schedule.device == "cuda" else lambda: None
    speeds: dict[Callable, list[float]] = {_theirs: [], _ours: []}
    for _ in range(rounds):
        for train, lay_out in ((_theirs, padded), (_ours, packed)):
            data = Clocked(lay_out(documents, recipe), schedule.steps, skipped, synchronize)
            train(recipe, data, schedule)
            speeds[train].append(data.speed)
    ours, theirs = median(speeds[_ours]), median(speeds[_theirs])
    useful = float(np.mean([min(len(each), recipe.length) for each in documents])) / recipe.length
    detail = f"useful tokens/s: {ours:,.0f} against {theirs:,.0f}; {useful:.0%} of the padded tokens are useful"
    return [Figure("training on a GPU against the authors' settings", ours / theirs, "x useful tokens/s", 2, detail=detail)]


class Clocked:
    """Training data of a run, with a clock that runs while its batches are asked for, from the second to the last.

    Set-up before them, and saving after them, are not counted.

    Args:
        data: the training data.
        batches: of the run.
        skipped: this many more steps at the start are not counted.
        synchronize: waits for the device.
    """

    def __init__(self, data: Data, batches: int, skipped: int = 0, synchronize: Callable[[], None] = lambda: None) -> None:
        self.data, self.first, self.last, self.synchronize = data, 1 + skipped, batches - 1, synchronize
        self.asked = self.tokens = 0

    def train_batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """The training batch of these indices."""
        if self.asked in (self.first, self.last):
            self.synchronize()
            now = time.perf_counter()
            self.began, self.ended = (now, now) if self.asked == self.first else (self.began, now)
        batch = self.data.train_batch(indices)
        if self.first <= self.asked < self.last:
            self.tokens += int((batch["input_ids"] != PADDING).sum())
        self.asked += 1
        return batch

    def heldout_batches(self, batch: int, most: int) -> list[dict[str, torch.Tensor]]:
        """One sequence: a held-out loss takes next to nothing."""
        return self.data.heldout_batches(1, 1)

    @property
    def speed(self) -> float:
        """Tokens per second that are not padding."""
        return self.tokens / (self.ended - self.began)


def synthetic_documents(scale: float) -> list[np.ndarray]:
    """Documents of random tokens, their lengths multiplied by `scale`."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(rng.lognormal(np.log(MEDIAN * scale), SIGMA, DOCUMENTS), 4).astype(int)
    return [rng.integers(len(SPECIAL), VOCABULARY, length, np.int32) for length in lengths]


def packed(documents: Sequence[np.ndarray], recipe: Recipe) -> Sequences:
    """The documents one after another, cut into sequences."""
    return Sequences(_corpus(np.concatenate(documents)), recipe.length, True, recipe.seed)


@dataclass(frozen=True)
class Padded(Sequences):
    """Sequences with an attention mask, which leaves out padding."""

    def train_batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """`input_ids`, `labels` and `attention_mask`, [batch, length] each."""
        batch = super().train_batch(indices)
        return batch | {"attention_mask": (batch["input_ids"] != PADDING).long()}


def padded(documents: Sequence[np.ndarray], recipe: Recipe) -> Padded:
    """A sequence per document, cut or padded to the length."""
    cut = [each[: recipe.length] for each in documents]
    rows = [np.pad(each, (0, recipe.length - len(each)), constant_values=PADDING) for each in cut]
    return Padded(_corpus(np.concatenate(rows)), recipe.length, True, recipe.seed)


def _corpus(tokens: np.ndarray) -> Corpus:
    return corpus_of(tokens, tokens, VOCABULARY)


def _ours(recipe: Recipe, data: Clocked, schedule: Schedule) -> None:
    model = FAMILY.build(recipe, data.data.corpus)
    with TemporaryDirectory() as folder:
        loop.train(model, data, Path(folder) / "run", schedule, recipe.seed, FAMILY.is_query_or_key, {})


def _theirs(recipe: Recipe, data: Clocked, schedule: Schedule) -> None:
    model = FAMILY.build(recipe, data.data.corpus)
    model.set_attn_implementation("eager")
    on_gpu = schedule.device == "cuda"
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=schedule.steps,
            per_device_train_batch_size=schedule.batch,
            learning_rate=schedule.learning_rate,
            warmup_steps=schedule.warmup,
            weight_decay=schedule.weight_decay,
            optim="adamw_torch",
            logging_steps=schedule.log_every,
            save_strategy="no",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
            use_cpu=not on_gpu,
            fp16=on_gpu,
            seed=recipe.seed,
        )
        examples = range(schedule.steps * schedule.batch)
        trainer = Trainer(model, arguments, data_collator=data.train_batch, train_dataset=examples)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
