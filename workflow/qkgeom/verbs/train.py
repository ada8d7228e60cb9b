"""`train`: one of the paper's custom models, with one seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.digests import code_digest
from qkgeom.training.custom import Recipe, build, is_query_or_key
from qkgeom.training.schedule import Schedule, read_steps
from qkgeom.training.sequences import Sequences
from qkgeom.training.tokens import Corpus, read_corpus

HELDOUT_BATCHES = 32


def command(
    corpus: Annotated[Path, Argument(help="folder of a tokenised corpus")],
    output: Annotated[Path, Option("--output", "-o", help="folder of the run; a killed run goes on from what is there")],
    objective: Annotated[Literal["masked", "autoregressive"], Option()],
    n_layer: Annotated[int, Option(min=1)],
    d_model: Annotated[int, Option(min=1)],
    n_head: Annotated[int, Option(min=1)],
    length: Annotated[int, Option(min=2, help="tokens of a sequence")],
    steps: Annotated[int, Option(min=1)],
    batch: Annotated[int, Option(min=1, help="sequences per micro-step")],
    learning_rate: Annotated[float, Option(help="peak")],
    snapshots: Annotated[str, Option(help="steps after which weights are kept, separated by commas")],
    accumulation: Annotated[int, Option(min=1, help="micro-steps per step")] = 1,
    warmup: Annotated[int, Option(min=0, help="steps")] = 0,
    weight_decay: Annotated[float, Option()] = 0.01,
    log_every: Annotated[int, Option(min=1, help="steps per point of the loss curve")] = 10,
    save_every: Annotated[int, Option(min=1, help="steps between states to go on from")] = 200,
    init: Annotated[Literal["default", "symmetric"], Option(help="symmetric: W_q = W_k at the start")] = "default",
    seed: Annotated[int, Option(min=0)] = 0,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    threads: Annotated[int | None, Option(min=1, help="CPU threads; all by default")] = None,
) -> None:
    """Train a BERT-shaped model bidirectionally (masked) or autoregressively, keeping snapshots of its weights."""
    set_up_logging()
    recipe = Recipe(objective, init, n_layer, d_model, n_head, length, seed)
    schedule = Schedule(
        steps=steps,
        batch=batch,
        accumulation=accumulation,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        log_every=log_every,
        save_every=save_every,
        snapshots=read_steps(snapshots),
        device=_device(device, threads),
    )
    train(read_corpus(corpus), recipe, schedule, output)


def train(corpus: Corpus, recipe: Recipe, schedule: Schedule, output: Path) -> None:
    """Builds a model and trains it into its folder, see `qkgeom.training.loop`."""
    from qkgeom.training import loop

    sequences = Sequences(corpus, recipe.length, recipe.masked, recipe.seed)
    heldout = sequences.heldout_batches(schedule.batch, HELDOUT_BATCHES)
    model = build(recipe, corpus.vocab_size)
    definition = {"corpus": corpus.name, "corpus_digest": corpus.digest, **vars(recipe), **vars(schedule)}
    definition["code"] = code_digest("verbs.train")
    loop.train(model, sequences.train_batch, heldout, output, schedule, recipe.seed, is_query_or_key, definition)


def _device(name: str, threads: int | None) -> str:
    import torch

    from qkgeom.device import choose_device

    if threads:
        torch.set_num_threads(threads)
    return str(choose_device(name))
