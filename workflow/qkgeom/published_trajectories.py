"""The user's copy of the authors' training trajectories: scores of each layer of the paper's custom models over training.

A csv with the columns size (`4-layer`, `12-layer`), objective (`encoder`, `decoder`), dataset (`wikipedia`,
`red_pajama`, `jigsaw`), step, layer, symmetry and directionality, where directionality is the excess variant and negative
means that columns dominate, as here (docs/published.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

FILE = "training_trajectories.csv"
OBJECTIVES = ("encoder", "decoder")  # in its column of this name: our roles
FIX = "see docs/published.md for the format, or leave published_trajectories empty"
COLUMNS = ("size", "objective", "dataset", "step", "layer", "symmetry", "directionality")


def require_file(folder: Path) -> Path:
    """The file of trajectories in the user's folder.

    Raises:
        UsageError: there is none.
    """
    if (folder / FILE).is_file():
        return folder / FILE
    there = sorted(each.name for each in folder.iterdir())[:5] if folder.is_dir() else None
    found = "no such folder" if there is None else f"a folder with {', '.join(there) or 'nothing in it'}"
    what = f"there is no {FILE} in the folder of published trajectories"
    raise UsageError(what, where=f"{folder} (published_trajectories)", found=found, expected=FILE, fix=FIX)


def read_trajectories(folder: Path, corpus: str, depth: int) -> pd.DataFrame:
    """The published trajectories of one corpus and depth: role, step, layer, symmetry, directionality_excess.

    Args:
        folder: that holds `FILE`.
        corpus: of the paper.
        depth: number of layers.

    Returns:
        No rows where the authors have none of this kind.

    Raises:
        UsageError: the folder holds no such file, it is not of this format, or a score is none.
    """
    import pandas as pd

    path = require_file(folder)
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        expected = f"a csv with the columns {', '.join(COLUMNS)}"
        raise UsageError(
            "published trajectories cannot be read", where=path, found=error, expected=expected, fix=FIX
        ) from error
    if missing := [name for name in COLUMNS if name not in table]:
        what = f"published trajectories lack the columns {', '.join(missing)}"
        raise UsageError(what, where=path, found=", ".join(table), expected=", ".join(COLUMNS), fix=FIX)
    if strange := set(table["objective"]) - set(OBJECTIVES):
        raise UsageError(
            "published trajectories have an unknown objective", where=path, found=strange, expected=OBJECTIVES, fix=FIX
        )
    scores = table[["symmetry", "directionality"]].apply(pd.to_numeric, errors="coerce")
    if len(wrong := table[~(scores.abs() <= 1).all(axis=1)]):
        found = f"line {wrong.index[0] + 2}: {wrong.iloc[0][['symmetry', 'directionality']].to_dict()}"
        raise UsageError("a published score is not in [-1, 1]", where=path, found=found, fix=FIX)
    rows = table[(table["dataset"] == corpus) & (table["size"] == f"{depth}-layer")]
    rows = rows.rename(columns={"objective": "role", "directionality": "directionality_excess"})
    return rows[["role", "step", "layer", "symmetry", "directionality_excess"]].reset_index(drop=True)
