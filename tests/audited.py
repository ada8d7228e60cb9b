"""A small results folder with every link of the chain, made by the pipeline's own verbs in this process."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path

from checkpoints import bert_config, write_bert, write_llama
from project import row, write_models
from qkgeom.audit.chain import Audit, audit
from qkgeom.audit.options import Options
from qkgeom.files import write_csv
from qkgeom.training.run_record import write_provenance
from qkgeom.verbs import collect, extract, figure, score, table

RUN = "mini.bert.s0"  # a row of runs.tsv
MODELS = ("enc", "dec", RUN)
FIGURES, TABLES = ("scores_language", "wqk_examples"), ("symmetry_scores",)


def make_results(folder: Path) -> Path:
    """Two local models and a training run with two snapshots: extracted, scored, collected, rendered; gives results/."""
    write_bert(folder / "models/enc")
    write_llama(folder / "models/dec")
    rows = write_models(
        folder / "models.tsv", [row("enc", "file:models/enc"), row("dec", "file:models/dec", "llama", "decoder")]
    )
    with inside(folder):
        results = Path("results")
        make_run(results / "runs" / RUN)
        uris = {"enc": "file:models/enc", "dec": "file:models/dec", RUN: f"run:{RUN}"}
        for model, uri in uris.items():
            extract.command(uri, results / "models" / model)
        remake(results, rows)
    return folder / "results"


def remake(results: Path, rows: Path) -> None:
    """Scores and all that follows from them."""
    score.command([str(results / "models" / model) for model in MODELS], in_place=True, heads=True, device="cpu", threads=1)
    scores = [results / "models" / model / "scores.csv" for model in MODELS]
    collected = results / "mini/collected"
    collect.command(scores, collected, run=[results / "runs" / RUN], models=rows)
    examples = [f"encoder={results}/models/enc:0", f"decoder={results}/models/dec:1"]
    figure.command("scores_language", results / "mini/figures/scores_language", summary=collected / "summary.csv")
    figure.command("wqk_examples", results / "mini/figures/wqk_examples", example=examples)
    table.command("symmetry_scores", results / "mini/tables/symmetry_scores", summary=collected / "summary.csv")


def make_run(folder: Path) -> None:
    """A finished run of a BERT, whose early snapshot holds queries and keys alone, as training leaves it."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    from qkgeom.training.snapshots import write_checkpoint

    torch.manual_seed(0)
    config = BertConfig(vocab_size=40, intermediate_size=32, max_position_embeddings=8, **without_type(bert_config(n_layer=2)))
    for step, keep in ((0, lambda name: ".query." in name or ".key." in name), (400, lambda name: True)):
        (folder / "snapshots").mkdir(parents=True, exist_ok=True)
        write_checkpoint(folder / f"snapshots/{step:07d}", BertForMaskedLM(config), keep)
    measured = {"metric": "loss", "value": 4.5, "baseline": 5.5, "gain": 1.0, "margin": 0.3}
    ended = {"status": "ok", "steps": 400, "heldout_loss": 4.25, "n_params": 12345, "measured": measured}
    done = {**ended, "snapshots": [0, 400], "definition": {"seed": 0, "device": "cpu", "code": "0123456789abcdef"}}
    for name in ("done.json", "record.json"):
        (folder / name).write_text(json.dumps(done))
    import pandas as pd

    write_csv(folder / "losses.csv", pd.DataFrame({"model": RUN, "step": [0, 400], "split": "heldout", "loss": [5.5, 4.25]}))
    write_provenance(folder, done, 0, None)


def without_type(config: dict) -> dict:
    return {key: value for key, value in config.items() if key != "model_type"}


@contextmanager
def inside(folder: Path):
    """Works in a folder for the block's time."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def audited(project: Path, **options) -> Audit:
    """The audit of a project's preset."""
    with inside(project):
        return audit("mini", Options(Path("results"), **options), {}, lambda items, label: iter(items))
