"""What the figures share: size, fonts, and the colour, marker and map of each role."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

WIDTH = 5.5  # inches, the width of the paper's text
COLOURS = {"encoder": "navy", "decoder": "purple"}
MARKERS = {"encoder": "o", "decoder": "s"}
NEGATIVE = "#b35900"  # burnt orange, told from navy and from purple by colour-blind readers too
MAPS = {role: LinearSegmentedColormap.from_list(role, [NEGATIVE, "white", colour]) for role, colour in COLOURS.items()}
RC = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # fonts as text that a journal accepts and an editor can change
}
HINT = {"fontsize": 7, "color": "0.4"}  # what helps to read an axis


def say(axes: Axes, text: str) -> None:
    """Writes `text` in the middle of otherwise empty axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.4")
