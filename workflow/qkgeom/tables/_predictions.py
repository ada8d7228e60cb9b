"""The theory's predictions (the table beside this file, older than any of its figures) against measured updates.

Each is weighed in pairs of runs, or run by run, as the column `effect` of the table says. Values of several steps are
means over the measured steps of the medians over layers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from qkgeom.errors import QkgeomError
from qkgeom.measured_updates import PLAIN, measured_runs, over_layers
from qkgeom.rendering import Inputs
from qkgeom.tables._evidence import speaks
from qkgeom.trajectories import SCORES, UNIT, pairs

TABLE = Path(__file__).with_suffix(".tsv")
SYMMETRY, EXCESS = SCORES


def titles() -> dict[str, str]:
    """What each prediction says in a few words, by id."""
    return pd.read_csv(TABLE, sep="\t", index_col="prediction", quoting=3)["claim"].to_dict()


def evidence(inputs: Inputs) -> pd.DataFrame:
    """Every comparison for every prediction that these runs can speak of; columns as of `_claims.evidence`.

    Raises:
        QkgeomError: a table cannot be read, or a prediction is weighed by nothing.
    """
    measured = _Measured(inputs)
    if unknown := set(titles()) ^ set(WEIGHED):
        raise QkgeomError("a prediction has no measurement, or the other way round", where=TABLE, found=", ".join(unknown))
    parts = [weigh(measured).assign(claim=name) for name, weigh in WEIGHED.items()]
    return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)


class _Measured:
    """Scores of the measured runs, one value per run."""

    def __init__(self, inputs: Inputs) -> None:
        self.runs = measured_runs(inputs)
        scores = over_layers(inputs)
        self.means = scores.groupby(["model", "quantity"])[[SYMMETRY, EXCESS]].mean()
        growth = inputs.measured("growth", ["model", "step", "layer", "basis", "side", "correlation"])
        by_step = growth[growth["basis"] == "token"].groupby(["model", "side", "step"])["correlation"].median()
        self.growth = by_step.groupby(["model", "side"]).mean()

    def of(self, objective: str, quantity: str, score: str, less: str = "") -> pd.DataFrame:
        """The runs with an objective: `UNIT`, model, status and `value`, a score of a quantity (less that of another)."""
        rows = self.runs[self.runs["objective"] == objective]
        values = [self._score(model, quantity, score) for model in rows["model"]]
        if less:
            values = np.subtract(values, [self._score(model, less, score) for model in rows["model"]])
        return rows[[*UNIT, "model", "status"]].assign(value=np.asarray(values, float))

    def _score(self, model: str, quantity: str, score: str) -> float:
        return self.means[score].get((model, quantity), np.nan)

    def grown(self, side: str) -> pd.DataFrame:
        """Every run of a plain objective with its correlation of what tokens add with what grows on a side."""
        rows = self.runs[self.runs["objective"].isin(PLAIN)]
        values = [self.growth.get((model, side), np.nan) for model in rows["model"]]
        return rows[[*UNIT, "model", "status"]].assign(value=np.asarray(values, float))


def _paired(ones: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Runs side by side, those without a partner left out."""
    return pairs(ones, others, names=("a", "b")).dropna(subset=["model_a", "model_b"])


def _compared(ones: pd.DataFrame, others: pd.DataFrame, negative: str = "") -> pd.DataFrame:
    """Pairs with effect = value of the one less that of the other; `negative` names a side that must be below 0 too."""
    table = _paired(ones, others)
    return _spoken(table.assign(effect=table["value_a"] - table["value_b"]), negative)


def _spoken(table: pd.DataFrame, negative: str = "") -> pd.DataFrame:
    effect = table["effect"].astype("float64")
    spoken = speaks(effect, table[f"value_{negative}"] < 0 if negative else True)
    missing = [None if there else "not measured" for there in effect.notna()]
    return table.assign(effect=effect, speaks=spoken, note=pd.array(missing, dtype="str"))


def _roles(quantity: str, score: str, negative: str = "", less: str = "") -> Callable[[_Measured], pd.DataFrame]:
    """Encoder against decoder."""
    return lambda measured: _compared(
        measured.of("masked", quantity, score, less), measured.of("autoregressive", quantity, score, less), negative
    )


def _objectives(one: str, other: str, quantity: str, score: str) -> Callable[[_Measured], pd.DataFrame]:
    return lambda measured: _compared(measured.of(one, quantity, score), measured.of(other, quantity, score))


def _quantities(objective: str, one: str, other: str, score: str) -> Callable[[_Measured], pd.DataFrame]:
    """Two quantities of the same runs."""
    return lambda measured: _compared(measured.of(objective, one, score), measured.of(objective, other, score))


def _growth(side: str) -> Callable[[_Measured], pd.DataFrame]:
    def weigh(measured: _Measured) -> pd.DataFrame:
        rows = measured.grown(side).rename(columns={name: f"{name}_a" for name in ("model", "status", "value")})
        nobody = pd.array([None] * len(rows), dtype="str")
        return _spoken(rows.assign(model_b=nobody, value_b=np.nan, effect=rows["value_a"]))

    return weigh


def _between(measured: _Measured) -> pd.DataFrame:
    """The prefix objective against both neighbours; the effect is the smaller distance."""
    prefix, *ends = (measured.of(each, "realised_all", SYMMETRY) for each in ("prefix", *PLAIN))
    above, below = (_paired(prefix, end).set_index(list(UNIT)) for end in ends)  # of which either may lack a run
    smaller = np.minimum(above["value_b"] - above["value_a"], below["value_a"] - below["value_b"])
    return _spoken(above.assign(effect=smaller).reset_index())


WEIGHED: dict[str, Callable[[_Measured], pd.DataFrame]] = {
    "beta_pairs": _quantities("masked", "beta_pairs", "beta_pairs_shuffled", SYMMETRY),
    "beta_pairs_roles": _roles("beta_pairs", SYMMETRY, less="beta_pairs_shuffled"),
    "implicit_symmetry": _roles("implicit", SYMMETRY),
    "realised_symmetry": _roles("realised", SYMMETRY),
    "implicit_columns": _roles("implicit", EXCESS, negative="b"),
    "realised_columns": _roles("realised", EXCESS, negative="b"),
    "row_growth": _growth("row"),
    "column_growth": _growth("column"),
    "whitened_columns": _quantities("autoregressive", "whitened", "implicit", EXCESS),
    "swap_to_autoregressive": _objectives("masked", "masked then autoregressive", "realised_second_half", SYMMETRY),
    "swap_to_masked": _objectives("autoregressive then masked", "autoregressive", "realised_second_half", SYMMETRY),
    "shuffled_symmetry": _objectives("masked", "masked shuffled", "realised_all", SYMMETRY),
    "shuffled_columns": _objectives("autoregressive shuffled", "autoregressive", "realised_all", EXCESS),
    "white_columns": _objectives("autoregressive white", "autoregressive", "realised_all", EXCESS),
    "prefix_between": _between,
}
