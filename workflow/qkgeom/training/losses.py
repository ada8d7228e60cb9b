"""The loss curves of a run, training and held-out."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.files import write_text

if TYPE_CHECKING:
    import torch

HELDOUT = "heldout_loss"  # key of a held-out loss in the Trainer's log


def mean_loss(model: torch.nn.Module, batches: Sequence[dict[str, torch.Tensor]]) -> float | None:
    """The mean of a model's loss over batches, or None if it is not finite."""
    import torch

    model.eval()
    with torch.no_grad():
        losses = [float(model(**{key: value.to(model.device) for key, value in batch.items()}).loss) for batch in batches]
    mean = sum(losses) / len(losses)
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
