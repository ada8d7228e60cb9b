"""Collected tables of training that resemble real runs: runs.csv, scores.csv and losses.csv, written without training."""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from qkgeom.rendering import Inputs
from qkgeom.scoring import COLUMNS

STEPS = (0, 5, 10, 25, 50, 100, 150, 200, 300, 400, 500)
CORPORA = ("reference", "docstrings", "descriptions")
LOGGED = 10  # steps between two training losses


@dataclass(frozen=True)
class Run:
    """A training run of the custom models, as runs.tsv would have it."""

    role: str = "encoder"
    corpus: str = "reference"
    depth: int = 4
    init: str = "default"
    seed: int = 0
    status: str = "ok"
    family: str = "custom"
    end: int = 500  # where its curves end

    @property
    def run(self) -> str:
        return f"{self.role}-{self.corpus}-{self.depth}-{self.init}" + ("" if self.family == "custom" else f"-{self.family}")

    @property
    def model(self) -> str:
        return f"{self.run}-s{self.seed}"

    def row(self) -> dict:
        objective = {"encoder": "masked", "decoder": "autoregressive"}[self.role]
        names = {"model": self.model, "run": self.run, "seed": self.seed, "label": self.run, "group": "training"}
        how = {"role": self.role, "objective": objective, "family": self.family, "corpus": self.corpus}
        return {**names, **how, "depth": self.depth, "init": self.init, "steps": 500, "status": self.status} | self.measured()

    def measured(self) -> dict:
        """Against the trivial baseline, for a run that ended well; a margin for the mini zoo only."""
        values = {"metric": "loss", "value": 4.5, "baseline": 5.5, "gain": 1.0} if self.status == "ok" else {}
        margin = {} if self.family == "custom" else {"margin": 0.8}
        return dict.fromkeys(("metric", "value", "baseline", "gain", "margin")) | values | margin


def all_runs() -> list[Run]:
    """Every depth and corpus; two seeds on the first corpus; one run of another family."""
    runs = [
        Run(role, corpus, depth, init, seed)
        for corpus in CORPORA
        for depth in (2, 4, 6)
        for role, init in (("encoder", "default"), ("decoder", "default"), ("encoder", "symmetric"))
        for seed in ((0, 1) if corpus == "reference" and depth == 4 else (0,))
    ]
    return [*runs, Run(family="gpt2", role="decoder")]


def score_rows(run: Run) -> list[dict]:
    """Whole layers at each step: encoders become symmetric in different amounts, decoders column-dominant."""
    rng = np.random.default_rng(zlib.crc32(run.model.encode()))
    reach = {
        "encoder": (rng.uniform(0.1, 0.75, run.depth), rng.uniform(-0.35, 0.05, run.depth)),
        "decoder": (rng.uniform(-0.1, 0.09, run.depth), rng.uniform(-0.7, -0.35, run.depth)),
    }[run.role]
    start = rng.normal(0, 0.25, run.depth)  # of a random matrix: which rows and columns stand out is chance
    rows = []
    for step in (step for step in STEPS if step <= run.end):
        for layer in range(run.depth):
            grown = 1 / (1 + np.exp(-(step - 180 - 20 * layer) / 45)) if step else 0.0
            symmetry = 0.01 + reach[0][layer] * grown + rng.normal(0, 0.01)
            if run.init == "symmetric":
                symmetry = 1 - 0.2 * grown if step else 1.0
            excess = start[layer] * np.exp(-step / 60) + reach[1][layer] * grown + rng.normal(0, 0.03) * (step > 0)
            scores = {"symmetry": symmetry, "directionality": 0.8 * excess, "directionality_excess": excess}
            sizes = {"d_model": 64, "n_head": 2, "n_kv_head": 2, "d_head": 32}
            rows.append(
                {"model": run.model, "snapshot": step, "layer": layer, "head": "all", **sizes, **scores, "status": "ok"}
            )
            rows.append({**rows[-1], "head": "0", "symmetry": 0.99})  # heads are in the same file when asked for
    return rows


def loss_rows(run: Run) -> list[dict]:
    """Training loss every `LOGGED` steps and held-out loss at the snapshots; symmetric starts are a little faster."""
    rng = np.random.default_rng(zlib.crc32(run.model.encode()))
    pace = 150 if run.init == "symmetric" else 220
    logged = np.arange(LOGGED, run.end + 1, LOGGED)
    train = 3.1 + 4.5 * np.exp(-logged / pace) + rng.normal(0, 0.02, len(logged))
    held = [(step, 3.3 + 4.5 * np.exp(-step / pace)) for step in STEPS if step <= run.end]
    splits = {"train": zip(logged, train, strict=True), "heldout": held}
    return [{"model": run.model, "step": s, "split": split, "loss": v} for split, part in splits.items() for s, v in part]


def write_training(folder: Path, runs: list[Run] | None = None) -> Inputs:
    """The three tables; a run that is not `ok` has no scores, as its manifest says failed."""
    runs = all_runs() if runs is None else runs
    scores = [row for run in runs if run.status == "ok" for row in score_rows(run)]
    losses = [row for run in runs for row in loss_rows(run)]
    return write_tables(folder, [run.row() for run in runs], scores, losses)


def write_tables(folder: Path, runs: list[dict], scores: list[dict], losses: list[dict], untrained: tuple = ()) -> Inputs:
    """The tables of some runs, whose models are trained but for those named in `untrained`."""
    verdicts = [(run["model"], "untrained" if run["model"] in untrained else "not random") for run in runs]
    tables = {
        "summary": pd.DataFrame(verdicts, columns=["model", "verdict"]),
        "runs": pd.DataFrame(runs, columns=list(Run().row())),
        "scores": pd.DataFrame(scores, columns=list(COLUMNS)),
        "losses": pd.DataFrame(losses, columns=["model", "step", "split", "loss"]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.9g")
    return Inputs(**{name: folder / f"{name}.csv" for name in tables})
