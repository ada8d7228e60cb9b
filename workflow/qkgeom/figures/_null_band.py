"""The sand-coloured band of the figures: the central 95 % of one layer of random weights of the same shape (docs/null.md)."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from qkgeom import null
from qkgeom.rendering import Inputs

LOOK = {"color": "#f5eedb", "linewidth": 0}  # sand, told from the grey of quartiles


def columns(scores: Iterable[str]) -> list[str]:
    """The summary's columns of the bands of some scores."""
    return [f"{score}_null_{end}" for score in scores for end in ("low", "high")]


def bands_of(inputs: Inputs, models: pd.Series, scores: Iterable[str]) -> pd.DataFrame:
    """The bands of some models, by the shape of their first layer in scores.csv: model, then `columns`."""
    layers = inputs.read("scores", ["model", "head", *null.SIZES])
    layers = layers[layers["model"].isin(models) & (layers["head"] == "all")].drop_duplicates("model")
    return with_bands(layers, scores)[["model", *columns(scores)]]


def with_bands(rows: pd.DataFrame, scores: Iterable[str]) -> pd.DataFrame:
    """Rows of scores.csv with `columns`, each of its own shape."""
    ends = [end for score in scores for end in null.interval(score, *null.shapes(rows))]
    return rows.assign(**dict(zip(columns(scores), ends, strict=True)))


def draw_band(axes: Axes, numbers: pd.DataFrame, score: str) -> None:
    """A band across the axes for each width among the rows, narrower ones on top of wider ones."""
    bands = numbers[columns([score])].astype(float).dropna().drop_duplicates()
    for low, high in bands.itertuples(index=False):
        axes.axhspan(low, high, zorder=-1, alpha=len(bands) ** -0.5, **LOOK)


def legend_entry(of: str = "layers") -> dict[str, Patch]:
    """What a legend says of the band."""
    return {f"95 % of random {of}": Patch(**LOOK)}
