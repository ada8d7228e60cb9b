"""The loss curves of a run, training and held-out."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.files import write_text
from qkgeom.training import ranks

if TYPE_CHECKING:
    import torch

HELDOUT = "heldout_loss"  # key of a held-out loss in the Trainer's log


def mean_loss(model: torch.nn.Module, batches: Sequence[dict[str, torch.Tensor]]) -> float | None:
    """The mean of a model's loss over batches, shared by the processes, or None if it is not finite."""
    import torch

    model.eval()
    own = range(ranks.rank(), len(batches), ranks.count())
    with torch.no_grad():
        losses = {i: float(model(**{key: value.to(model.device) for key, value in batches[i].items()}).loss) for i in own}
    losses = {i: loss for part in ranks.gathered(losses) for i, loss in part.items()}
    mean = sum(losses[i] for i in range(len(batches))) / len(batches)  # in the order of one process
    return mean if math.isfinite(mean) else None


def write_losses(run: Path, history: Sequence[Mapping]) -> None:
    """Writes `losses.csv`.

    Args:
        run: folder of the run, named like the model.
        history: the Trainer's log, with entries `loss` (training) or `HELDOUT`, and `step`.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "step", "split", "loss"])
    for entry in history:
        for key, split in (("loss", "train"), (HELDOUT, "heldout")):
            if key in entry and entry[key] is not None and math.isfinite(entry[key]):
                writer.writerow([run.name, entry["step"], split, format(entry[key], ".9g")])
    write_text(run / "losses.csv", text.getvalue())
