"""Two panels, symmetry and directionality against the number of parameters: the drawing of Fig. 2b, c and its kin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

from qkgeom.figures import _null_band
from qkgeom.figures._names import NEAR, find_places, write_names
from qkgeom.figures._style import COLOURS, HINT, MARKERS, WIDTH, say
from qkgeom.rendering import Inputs, short_number
from qkgeom.untrained import MARK, UNTRAINED, marked

# score -> name of the axis, what its negative and its positive end mean
PANELS = {
    "symmetry": ("symmetry", "skew-symmetric", "symmetric"),
    "directionality_excess": ("directionality (excess)", "columns dominate", "rows dominate"),
}
COLUMNS = ["model", "label", "role", "n_params", "n_layers", *(f"{s}_{q}" for s in PANELS for q in ("median", "q1", "q3"))]
COLUMNS += [*_null_band.columns(PANELS), "verdict"]
FEW_LAYERS = 3  # with fewer, quartiles over layers say little
ASIDE = 0.1  # closer neighbours on the axis (natural logarithm) are moved this far apart
MOST_ASIDE = 0.15  # but none farther from their middle, in the same unit
FEW_MODELS = 12  # up to so many are named in the figure
NULL_BARS = {"color": _null_band.LOOK["color"], "linewidth": 7, "zorder": -1}  # as wide as a marker and its rim


def scores_of(inputs: Inputs, group: str) -> pd.DataFrame:
    """One row per scored model of the group: its size, median and quartiles over layers of both scores, null bands, verdict."""
    return inputs.models(group, COLUMNS)


def draw(numbers: pd.DataFrame) -> Figure:
    """Draws the rows of `scores_of`."""
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, (score, (name, negative, positive)) in zip(panels, PANELS.items(), strict=True):
        axes.set(ylabel=name, ylim=(-1.05, 1.05), yticks=np.linspace(-1, 1, 5), xlabel="number of parameters")
        for height, meaning in ((0.25, f"← {negative}"), (0.75, f"{positive} →")):
            axes.text(1.03, height, meaning, transform=axes.transAxes, rotation=90, ha="left", va="center", **HINT)
        if numbers.empty:
            axes.set(xticks=[])
            say(axes, "no scored model")
        else:
            axes.axhline(0, color="0.6", linewidth=0.6, zorder=0)
            axes.vlines(_sizes(numbers), *numbers[_null_band.columns([score])].T.to_numpy(float), **NULL_BARS)
            _draw_points(axes, numbers, score)
            _scale_sizes(axes, numbers["n_params"])
    if not numbers.empty:
        _draw_legend(figure, numbers)
        if len(numbers) <= FEW_MODELS:
            _name_models(figure, panels, numbers)
        else:
            for axes, score in zip(panels, PANELS, strict=True):
                _mark_untrained(axes, numbers, score)
    return figure


def _name_models(figure: Figure, panels: Iterable[Axes], numbers: pd.DataFrame) -> None:
    """Names beside the points where there is room, else numbers beside the points and a key below."""
    colours = numbers["role"].map(COLOURS)
    x = _sizes(numbers)
    data = [
        (axes, np.column_stack([x, numbers[f"{score}_median"]]), numbers[[f"{score}_q1", f"{score}_q3"]].to_numpy(float))
        for axes, score in zip(panels, PANELS, strict=True)
    ]
    names = list(marked(numbers["label"], numbers["verdict"]))
    figure.draw_without_rendering()
    places = [find_places(axes, names, points, bars) for axes, points, bars in data]
    if not all(found and all(place.away <= NEAR for place in found) for found in places):
        numbered = [str(k) for k in range(1, len(names) + 1)]
        _write_key(figure, [f"{k}  {name}" for k, name in zip(numbered, names, strict=True)], colours)
        names = numbered
        figure.draw_without_rendering()
        places = [find_places(axes, names, points, bars) for axes, points, bars in data]
    figure.set_layout_engine("none")  # names have their places in axes that no longer move
    for (axes, points, _), found in zip(data, places, strict=True):
        write_names(axes, names, points, found or [], colours)


def _mark_untrained(axes: Axes, numbers: pd.DataFrame, score: str) -> None:
    """A dagger beside the points of untrained models, where models are not named."""
    untrained = (numbers["verdict"] == UNTRAINED).to_numpy(bool)
    rows = numbers[untrained]
    for x, y, role in zip(_sizes(numbers)[untrained], rows[f"{score}_median"], rows["role"], strict=True):
        axes.annotate(MARK, (x, y), (3, 0), textcoords="offset points", va="center", color=COLOURS[role], fontsize=7)


def _write_key(figure: Figure, key: Sequence[str], colours: Sequence[str]) -> None:
    """Lines of text in up to three columns below the panels; the figure grows by their height."""
    columns = max(1, min(3, 90 // max(map(len, key))))  # about 90 characters fit side by side
    look = {"labelcolor": list(colours), "handlelength": 0, "frameon": False}
    figure.legend([Line2D([], [], linestyle="none")] * len(key), key, loc="outside lower center", ncols=columns, **look)
    figure.set_figheight(figure.get_figheight() + 0.16 * -(-len(key) // columns))


def _draw_points(axes: Axes, numbers: pd.DataFrame, score: str) -> None:
    few = len(numbers) <= FEW_MODELS
    look = {"linestyle": "none", "markersize": 4.5 if few else 3.8, "elinewidth": 0.8}
    x = _sizes(numbers)
    median = numbers[f"{score}_median"]
    bars = np.stack([median - numbers[f"{score}_q1"], numbers[f"{score}_q3"] - median]).clip(0)
    for role, open_marker in _kinds(numbers):
        here = ((numbers["role"] == role) & ((numbers["n_layers"] < FEW_LAYERS) == open_marker)).to_numpy(bool)
        colour = COLOURS[role]
        # filled markers get a thin white rim, which keeps neighbours apart
        rim = {"mfc": "white", "mec": colour, "mew": 0.8} if open_marker else {"mfc": colour, "mec": "white", "mew": 0.3}
        marks = axes.errorbar(x[here], median[here], yerr=bars[:, here], fmt=MARKERS[role], color=colour, **rim, **look)
        for bar in marks.lines[2]:
            bar.set_alpha(0.9 if few else 0.45)


def _kinds(numbers: pd.DataFrame) -> list[tuple[str, bool]]:
    """The pairs of role and open marker that are there, decoders last."""
    there = set(zip(numbers["role"], numbers["n_layers"] < FEW_LAYERS, strict=True))
    return [(role, few) for few in (False, True) for role in COLOURS if (role, few) in there]


def _sizes(numbers: pd.DataFrame) -> np.ndarray:
    """Positions on the axis; a model of unknown size stands one decade left of the others' first.

    Models of nearly the same size, such as the two towers of one model, stand side by side.
    """
    known = numbers["n_params"].dropna().astype(float)
    first = 10 ** np.floor(np.log10(known.min())) if len(known) else 1.0
    sizes = numbers["n_params"].astype(float).fillna(first / 10).to_numpy()
    logs = np.log(sizes)
    order = np.argsort(logs, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(logs[order]) > ASIDE) + 1):
        places = np.linspace(-1, 1, len(alike)) * min(0.5 * (len(alike) - 1) * ASIDE, MOST_ASIDE)
        logs[alike] = logs[alike].mean() + places
    return sizes * np.exp(logs - np.log(sizes))


def _scale_sizes(axes: Axes, n_params: pd.Series) -> None:
    known = np.log10(n_params.dropna().astype(float))
    first, last = (int(np.floor(known.min())), int(np.floor(known.max())) + 1) if len(known) else (0, 0)
    ticks = {10.0**power: short_number(10**power) for power in range(first, last + 1) if len(known)}
    unknown = {10.0 ** (first - 1): "n/a"} if n_params.isna().any() else {}
    axes.set_xscale("log")
    axes.set_xticks([*unknown, *ticks], [*unknown.values(), *ticks.values()])
    axes.set_xlim(10 ** (first - (1.4 if unknown else 0.1)), 10 ** (last + 0.1))
    axes.tick_params(axis="x", which="minor", bottom=bool(ticks) and not unknown)


def _draw_legend(figure: Figure, numbers: pd.DataFrame) -> None:
    """Roles with filled markers, then, if there are any, the open markers of models of few layers."""
    kinds = _kinds(numbers)

    def mark(role: str, face: str) -> Line2D:
        look = {"linestyle": "none", "marker": MARKERS[role], "markersize": 4.5, "color": COLOURS[role]}
        return Line2D([], [], markerfacecolor=face, **look)

    entries = {role: (mark(role, COLOURS[role]),) for role in COLOURS if role in set(numbers["role"])}
    if opened := tuple(mark(role, "white") for role, few in kinds if few):
        entries[f"fewer than {FEW_LAYERS} layers"] = opened
    entries |= _null_band.legend_entry()
    look = {"handler_map": {tuple: HandlerTuple(None, pad=0.4)}, "handlelength": 1.8, "handletextpad": 0.5, "frameon": False}
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=len(entries), **look)
