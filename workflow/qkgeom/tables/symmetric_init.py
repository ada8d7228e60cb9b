"""Training from a symmetric initialisation against the default one."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from qkgeom.rendering import Inputs
from qkgeom.tables._initialisations import INITS, NO_PARTNER, compared
from qkgeom.tables._printing import MISSING

PAPER = "Table 1"
CAPTION = (
    "Loss of encoders trained from the default and from a symmetric initialisation (query and key weights equal at step 0). "
    "Training loss: the last, as a trailing mean over 5 logged points; held-out loss: the last of the held-out curve, on "
    "the preset's heldout_batches (training_runs measures on more). Difference: symmetric less default, of the training "
    "loss at those 5 points, and the half-width of its 95 % interval (t, paired: both runs see the same batches). Speed-up: "
    "1 - (first step at which the smoothed training loss from the symmetric initialisation is at or below the last one from "
    "the default initialisation) / steps. Where there are several pairs of seeds, mean [least, greatest]. In the presets "
    "mini and smoke, the embedded corpora reference, docstrings and descriptions stand for the paper's Wikipedia, Red "
    "Pajama and Jigsaw, and 2, 4 and 6 layers for its 4, 12 and 24."
)
GROUP = "training"
NEEDS = ("losses", "runs")


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per corpus, depth and seed: both runs, their losses and the difference, step reached, speed-up."""
    return compared(inputs)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """One row per corpus and depth at which there is a pair of runs."""
    groups = table[table["result"] != NO_PARTNER].groupby(["corpus", "depth"], sort=False)
    rows = [{("", "Corpus"): corpus, ("", "Layers"): str(depth), **_cells(pairs)} for (corpus, depth), pairs in groups]
    columns = [("", "Corpus"), ("", "Layers"), *_cells(table.iloc[:0])]
    rows = rows or [{("", "Corpus"): "no such run"}]
    return pd.DataFrame({column: [row.get(column) for row in rows] for column in columns})


def _cells(pairs: pd.DataFrame) -> dict[tuple[str, str], str]:
    def losses(column: str, title: str) -> dict[tuple[str, str], str]:
        reasons = {init: pairs[f"status_{init}"].replace("ok", "no losses") for init in INITS}
        return {(title, init.capitalize()): _cell(pairs[f"{column}_{init}"], reasons[init], ".2f") for init in INITS}

    return {
        ("", "Seeds"): str(len(pairs)),
        **losses("train_loss", "Training loss"),
        ("Training loss", "Difference"): _differences(pairs),
        **losses("heldout_loss", "Held-out loss"),
        ("", "Speed-up (%)"): _cell(100 * pairs["speed_up"], pairs["result"], ".0f"),
    }


def _differences(pairs: pd.DataFrame) -> str:
    known = pairs.dropna(subset=["loss_difference", "loss_difference_ci"])
    gaps = zip(known["loss_difference"], known["loss_difference_ci"], strict=True)
    return "; ".join(f"{gap:+.3f} ± {error:.3f}" for gap, error in gaps) or MISSING


def _cell(values: pd.Series, reasons: pd.Series, digits: str) -> str:
    """Mean and range of the values; for those that are missing, how many and why."""
    known = values.dropna()
    texts = []
    if len(known):
        spread = f" [{known.min():{digits}}, {known.max():{digits}}]" if len(known) > 1 else ""
        texts.append(f"{known.mean():{digits}}{spread}")
    missing = Counter(reasons[values.isna()])
    return "; ".join([*texts, *(word if n == len(values) else f"{word} {n} of {len(values)}" for word, n in missing.items())])
