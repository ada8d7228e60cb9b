"""How much sooner a symmetric initialisation reaches the loss of the default one: pairs of runs and their loss curves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qkgeom.rendering import Inputs
from qkgeom.trajectories import UNIT, custom_runs, pairs

WINDOW = 5  # logged points; the captions of `symmetric_init` and `claims` state it
INITS = ("default", "symmetric")
NO_PARTNER = "no partner"


def smoothed(losses: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """Trailing mean over `window` logged points; over those there are at the start."""
    sums = np.cumsum(np.concatenate([[0.0], np.asarray(losses, float)]))
    ends = np.arange(1, len(sums))
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def step_reached(steps: np.ndarray, losses: np.ndarray, target: float) -> int | None:
    """The first step at which the smoothed losses are at or below `target`, or None."""
    below = np.flatnonzero(smoothed(losses) <= target)
    return int(np.asarray(steps)[below[0]]) if len(below) else None


def difference(ours: pd.DataFrame, others: pd.DataFrame) -> tuple[float, float]:
    """Mean difference of two loss curves over their last `WINDOW` points in common, and its 95 % interval's half-width.

    Runs of one seed see the same batches, so that their losses differ less than each varies.

    Args:
        ours: columns `step` and `loss`.
        others: likewise.

    Returns:
        Both NaN where fewer than two points are common.
    """
    from scipy.stats import t

    points = ours.merge(others, on="step", suffixes=("", "_other")).tail(WINDOW)
    gaps = points["loss"] - points["loss_other"]
    if len(gaps) < 2:
        return np.nan, np.nan
    return gaps.mean(), t.ppf(0.975, len(gaps) - 1) * gaps.std() / len(gaps) ** 0.5


def compared(inputs: Inputs) -> pd.DataFrame:
    """One row per corpus, depth and seed at which there is an encoder of either initialisation.

    Returns:
        `UNIT`; model and status of both; steps; `train_loss` (smoothed, the last) and `heldout_loss` (the last) of both,
        empty for a run that did not end well; `loss_difference`, symmetric less default, and its `loss_difference_ci`
        (see `difference`); `step_reached` and `speed_up` = 1 - step_reached / steps; `result`: reached, not reached, no
        partner, or why a run did not end well.

    Raises:
        QkgeomError: runs.csv or losses.csv cannot be read.
    """
    runs = custom_runs(inputs)
    curves = _curves(inputs)
    final = _final_losses(curves)
    runs = runs[runs["role"] == "encoder"].merge(final, on="model", how="left")
    runs.loc[runs["status"] != "ok", ["train_loss", "heldout_loss"]] = np.nan
    kept = [*UNIT, "model", "status", "steps", "train_loss", "heldout_loss"]
    table = pairs(*(runs.loc[runs["init"] == init, kept] for init in INITS), names=INITS)
    train = dict(iter(curves[curves["split"] == "train"].groupby("model")))
    results = [_result(row, train) for row in table.to_dict("records")]
    gaps = [_difference(row, train) for row in table.to_dict("records")]
    table[["loss_difference", "loss_difference_ci"]] = np.array(gaps, float).reshape(-1, 2)
    table["step_reached"] = pd.array([step for step, _ in results], dtype="Int64")
    table["speed_up"] = (1 - table["step_reached"] / table["steps_default"]).astype("float64")
    table["result"] = pd.Series([word for _, word in results], dtype="str", index=table.index)
    return table


def _difference(row: dict, train: dict[str, pd.DataFrame]) -> tuple[float, float]:
    if any(pd.isna(row[f"train_loss_{init}"]) for init in INITS):
        return np.nan, np.nan
    return difference(train[row["model_symmetric"]], train[row["model_default"]])


def _curves(inputs: Inputs) -> pd.DataFrame:
    curves = inputs.read("losses", ["model", "step", "split", "loss"])
    return curves.dropna(subset="loss").sort_values(["model", "step"], kind="stable")


def _final_losses(curves: pd.DataFrame) -> pd.DataFrame:
    train = curves[curves["split"] == "train"].groupby("model")["loss"].agg(lambda losses: smoothed(losses)[-1])
    held = curves[curves["split"] == "heldout"].groupby("model")["loss"].last()
    return pd.concat([train.rename("train_loss"), held.rename("heldout_loss")], axis=1).reset_index(names="model")


def _result(row: dict, train: dict[str, pd.DataFrame]) -> tuple[int | None, str]:
    """The step reached, if any, and the word for it."""
    statuses = [row[f"status_{init}"] for init in INITS]
    if any(pd.isna(status) for status in statuses):
        return None, NO_PARTNER
    for status in statuses:
        if status != "ok":
            return None, status
    if any(pd.isna(row[f"train_loss_{init}"]) for init in INITS):
        return None, "no losses"
    curve = train[row["model_symmetric"]]
    step = step_reached(curve["step"].to_numpy(), curve["loss"].to_numpy(), row["train_loss_default"])
    return step, "not reached" if step is None else "reached"
