"""The pairs of runs that speak for or against each claim of the paper's abstract. Effects are positive in its favour."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qkgeom.rendering import Inputs
from qkgeom.tables import _predictions
from qkgeom.tables._evidence import AGAINST, FOR, NEITHER, speaks
from qkgeom.tables._initialisations import NO_PARTNER, compared
from qkgeom.trajectories import SCORES, UNIT, custom_runs, layer_scores, over_layers, pairs
from qkgeom.untrained import UNTRAINED

CLAIMS = {
    "encoder_symmetry": "encoders are more symmetric",
    "decoder_columns": "decoders' columns dominate",
    "symmetry_emerges": "symmetry emerges",
    "columns_emerge": "column dominance emerges",
    "symmetric_init": "symmetric start is faster",
}
SYMMETRY, EXCESS = SCORES
NAMES = ("a", "b")
COLUMNS = [
    *("claim", *UNIT),
    *(f"{column}_{name}" for name in NAMES for column in ("model", "step", "value")),
    *("effect", "speaks", "note", "untrained"),
]


def evidence(inputs: Inputs) -> pd.DataFrame:
    """Every pair for every claim: the two values and whose they are, `effect`, `speaks` and a `note`.

    `speaks` is for, against or neither, and empty for a pair that could not be compared; the note says why.
    `untrained` is whether the last scores of either run cannot be told from those of random weights.

    Raises:
        QkgeomError: one of the tables cannot be read.
    """
    runs = custom_runs(inputs)
    runs = runs[runs["init"] == "default"]
    first, last = _ends(inputs, runs)
    encoders, decoders = (last[last["role"] == role] for role in ("encoder", "decoder"))
    parts = {
        "encoder_symmetry": _weigh(encoders, decoders, SYMMETRY, 1),
        "decoder_columns": _weigh(decoders, encoders, EXCESS, -1, negative=True),
        "symmetry_emerges": _weigh(encoders, first[first["role"] == "encoder"], SYMMETRY, 1),
        "columns_emerge": _weigh(decoders, first[first["role"] == "decoder"], EXCESS, -1, negative=True),
        "symmetric_init": _initialisations(inputs),
    }
    tables = [part.assign(claim=claim) for claim, part in parts.items()]
    if inputs.updates:
        tables.append(_predictions.evidence(inputs))
    table = pd.concat(tables, ignore_index=True)
    verdicts = inputs.verdicts()
    untrained = [table[f"model_{name}"].map(verdicts) == UNTRAINED for name in NAMES]
    return table.assign(untrained=untrained[0] | untrained[1])[COLUMNS]


def _ends(inputs: Inputs, runs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs that ended well with the medians over layers of their scores, at step 0 and at the last step of each."""
    scores = over_layers(layer_scores(inputs, runs)).rename(columns={f"{score}_median": score for score in SCORES})
    ended = runs.loc[runs["status"] == "ok", "model"]
    scores = scores.loc[scores["model"].isin(ended), ["model", "step", *SCORES]]
    tables = scores[scores["step"] == 0], scores[scores["step"] > 0].drop_duplicates("model", keep="last")
    first, last = (runs.drop(columns="steps").merge(table, on="model", how="left") for table in tables)
    return first, last


def _weigh(ours: pd.DataFrame, others: pd.DataFrame, score: str, sign: int, negative: bool = False) -> pd.DataFrame:
    """Pairs of runs, or of two steps of a run; the effect is `sign` times ours less the other's.

    Args:
        ours: rows of `_ends`.
        others: likewise.
        score: the one that is compared.
        sign: 1 if the claim is that ours is greater, -1 if it is less.
        negative: ours must be below 0 too.
    """
    columns = [*UNIT, "model", "status", "step", score]
    table = pairs(*(part[columns].rename(columns={score: "value"}) for part in (ours, others)), names=NAMES)
    effect = (sign * (table["value_a"] - table["value_b"])).astype("float64")
    spoken = speaks(effect, (table["value_a"] < 0) | (not negative))
    note = [_note(row) if pd.isna(row["effect"]) else None for row in table.assign(effect=effect).to_dict("records")]
    return table.assign(effect=effect, speaks=spoken, note=_text(note))


def _note(row: dict) -> str:
    """Why a pair could not be compared."""
    statuses = [row[f"status_{name}"] for name in NAMES]
    if any(pd.isna(status) for status in statuses):
        return NO_PARTNER
    return next((status for status in statuses if status != "ok"), "no score")


def _initialisations(inputs: Inputs) -> pd.DataFrame:
    """Pairs of initialisations; the values are the final training losses, the effect is the speed-up.

    Where the default's loss was not reached, 0 stands for the speed-up, which is no more than that. Where the final losses
    cannot be told apart, neither can the speeds. A run that diverged from the symmetric start alone speaks against it.
    """
    table = compared(inputs)
    reached, missed = table["result"] == "reached", table["result"] == "not reached"
    worse = (table["status_symmetric"] == "diverged") & (table["status_default"] == "ok")
    effect = table["speed_up"].mask(missed, 0.0)
    lower = table["loss_difference"] < -table["loss_difference_ci"]
    higher = table["loss_difference"] > table["loss_difference_ci"]
    good = reached & (effect > 0) & lower
    bad = higher | worse
    spoken = np.select([good, bad, reached | missed], [FOR, AGAINST, NEITHER], None)
    columns = {
        "model_a": table["model_symmetric"],
        "step_a": table["step_reached"],
        "value_a": table["train_loss_symmetric"],
        "model_b": table["model_default"],
        "step_b": table["steps_default"],
        "value_b": table["train_loss_default"],
    }
    alike = table["loss_difference"].notna() & ~lower & ~higher
    note = _text(table["result"].mask(reached, None).mask(alike, "final losses cannot be told apart"))
    return table[list(UNIT)].assign(**columns, effect=effect, speaks=_text(spoken), note=note)


def _text(values: np.ndarray | list | pd.Series) -> pd.array:
    return pd.array(values, dtype="str")
