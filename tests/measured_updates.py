"""Folders of measured updates as `updates` leaves them, written without training."""

import zlib
from pathlib import Path

import numpy as np
import pandas as pd

STEPS, LAST = (0, 200, 400), 500
FROM_BATCHES = ("implicit", "implicit_pairs", "first_order", "whitened", "beta_pairs", "beta_pairs_shuffled", "implicit_batch")
LEVEL = {"beta_pairs": 0.3, "realised": 0.3, "weights": 0.2, "realised_all": 0.3, "realised_second_half": 0.3}


def write_updates(folder: Path, model: str, role: str, shift: float = 0.0) -> Path:
    """Tables of one run: encoders are symmetric where `LEVEL` says so, decoders' columns dominate; `shift` moves both."""
    rng = np.random.default_rng(zlib.crc32(model.encode()))
    quantities = (*FROM_BATCHES, "realised", "weights")
    scores, resamples = [], []
    for step, until in zip(STEPS, (*STEPS[1:], LAST), strict=True):
        more = {0: ("realised_all",), 200: ("realised_second_half",)}.get(step, ())
        for quantity in (*quantities, *more):
            level = shift + (LEVEL.get(quantity, 0.05) if role == "encoder" else 0.0)
            excess = np.nan if quantity.startswith("beta") else shift + (-0.4 if role == "decoder" else 0.1)
            place = {"model": model, "step": step, "until": until, "quantity": quantity}
            values = {"symmetry": level, "directionality": excess, "directionality_excess": excess}
            for layer in range(3):
                noise = rng.normal(0, 0.01)
                scores.append({**place, "layer": layer, **{name: value + noise for name, value in values.items()}})
            if quantity in FROM_BATCHES:
                drawn = ({name: value + rng.normal(0, 0.02) for name, value in values.items()} for _ in range(6))
                resamples += [{**place, "resample": number, **each} for number, each in enumerate(drawn)]
    growth = [
        {"model": model, "step": step, "until": 1, "layer": layer, "basis": basis, "side": side, "correlation": 0.2, "n": 30}
        for step in STEPS
        for layer in range(3)
        for basis in ("token", "dimension")
        for side in ("row", "column")
    ]
    tables = {"updates": scores, "resamples": resamples, "growth": growth, "tokens": _tokens(), "terms": _terms(rng)}
    where = folder / model / "updates"
    where.mkdir(parents=True)
    for name, rows in tables.items():
        table = pd.DataFrame(rows)
        if "model" not in table:
            table = table.assign(model=model, step=200, until=400)
        table.to_csv(where / f"{name}.csv", index=False, float_format="%.9g")
    return folder / model


def _tokens() -> list[dict]:
    sides = {"row_added": 0.1, "column_added": 0.2, "row_growth": 0.3, "column_growth": 0.4}
    counts = {"n_query": 50, "n_key": 60, "n_target": 5}
    return [{"token": token, "text": text, **counts, **sides} for token, text in ((4, "[MASK]"), (9, "&_$"))]


def _terms(rng: np.random.Generator) -> list[dict]:
    rows = []
    for panel, label in (("term 1", "a ← $b"), ("term 2", "##c ← d"), ("sum", None), ("symmetric", None), ("skew", None)):
        rows += [
            {"layer": 1, "panel": panel, "label": label, "row": row, "col": col, "value": rng.normal()}
            for row in range(6)
            for col in range(6)
        ]
    for panel in ("row norms", "column norms"):
        rows += [{"layer": 1, "panel": panel, "label": None, "row": row, "value": rng.random()} for row in range(8)]
    told = {"symmetry": 0.1, "directionality": -0.2, "directionality_excess": -0.3, "terms": 1234}
    return rows + [{"layer": 1, "panel": "told", "label": name, "value": value} for name, value in told.items()]
