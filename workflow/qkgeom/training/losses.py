"""The loss curve of a run and its held-out loss."""

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
    from transformers import PreTrainedModel


def mean_loss(model: PreTrainedModel, batches: Sequence[dict[str, torch.Tensor]]) -> float | None:
    """The mean of a model's loss over batches, or None if it is not finite."""
    import torch

    model.eval()
    with torch.no_grad():
        losses = [float(model(**{key: value.to(model.device) for key, value in batch.items()}).loss) for batch in batches]
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else None


def write_losses(run: Path, history: Sequence[Mapping], last: int, heldout_loss: float | None) -> None:
    """Writes `losses.csv`.

    Args:
        run: folder of the run, named like the model.
        history: the Trainer's log.
        last: the step after which the held-out loss was measured.
        heldout_loss: None if the run diverged.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "step", "split", "loss"])
    for entry in history:
        if "loss" in entry and math.isfinite(entry["loss"]):
            writer.writerow([run.name, entry["step"], "train", format(entry["loss"], ".9g")])
    if heldout_loss is not None:
        writer.writerow([run.name, last, "heldout", format(heldout_loss, ".9g")])
    write_text(run / "losses.csv", text.getvalue())
