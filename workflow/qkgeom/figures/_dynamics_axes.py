"""What the figures of training share: their numbers' first columns, and axes of scores over training steps."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from qkgeom.figures._scores_against_size import PANELS
from qkgeom.figures._style import HINT
from qkgeom.rendering import Inputs, short_number
from qkgeom.trajectories import custom_runs, of_size

DESCRIPTION = ["role", "corpus", "depth", "model", "seed", "status"]
ENDS = {"symmetry": ("skew", "symmetric"), "directionality_excess": ("columns", "rows")}  # short, for small panels
ALL = "all"  # in the column `seed`


def shown_runs(inputs: Inputs, corpus: str, size: str) -> pd.DataFrame:
    """The runs of a figure, in the default initialisation: `DESCRIPTION`."""
    runs = custom_runs(inputs)
    return of_size(runs[runs["init"] == "default"], corpus, size)[DESCRIPTION]


def with_medians(runs: pd.DataFrame, scores: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The runs with their scores, then those of all seeds together: medians, least first and greatest third quartiles.

    A run without scores keeps one row, without a step, that says its status.

    Args:
        runs: of `shown_runs`.
        scores: model, then `by`, then numbers.
        by: what tells the rows of one model apart.
    """
    single = runs.merge(scores, on="model", how="left")
    groups = single.dropna(subset=by).groupby(["role", "corpus", "depth", *by], sort=False)
    over_seeds = {name: {"q1": "min", "q3": "max"}.get(name[-2:], "median") for name in scores if name not in ("model", *by)}
    together = groups.agg(over_seeds).reset_index()
    counts = {name: "Int64" for name in scores if name.startswith("n_")}
    together = together.assign(seed=ALL, model=None, status=None).astype({**counts, "model": "str", "status": "str"})
    return pd.concat([single.astype({"seed": "str"}), together[list(single)]], ignore_index=True)


def state_of(numbers: pd.DataFrame, role: str) -> str:
    """What a reader must know of the runs that are not shown; empty if there are none."""
    runs = numbers[(numbers["role"] == role) & (numbers["seed"] != ALL)].drop_duplicates("model")
    lost = runs[runs["step"].isna()]
    if runs.empty:
        return "no such run"
    reasons = sorted({"not scored" if status == "ok" else status for status in lost["status"]})
    if len(lost) == len(runs) or not reasons:
        return " and ".join(reasons)
    return f"{len(lost)} of {len(runs)} seeds {' and '.join(reasons)}"


def setting_of(numbers: pd.DataFrame) -> str:
    """Depth and corpus of the runs shown."""
    first = numbers.iloc[0]
    return f"{first['depth']} layers, corpus: {first['corpus']}"


def label_score(axes: Axes, score: str) -> None:
    """The axis of a score over its whole range, with what its ends mean."""
    negative, positive = ENDS[score]
    axes.set(ylabel=PANELS[score][0], ylim=(-1.05, 1.05), yticks=np.linspace(-1, 1, 5))
    for height, meaning in ((0.25, f"← {negative}"), (0.75, f"{positive} →")):
        axes.text(1.03, height, meaning, transform=axes.transAxes, rotation=90, ha="left", va="center", **HINT)


def scale_steps(axes: Axes, steps: pd.Series, powers: bool = False) -> None:
    """An axis from step 0 to the last, and a line where the scores are 0.

    Args:
        axes: what has this axis.
        steps: those drawn.
        powers: whether tenfold steps are at the same distance, 0 and 1 too.
    """
    axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
    last = float(steps.max()) or 1.0
    axes.set(xlabel="training step")
    if powers:
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlim=(-0.2, 1.5 * last), xticks=[0, *10.0 ** np.arange(0, np.log10(last) + 0.1)])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set(xlim=(-0.025 * last, 1.025 * last))
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(lambda step, _: short_number(step))
