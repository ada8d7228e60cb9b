"""Names beside points: none over another, over a marker or over a bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

SIZE = 7  # points; all lengths below are points too
GAP = 3.0  # between a name and what it must not touch
STEP = 2.0  # between places that are tried
NEAR = 8.0  # a name farther than this from its marker and bar would be read as another's


@dataclass(frozen=True)
class Place:
    """Where a name goes: its lower left corner relative to its point, and how far it is from marker and bar."""

    offset: np.ndarray
    away: float


def find_places(
    axes: Axes, names: Sequence[str], points: np.ndarray, bars: np.ndarray, nameless: np.ndarray | None = None
) -> list[Place] | None:
    """The nearest free place for each name, or None if there is none for one of them.

    Args:
        axes: drawn and laid out: places are sought in the axes as they are now.
        names: one per point.
        points: [n, 2] in data coordinates.
        bars: [n, 2] lower and upper ends of the points' vertical bars.
        nameless: [m, 2] further points, whose markers are not written over either.
    """
    scale = 72 / axes.figure.dpi
    inside = np.array(axes.get_window_extent().extents) * scale
    where = axes.transData.transform(points) * scale
    low, high = (axes.transData.transform(np.column_stack([points[:, 0], ends]))[:, 1] * scale for ends in bars.T)
    marks = np.column_stack([where - 3, where + 3])
    spans = np.column_stack([where[:, 0], np.minimum(low, where[:, 1] - 3), where[:, 0], np.maximum(high, where[:, 1] + 3)])
    zero = axes.transData.transform((points[0, 0], 0))[1] * scale
    taken = [*marks, *spans]
    if nameless is not None and len(nameless):
        middles = np.unique(np.round(axes.transData.transform(nameless) * scale / STEP), axis=0) * STEP
        taken += list(np.column_stack([middles - 3, middles + 3]))
    places = []
    for k, name in enumerate(names):
        size = _size(axes, name) * scale
        grid = [np.arange(inside[i] + GAP, inside[i + 2] - size[i], STEP) for i in (0, 1)]
        corners = np.stack(np.meshgrid(*grid), axis=-1).reshape(-1, 2)
        boxes = np.concatenate([corners, corners + size], axis=1)
        boxes = boxes[~(_distance(boxes, np.array(taken)) < GAP).any(1)]
        if not len(boxes):
            return None
        distance = _distance(boxes, spans)
        away = distance[:, k]
        others = np.delete(distance, k, axis=1).min(1, initial=np.inf)
        middle = np.abs(boxes[:, [1, 3]].mean(1) - where[k, 1])  # best beside the marker, to its right, and far from others
        cost = away + 0.1 * middle + (boxes[:, 0] < where[k, 0]) + 0.5 * np.clip(2 * NEAR - others, 0, None)
        best = np.argmin(cost + 4 * ((boxes[:, 1] < zero) & (boxes[:, 3] > zero)))
        places.append(Place(boxes[best, :2] - where[k], float(away[best])))
        taken.append(boxes[best])
    return places


def write_names(axes: Axes, names: Sequence[str], points: np.ndarray, places: Sequence[Place], colours: Sequence[str]) -> None:
    """Writes each name at its place."""
    look = {"textcoords": "offset points", "fontsize": SIZE, "in_layout": False, "zorder": 1}
    for name, point, place, colour in zip(names, points, places, colours, strict=True):
        axes.annotate(name, point, place.offset, color=colour, **look)


def _size(axes: Axes, name: str) -> np.ndarray:
    text = axes.text(0, 0, name, fontsize=SIZE, transform=None)
    size = np.array(text.get_window_extent().size)
    text.remove()
    return size


def _distance(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[n, m] distances between boxes [n, 4] and others [m, 4], 0 where they overlap."""
    below = others[None, :, :2] - boxes[:, None, 2:]
    above = boxes[:, None, :2] - others[None, :, 2:]
    return np.linalg.norm(np.maximum(0, np.maximum(below, above)), axis=2)
