"""A small zoo as a pipeline leaves it: summary.csv, scores.csv and artifacts, written without any pipeline."""

from pathlib import Path

import numpy as np
import pandas as pd

from measured_updates import write_updates
from qkgeom import artifacts
from qkgeom.artifacts import StoredTensor, tensor_name
from qkgeom.rendering import Inputs
from qkgeom.scoring import COLUMNS
from qkgeom.snapshot_file import snapshot_file
from trained_models import all_runs, write_training

SCORES = ("symmetry", "directionality", "directionality_excess")


def summary_row(model: str, role: str, n_params: int | None, n_layers: int, scores: dict | None = None, **more) -> dict:
    """`scores`: score -> (median, q1, q3); without any the model has no finite score."""
    cells = {
        "model": model,
        "snapshot": "final",
        "n_layers": n_layers,
        "n_scored": n_layers,
        "label": model,
        "role": role,
        "group": "language",
        "same_as": None,
        "untrained_p": 1e-9,
        "verdict": "not random",
    }
    cells |= {f"{score}_null_{end}": value for score in SCORES for end, value in (("low", -0.2), ("high", 0.2))}
    for score in SCORES:
        quartiles = (scores or {}).get(score, (0.1, 0.0, 0.2) if scores is not None else (None, None, None))
        cells |= dict(zip((f"{score}_median", f"{score}_q1", f"{score}_q3"), quartiles, strict=True))
    return {**cells, "n_params": n_params, **more}


def zoo(group: str = "language") -> list[dict]:
    """Both roles, one shallow model, one of unknown size, one without scores, and one of another group."""
    rows = [
        summary_row("dec-large", "decoder", 405_849_522_176, 30, {"symmetry": (0.05, -0.01, 0.123456789)}),
        summary_row(
            "enc-small", "encoder", 22_713_216, 6, {"symmetry": (0.5, 0.4, 0.6), "directionality_excess": (-0.1, -0.2, 0.0)}
        ),
        summary_row("dec-unknown", "decoder", None, 4, {"symmetry": (-0.001, -0.3, 0.2)}),
        summary_row("enc-shallow", "encoder", 4_385_920, 2, {"directionality": (-0.7, -0.8, -0.6)}, label="enc_shallow & 50%"),
        summary_row("enc-unscored", "encoder", 1_000_000, 12),
    ]
    other = summary_row("elsewhere", "encoder", 1_000_000, 12, {}, group="another group")
    snapshots = (0, 10, 1000) if group == "dynamics_public" else ("final",)
    return [{**row, "group": group, "snapshot": snapshot} for row in rows for snapshot in snapshots] + [other]


def write_summary(path: Path, rows: list[dict]) -> Path:
    pd.DataFrame(rows).astype({"n_params": "Int64"}).to_csv(path, index=False, float_format="%.9g")
    return path


def write_scores(path: Path, rows: list[dict]) -> Path:
    """Three layers, and their four heads, for each model and snapshot of the summary's rows."""
    sizes = {"d_model": 64, "n_head": 4, "n_kv_head": 2, "d_head": 16}
    norms = {"fro_norm": 1.0, "n_row_outliers": 1, "n_col_outliers": 1, "status": "ok"}
    layers = [
        {
            "model": row["model"],
            "snapshot": row["snapshot"],
            "layer": layer,
            "head": head,
            **sizes,
            **dict.fromkeys(SCORES, layer / 10 if head == "all" else (layer - int(head)) / 10),
            **norms,
        }
        for row in rows
        for layer in range(3)
        for head in ("all", *"0123")
    ]
    pd.DataFrame(layers, columns=list(COLUMNS)).to_csv(path, index=False)
    return path


def write_artifact(folder: Path, layers: list[tuple[np.ndarray, np.ndarray]]) -> Path:
    """An artifact with these W_q [d, n_head, d_head] and W_k [d, n_kv_head, d_head], one pair per layer."""
    stored = [
        [StoredTensor(tensor_name(i, w), a.shape, a.dtype) for w, a in zip(("W_q", "W_k"), pair, strict=True)]
        for i, pair in enumerate(layers)
    ]
    with snapshot_file(folder / "final.safetensors", stored, {}, {}) as file:
        for pair in layers:
            file.append(pair, dict)
    records = [{"layer": i} for i in range(len(layers))]
    snapshots = {"final": {"file": "final.safetensors", "layers": records}}
    artifacts.write_manifest(folder, {"model": folder.name, "status": "ok", "snapshots": snapshots})
    return folder


def random_layer(d: int = 60, n_head: int = 4, n_kv_head: int = 2, d_head: int = 16, dtype: object = np.float32):
    rng = np.random.default_rng(d)
    W_q, W_k = rng.normal(size=(d, n_head, d_head)), rng.normal(size=(d, n_kv_head, d_head))
    return W_q.astype(dtype), W_k.astype(dtype)


def inputs_for(folder: Path, group: str, rows: list[dict] | None = None) -> Inputs:
    """Everything that a figure or table can ask for; the scores are those of the group's models."""
    rows = zoo(group) if rows is None else rows
    trained = write_training(folder / "training")
    layers = [{**dict.fromkeys(COLUMNS, 0), "model": "dec-large", "head": "all", "defects": "grouped_heads"}] * 2
    pd.DataFrame(layers).to_csv(folder / "published_way.csv", index=False)
    return Inputs(
        published_way=[folder / "published_way.csv"],
        summary=write_summary(folder / "summary.csv", rows),
        scores=trained.scores if group == "training" else write_scores(folder / "scores.csv", rows),
        losses=trained.losses,
        runs=trained.runs,
        examples={
            "encoder": (write_artifact(folder / "enc-small", [random_layer(60)]), 0),
            "decoder": (write_artifact(folder / "dec-large", [random_layer(64), random_layer(72)]), 1),
        },
        updates=[
            write_updates(folder / "runs", run.model, run.role)
            for run in all_runs()
            if run.family == "custom" and run.init == "default" and run.corpus == "reference"
        ],
    )
