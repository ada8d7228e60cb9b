"""From artifacts to rows of scores.csv."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom import artifacts
from qkgeom.device import choose_device
from qkgeom.dropping import weights_of
from qkgeom.files import write_text
from qkgeom.scores import score_layer

if TYPE_CHECKING:
    import numpy as np
    import torch

logger = logging.getLogger(__name__)
COLUMNS = (
    *("model", "snapshot", "layer", "head", "d_model", "n_head", "n_kv_head", "d_head"),
    *("symmetry", "directionality", "directionality_excess", "fro_norm", "n_row_outliers", "n_col_outliers", "status"),
)
SCORES = ("symmetry", "directionality", "directionality_excess")
Row = dict[str, object]


def score_artifact(
    folder: Path,
    heads: bool = False,
    device: str = "auto",
    progress: Callable[[Sequence], Iterator] = iter,
) -> list[Row]:
    """Scores every snapshot and layer of an artifact, one layer in memory at a time.

    Weights that were dropped are fetched again, a snapshot at a time, and dropped again.

    Args:
        folder: the artifact.
        heads: add a row per head.
        device: see `choose_device`.
        progress: wraps the layers of a snapshot to show how far the work is.

    Raises:
        ModelFault: a weights file is cut short, or was dropped and cannot be fetched again as it was.
        TransientFault: it was dropped and cannot be fetched now.
    """
    manifest = artifacts.read_manifest(folder)
    chosen = choose_device(device)
    logger.info("scoring on %s", chosen)
    rows = []
    for snapshot, part in manifest["snapshots"].items():
        with weights_of(folder, manifest, snapshot) as place:
            for layer in progress(part["layers"]):
                W_q, W_k = artifacts.read_layer(place, part["file"], layer["layer"])
                weights = to_torch(W_q, chosen), to_torch(W_k, chosen)
                rows += layer_rows(manifest["model"], snapshot, layer["layer"], *weights, heads)
    return rows


def layer_rows(model: str, snapshot: str, layer: int, W_q: torch.Tensor, W_k: torch.Tensor, heads: bool) -> list[Row]:
    """The rows of one layer: `all`, then its heads if asked."""
    d_model, n_head, d_head = W_q.shape
    sizes = {"d_model": d_model, "n_head": n_head, "n_kv_head": W_k.shape[1], "d_head": d_head}
    return [
        {"model": model, "snapshot": snapshot, "layer": layer, "head": head, **sizes, **vars(score)}
        for head, score in score_layer(W_q, W_k, heads).items()
    ]


def to_torch(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A numpy array, bfloat16 included, on a torch device."""
    import numpy as np
    import torch

    if array.dtype.name == "bfloat16":  # numpy has no such type of its own, and torch does not know ml_dtypes
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16).to(device)
    return torch.from_numpy(np.array(array)).to(device)


def scores_csv(rows: Iterable[Row]) -> str:
    """The rows as the text of scores.csv: 9 significant digits, empty cells for missing scores."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def write_scores(path: Path, rows: Iterable[Row]) -> None:
    """Writes scores.csv whole."""
    write_text(path, scores_csv(rows))


def _cell(value: object) -> object:
    return format(value, ".9g") if isinstance(value, float) else value
