"""From artifacts to rows of scores.csv."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom import artifacts
from qkgeom.device import choose_device
from qkgeom.dropping import weights_of
from qkgeom.engine import Engine
from qkgeom.errors import ModelFault, QkgeomError
from qkgeom.files import write_text
from qkgeom.layer_file import stream_layers
from qkgeom.structure import NORMS, Structure, norm_arrays, write_norms

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
    precision: str = "auto",
    structure: bool = False,
    in_place: bool = False,
) -> list[Row]:
    """Scores every snapshot and layer of an artifact, two layers in memory at a time.

    Weights that were dropped are fetched again, a snapshot at a time, and dropped again.

    Args:
        folder: the artifact.
        heads: add a row per head.
        device: see `choose_device`.
        progress: wraps the layers of a snapshot to show how far the work is.
        precision: `auto` or `float64`, see `score_layer`.
        structure: add the columns of `qkgeom.structure`.
        in_place: the rows are for the artifact's own scores.csv, so that its norms are written too; without `structure`
            those of an earlier run are removed.

    Raises:
        ModelFault: a weights file is cut short or holds no layer's weights, or was dropped and cannot be fetched again
            as it was.
        TransientFault: it cannot be read, or was dropped and cannot be fetched now.
    """
    manifest = artifacts.read_manifest(folder)
    chosen = choose_device(device)
    logger.info("scoring %s on %s", manifest["model"], chosen)
    engine = Engine(heads, precision, alone=True)
    rows, norms = [], {} if structure else None
    for snapshot, part in manifest["snapshots"].items():
        layers = [layer["layer"] for layer in part["layers"]]
        with (
            weights_of(folder, manifest, snapshot) as place,
            closing(stream_layers(place / part["file"], layers, chosen)) as weights,
        ):
            for layer, (W_q, W_k) in zip(progress(layers), weights, strict=True):
                rows += layer_rows(manifest["model"], snapshot, layer, W_q, W_k, engine, norms)
    if in_place and norms is None:
        (folder / NORMS).unlink(missing_ok=True)
    elif in_place:
        write_norms(folder, norms)
    return rows


def layer_rows(
    model: str,
    snapshot: str,
    layer: int,
    W_q: torch.Tensor,
    W_k: torch.Tensor,
    engine: Engine,
    norms: dict[str, np.ndarray] | None = None,
) -> list[Row]:
    """The rows of one layer: `all`, then its heads if asked.

    Where `norms` is given, the rows have the columns of `qkgeom.structure`, and the layer's norms are put into it.

    Raises:
        ModelFault: the shapes do not belong to one layer.
    """
    try:
        scores = engine.score(W_q, W_k)
    except QkgeomError as error:
        raise ModelFault(f"{model} {snapshot}, layer {layer}: {error}") from error
    d_model, n_head, d_head = W_q.shape
    sizes = {"d_model": d_model, "n_head": n_head, "n_kv_head": W_k.shape[1], "d_head": d_head}
    rows = {
        head: {"model": model, "snapshot": snapshot, "layer": layer, "head": head, **sizes, **vars(score)}
        for head, score in scores.items()
    }
    if norms is not None:
        for head, (structure, of_head) in engine.structure(W_q, W_k).items():
            rows[head] |= vars(structure if scores[head].symmetry is not None else Structure())
            if head == "all":
                norms |= norm_arrays(snapshot, layer, of_head)
    return list(rows.values())


def to_torch(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A numpy array, bfloat16 included, on a torch device."""
    import numpy as np
    import torch

    if array.dtype.name == "bfloat16":  # numpy has no such type of its own, and torch does not know ml_dtypes
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16).to(device)
    return torch.from_numpy(np.array(array)).to(device)


def cells_of(rows: Iterable[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of scores.csv: 9 significant digits, empty cells for missing scores."""
    rows = list(rows)
    columns = list(dict.fromkeys([*COLUMNS, *(rows[0] if rows else ())]))  # optional ones come after
    return columns, [[_cell(row.get(column)) for column in columns] for row in rows]


def scores_csv(rows: Iterable[Row]) -> str:
    """The rows as the text of scores.csv."""
    text = io.StringIO()
    header, lines = cells_of(rows)
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    return text.getvalue()


def write_scores(path: Path, rows: Iterable[Row]) -> None:
    """Writes scores.csv whole."""
    write_text(path, scores_csv(rows))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return format(value, ".9g") if isinstance(value, float) else str(value)
