"""The paper's schematic of a weight update, from real numbers: rank-1 terms of one batch, their sum, its parts and norms."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkgeom.figures._style import COLOURS, MAPS, NEGATIVE, WIDTH, say
from qkgeom.measured_updates import PLAIN, measured_runs
from qkgeom.rendering import ROLES, Inputs

PAPER = "Fig. 1"
CAPTION = (
    "The implicit update of a query-key matrix, from one training batch of an encoder (top) and of a decoder (bottom), at "
    "the middle one of the measured steps, in the middle layer (of a run whose middle layer is not its last, if there is "
    "one: in the last layer of an encoder only positions with a loss have terms). Left: the rank-1 terms with the largest "
    "gradient at their attention logit, each an outer product of two input rows: that of the token at the query position "
    "(before the arrow), which grows rows, and that of the token at the key position (after it), which grows columns. Then "
    "the sum of all terms of the batch, its symmetric and its skew-symmetric part; the first 24 rows and columns are shown. "
    "Blue or purple is positive, orange negative; the sum and its parts share one scale (99th percentile of the sum), each "
    "term has its own. Right: the norms of all rows (dashed) and columns of the sum, largest first, over their mean. "
    "Directionality (excess) is positive where rows dominate and negative where columns do. This is one batch of one run: a "
    "decoder's can be positive here, against the prediction, and whether the implicit updates of decoders have dominant "
    "columns is weighed over all runs and batches in the table claims."
)
GROUP = "training, controls"
NEEDS = ("runs", "updates")
TITLES = {"sum": "sum of {terms:,.0f}", "symmetric": "symmetric", "skew": "skew"}
LONGEST = 8  # characters of a token
COLUMNS = ["model", "step", "layer", "panel", "label", "row", "col", "value"]


def numbers(inputs: Inputs) -> pd.DataFrame:
    """The terms of one run per role: the first measured one, if possible whose shown layer is not its last.

    Returns:
        `role`, then `COLUMNS` (`qkgeom.theory.tables.term_rows`).
    """
    runs = measured_runs(inputs)
    terms = inputs.measured("terms", COLUMNS).astype({"row": "Int64", "col": "Int64"})
    runs = runs[runs["objective"].isin(PLAIN) & runs["model"].isin(terms["model"])]
    of_last = terms.groupby("model")["layer"].max().reindex(runs["model"]).to_numpy() + 1 >= runs["depth"].to_numpy(int)
    first = runs.iloc[np.argsort(of_last, kind="stable")].drop_duplicates("role").set_index("model")["role"]
    shown = terms[terms["model"].isin(first.index)]
    return shown.assign(role=shown["model"].map(first))[["role", *COLUMNS]].reset_index(drop=True)


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws a row per role: terms, sum, parts, norms; between two of them the sign that joins them has a column."""
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    figure.get_layout_engine().set(rect=(0, 0, 0.97, 1))  # it does not count by how much the last label is wider than its axes
    parts = dict(tuple(numbers.groupby("role")))
    terms = [name for name in numbers["panel"].unique() if name.startswith("term ")]
    names, signs = [*terms, *TITLES], [*["+"] * (len(terms) - 1), "+ … =", "=", "+"]
    widths = [width for sign in signs for width in (1, 0.42 if "…" in sign else 0.2)]
    grid = figure.subplots(len(ROLES), len(widths) + 2, width_ratios=[*widths, 1, 1.1])
    for row, role in zip(grid, ROLES, strict=True):
        if role in parts:
            _draw_role(row, parts[role], role, names, signs)
        else:
            for axes in row:
                axes.axis("off")
            say(row[len(row) // 2], f"no {role} with measured updates")
    drawn = [row[-1] for row, role in zip(grid, ROLES, strict=True) if role in parts]
    top = max((axes.get_ylim()[1] for axes in drawn), default=1.0)
    for axes in drawn:
        axes.set_ylim(0, top)
    return figure


def _draw_role(grid: np.ndarray, rows: pd.DataFrame, role: str, names: list[str], signs: list[str]) -> None:
    told = rows[rows["panel"] == "told"].set_index("label")["value"]
    panels = {name: rows[rows["panel"] == name] for name in names}
    of_sum = _end(panels["sum"])
    for axes, (name, panel) in zip(grid[:-1:2], panels.items(), strict=True):
        _draw_matrix(axes, panel, role, of_sum if name in TITLES else _end(panel))
        label = panel["label"].iloc[0] if len(panel) else ""
        title = TITLES[name].format(**told) if name in TITLES else _short(label)
        axes.set_title(title, fontsize=7, pad=3, linespacing=1)
    for axes, sign in zip(grid[1:-1:2], signs, strict=True):
        axes.axis("off")
        text = axes.text(0.5, 0.5, sign, transform=axes.transAxes, ha="center", va="center", fontsize=7)
        text.set_in_layout(False)  # it stands in the gap between two panels
    first = rows.iloc[0]
    grid[0].set_ylabel(f"{role}\nstep {first['step']}, layer {first['layer']}", fontsize=7, color=COLOURS[role])
    grid[2 * names.index("symmetric")].set_xlabel(f"symmetry {told['symmetry']:.2f}".replace("-", "−"), fontsize=7)
    _draw_norms(grid[-1], rows, role, told["directionality_excess"])


def _short(label: str) -> str:
    """Query and key token of a term, each short enough that it stands over its own panel."""
    tokens = [token if len(token) <= LONGEST else token[: LONGEST - 1] + "…" for token in label.split(" ← ")]
    return "\n← ".join(tokens).replace("$", r"\$")


def _end(panel: pd.DataFrame) -> float:
    """The end of a colour scale."""
    return np.percentile(panel["value"].abs(), 99) or 1.0 if len(panel) else 1.0


def _draw_matrix(axes: Axes, panel: pd.DataFrame, role: str, end: float) -> None:
    axes.set(xticks=[], yticks=[])
    axes.spines[["top", "right"]].set_visible(True)
    if len(panel):
        values = panel.pivot(index="row", columns="col", values="value").to_numpy(float)
        axes.imshow(values, cmap=MAPS[role], vmin=-end, vmax=end, interpolation="nearest")


def _draw_norms(axes: Axes, rows: pd.DataFrame, role: str, excess: float) -> None:
    for panel, colour, style, height in (("row norms", NEGATIVE, "--", 0.98), ("column norms", COLOURS[role], "-", 0.82)):
        norms = np.sort(rows.loc[rows["panel"] == panel, "value"].to_numpy(float))[::-1]
        axes.plot(norms / (norms.mean() or 1.0), style, color=colour, linewidth=1.0)
        name = panel.removesuffix(" norms") + "s"
        axes.text(1, height, name, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=colour)
    axes.set(xticks=[], ylim=(0, None), box_aspect=1)
    axes.tick_params(labelsize=7, pad=1)
    axes.set_title("norms / mean", fontsize=7, pad=3)
    axes.set_xlabel(f"directionality\n(excess) {excess:.2f}".replace("-", "−"), fontsize=7)
