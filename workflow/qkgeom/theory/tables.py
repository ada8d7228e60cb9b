"""What is written of one run's updates: scores with bootstrap intervals, growth, tokens, and the terms of one batch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from qkgeom.theory.matrices import dense_scores, pair_symmetry, recentred, resampled_weights
from qkgeom.theory.sums import LayerSums, StepSums, added_norms, growth

RESAMPLES = 40
INTERVAL = (2.5, 97.5)  # percentiles over resampled batches
SHOWN_TERMS, CORNER = 3, 24  # rank-1 terms, and rows and columns of each matrix that are kept
SUMMED = ("implicit", "implicit_pairs", "first_order")
PAIRS = {"beta_pairs": "pairs", "beta_pairs_shuffled": "pairs_shuffled"}


def score_rows(sums: StepSums, changes: dict[str, list[np.ndarray]], seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The scores of one step's quantities per layer, and the medians over layers of resampled batches.

    Args:
        sums: of the step.
        changes: further quantities, a matrix per layer, which no batch enters.
        seed: of the bootstrap.

    Returns:
        layer, quantity, the scores, and where batches enter their ends of the 95 % interval over these; and
        quantity, resample (0 for all batches), the scores. `implicit_batch` is the mean of the scores of single batches.
    """
    weights = resampled_weights(len(sums.losses), RESAMPLES, seed)
    drawn = {name: [] for name in (*SUMMED, "whitened", *PAIRS, "implicit_batch")}
    for layer in sums.layers:
        matrices = {name: np.stack(getattr(layer, name)) for name in SUMMED} | {"whitened": layer.whitened()}
        for name, stack in matrices.items():
            drawn[name].append(dense_scores(np.einsum("rb,bde->rde", weights, stack)))
        single = dense_scores(matrices["implicit"])
        drawn["implicit_batch"].append({score: weights @ values for score, values in single.items()})
        for name, attribute in PAIRS.items():
            drawn[name].append({"symmetry": pair_symmetry(np.stack(getattr(layer, attribute)), weights)})
    rows = [
        {"layer": index, "quantity": name, **_estimate(scores)}
        for name, layers in drawn.items()
        for index, scores in enumerate(layers)
    ]
    tables = [pd.DataFrame(rows), *(change_rows(name, layers) for name, layers in changes.items())]
    resamples = [_medians(name, layers) for name, layers in drawn.items()]
    return pd.concat(tables, ignore_index=True), pd.concat(resamples, ignore_index=True)


def change_rows(name: str, layers: list[np.ndarray]) -> pd.DataFrame:
    """The scores of a quantity that no batch enters: layer, quantity, then the scores."""
    return pd.DataFrame([{"layer": index, "quantity": name, **dense_scores(M)} for index, M in enumerate(layers)])


def _estimate(scores: dict[str, np.ndarray]) -> dict[str, float]:
    """The first of each, and the interval of the others, less their bias."""
    values = {score: each[0] for score, each in scores.items()}
    for score, each in scores.items():
        values[f"{score}_low"], values[f"{score}_high"] = np.percentile(recentred(each), INTERVAL)
    return values


def _medians(name: str, layers: list[dict[str, np.ndarray]]) -> pd.DataFrame:
    columns = {score: np.median([each[score] for each in layers], axis=0) for score in layers[0]}
    return pd.DataFrame({"quantity": name, "resample": np.arange(RESAMPLES + 1), **columns})


def growth_rows(sums: StepSums, later: list[np.ndarray]) -> pd.DataFrame:
    """Rank correlations of what is added with what grows, per layer, side and basis.

    By token: what each adds at query (key) positions, with the growth of |x W_qk| (|W_qk x^T|) at its mean input row. By
    dimension: the row (column) norms of the implicit update, with the growth of those of W_qk.
    """
    from scipy.stats import spearmanr

    types, rows = sums.compared_tokens(), []
    for index, (layer, W) in enumerate(zip(sums.layers, later, strict=True)):
        update = np.mean(layer.implicit, axis=0)
        norms = [[np.linalg.norm(M, axis=axis) for axis in (1, 0)] for M in (update, layer.W_qk, W)]
        by_dimension = [(norms[0][side], norms[2][side] - norms[1][side]) for side in (0, 1)]
        by_token = list(zip(added_norms(layer, sums.tokens, types), growth(layer, W, sums.tokens, types), strict=True))
        for basis, pairs in (("token", by_token), ("dimension", by_dimension)):
            for side, (added, grown) in zip(("row", "column"), pairs, strict=True):
                correlation = spearmanr(added, grown).statistic if len(added) > 2 else np.nan
                rows.append({"layer": index, "basis": basis, "side": side, "correlation": correlation, "n": len(added)})
    return pd.DataFrame(rows)


def token_rows(sums: StepSums, later: list[np.ndarray], texts: dict[int, str]) -> pd.DataFrame:
    """How often each frequent token is query, key and target, what it adds on either side, and what grows.

    A position is a query (key) if any of its beta as such is not zero in some layer. Norms and growths are means over layers.
    """
    types = sums.compared_tokens()
    tokens = sums.tokens.flatten()
    roles = [
        torch.stack([torch.stack(getattr(layer, side)).abs().sum(-1).flatten() > 0 for layer in sums.layers]).any(0)
        for side in ("c", "r")
    ]
    counts = [[int((role & (tokens == each)).sum()) for each in types] for role in roles]
    added = np.mean([added_norms(layer, sums.tokens, types) for layer in sums.layers], axis=0)
    grown = np.mean([growth(layer, W, sums.tokens, types) for layer, W in zip(sums.layers, later, strict=True)], axis=0)
    columns = {"token": types.numpy(), "text": [texts.get(int(each)) for each in types]}
    columns |= {"n_query": counts[0], "n_key": counts[1], "n_target": [sums.targets.get(int(each), 0) for each in types]}
    columns |= {"row_added": added[0], "column_added": added[1], "row_growth": grown[0], "column_growth": grown[1]}
    return pd.DataFrame(columns)


def term_rows(layer: LayerSums, beta: np.ndarray, tokens: np.ndarray, texts: dict[int, str]) -> pd.DataFrame:
    """The largest rank-1 terms of the first batch's implicit update, all terms' sum, its parts, and its norms.

    Args:
        layer: of a model.
        beta: of this layer in that batch, summed over heads, [sequence, token, token].
        tokens: in that batch, [sequence, token].
        texts: of tokens.

    Returns:
        panel (`term 1`, ..., `sum`, `symmetric`, `skew`, `row norms`, `column norms`), label, row, col, value; of the
        matrices the first `CORNER` rows and columns. In panel `told` the scores of the sum, and how many terms it has.
    """
    x, update = layer.x[0].numpy(), layer.implicit[0]
    panels = {}
    for rank, cell in enumerate(np.argsort(-np.abs(beta), axis=None)[:SHOWN_TERMS], 1):
        b, i, j = np.unravel_index(cell, beta.shape)
        names = [texts.get(int(tokens[b, each]), str(tokens[b, each])) for each in (i, j)]
        panels[f"term {rank}"] = -beta[b, i, j] * np.outer(x[b, i], x[b, j]), " ← ".join(names)
    parts = {"sum": update, "symmetric": (update + update.T) / 2, "skew": (update - update.T) / 2}
    scores = {name: float(value) for name, value in dense_scores(update).items()}
    panels |= {name: (M, None) for name, M in parts.items()}
    rows = []
    for panel, (M, label) in panels.items():
        row, col = np.indices(M[:CORNER, :CORNER].shape).reshape(2, -1)
        rows.append(pd.DataFrame({"panel": panel, "label": label, "row": row, "col": col, "value": M[row, col]}))
    for panel, axis in (("row norms", 1), ("column norms", 0)):
        norms = np.linalg.norm(update, axis=axis)
        rows.append(pd.DataFrame({"panel": panel, "label": None, "row": np.arange(len(norms)), "value": norms}))
    told = {**scores, "terms": np.count_nonzero(beta)}
    rows.append(pd.DataFrame({"panel": "told", "label": list(told), "value": list(told.values())}))
    return pd.concat(rows, ignore_index=True)
