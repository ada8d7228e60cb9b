"""Symmetry and directionality of weight updates over training, from the theory's sum to the weights themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from qkgeom.figures._style import COLOURS, MARKERS, WIDTH, say
from qkgeom.measured_updates import PLAIN, measured_runs, over_layers
from qkgeom.rendering import ROLES, Inputs
from qkgeom.theory.matrices import recentred
from qkgeom.trajectories import SCORES

PAPER = "none"
CAPTION = (
    "The updates of the query-key matrices over training, encoders (masked) and decoders (autoregressive), in the order in "
    "which the theory leads from one to the next. β: pair symmetry of the gradients at attention logits, summed by the "
    "pair of tokens that stand there, and (dashed) with the positions of each sequence shuffled. Implicit update: the sum "
    "of β times rank-1 terms, averaged over 8 training batches in the default run, and (dotted) without the terms of a "
    "position with itself (i = j), which are symmetric under any objective. First order: the change of the matrix "
    "that this makes through its factors under SGD. Realised: the change under AdamW until the next measured step, drawn "
    "in the middle. Weights: the matrix itself. Median over runs of the median over layers; band: 95 % bootstrap interval "
    "over runs (corpora, depths and seeds) and batches. Resampled batches repeat, so that their sum is noisier than that of "
    "all batches, and its scores are biased; this bias is estimated run by run and taken off. Negative directionality "
    "(excess): columns dominate."
)
GROUP = "training, controls"
NEEDS = ("runs", "updates")
QUANTITIES = {
    "beta_pairs": "β by token pair",
    "implicit": "implicit update",
    "first_order": "first order",
    "realised": "realised",
    "weights": "weights",
}
CONTROLS = {  # quantity, line and name of what is drawn beside a quantity
    "beta_pairs": ("beta_pairs_shuffled", "--", "shuffled positions"),
    "implicit": ("implicit_pairs", ":", "without i = j"),
}
LABELS = {"symmetry": "symmetry", "directionality_excess": "directionality (excess)\n← columns      rows →"}
DRAWS = 400


def numbers(inputs: Inputs) -> pd.DataFrame:
    """One row per role, quantity, score and step: the median over runs, its interval, and the number of runs."""
    runs = measured_runs(inputs)
    roles = runs[runs["objective"].isin(PLAIN)].set_index("model")["role"]
    keys = ["quantity", "step", "until", "model"]
    whole = over_layers(inputs)[[*keys, *SCORES]].assign(resample=0)
    drawn = inputs.measured("resamples", [*keys, "resample", *SCORES])
    table = pd.concat([drawn, whole[~whole["quantity"].isin(drawn["quantity"])]], ignore_index=True)
    table = table[
        table["model"].isin(roles.index)
        & table["quantity"].isin([*QUANTITIES, *(control for control, _, _ in CONTROLS.values())])
    ]
    table = table.assign(role=table["model"].map(roles))
    columns = ["role", "quantity", "score", "step", "until", "value", "low", "high", "n_runs"]
    rows = []
    for (role, quantity, step, until), part in table.groupby(["role", "quantity", "step", "until"], sort=True):
        for score in SCORES:
            values = part.pivot(index="model", columns="resample", values=score).to_numpy(float)
            if np.isfinite(values).all():
                told = dict(zip(columns, (role, quantity, score, step, until, *_interval(values)), strict=True))
                rows.append(told)
    return pd.DataFrame(rows, columns=columns)


def _interval(values: np.ndarray) -> tuple[float, float, float, int]:
    """Median over runs, the ends of its bootstrap interval over runs and their resamples, and the number of runs.

    Args:
        values: [run, 1 + resample], the first of all batches.
    """
    rng = np.random.default_rng(0)
    n_run, n_resample = values.shape
    drawn = recentred(values) if n_resample > 1 else values
    run = rng.integers(n_run, size=(DRAWS, n_run))
    resample = rng.integers(drawn.shape[1], size=run.shape)
    low, high = np.percentile(np.median(drawn[run, resample], axis=1), [2.5, 97.5])
    return float(np.median(values[:, 0])), float(low), float(high), n_run


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws a column per quantity and a row per score; the corner without a score holds the legend."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    grid = figure.subplots(len(SCORES), len(QUANTITIES), sharey="row", sharex=True)
    steps = numbers[["step", "until"]].to_numpy(float)
    spread = numbers.loc[numbers["score"] == "directionality_excess", ["low", "high", "value"]].abs().to_numpy(float)
    end = 1.05 * spread.max(initial=0.1)
    for column, (quantity, title) in enumerate(QUANTITIES.items()):
        for row, score in enumerate(SCORES):
            axes, rows = grid[row, column], numbers[numbers["score"] == score]
            if quantity == "beta_pairs" and score != "symmetry":
                _legend(axes, numbers)
                continue
            axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
            for role in ROLES:
                _line(axes, rows[(rows["role"] == role) & (rows["quantity"] == quantity)], role, "-")
                if quantity in CONTROLS:
                    control, style, _ = CONTROLS[quantity]
                    _line(axes, rows[(rows["role"] == role) & (rows["quantity"] == control)], role, style)
            if steps.size:
                axes.set_xlim(-0.04 * steps.max(), 1.04 * steps.max())
            else:
                say(axes, "no run")
            axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10], integer=True))
            if row == 0:
                axes.set_title(title, fontsize=7.5)
            if row == 1:
                axes.set_ylim(-end, end)
    grid[0, 0].set_ylabel(LABELS["symmetry"])
    grid[0, 0].tick_params(labelbottom=True)
    last = grid[1, -1]  # the left end of this row holds the legend
    last.yaxis.tick_right()
    last.yaxis.set_label_position("right")
    last.set_ylabel(LABELS["directionality_excess"])
    last.tick_params(labelright=True)
    last.spines["right"].set_visible(True)
    last.spines["left"].set_visible(False)
    figure.supxlabel("training step", fontsize=8)
    return figure


def _line(axes: Axes, rows: pd.DataFrame, role: str, style: str) -> None:
    if rows.empty:
        return
    realised = rows["quantity"] == "realised"
    x = rows["step"].astype(float) + realised * (rows["until"] - rows["step"]).astype(float) / 2
    colour = COLOURS[role]
    if style == "-":
        axes.fill_between(x, rows["low"], rows["high"], color=colour, alpha=0.18, linewidth=0)
    marker = MARKERS[role] if style == "-" else None
    axes.plot(x, rows["value"], linestyle=style, color=colour, marker=marker, markersize=2.4, linewidth=1.2)


def _legend(axes: Axes, numbers: pd.DataFrame) -> None:
    axes.axis("off")
    counts = numbers.groupby("role")["n_runs"].max()
    lines = {
        f"{role} ({counts[role]} runs)": Line2D([], [], color=COLOURS[role], marker=MARKERS[role], markersize=2.4)
        for role in ROLES
        if role in counts
    }
    lines |= {name: Line2D([], [], color="0.4", linestyle=style) for _, style, name in CONTROLS.values()}
    axes.legend(lines.values(), lines.keys(), loc="center", frameon=False, handlelength=1.4, fontsize=7, borderpad=0)
