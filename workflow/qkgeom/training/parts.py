"""A part of a micro-step's batch, for runs with more processes than micro-steps per step.

What is random in a batch (masks, spans) is drawn for the whole of it, and its loss is the mean over all of its targets:
so the whole is made and cut, and a part's loss weighed by its share of the targets. The parts together then give what the
whole gives, whatever their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkgeom.training.sequences import IGNORED

if TYPE_CHECKING:
    import torch

    from qkgeom.training.families.base import Data

WEIGHT = "loss_weight"


def part(data: Data, batch: int, indices: Sequence[int]) -> dict[str, torch.Tensor | float]:
    """The training examples of these indices, and the WEIGHT of their loss if they are not a whole batch.

    Args:
        data: makes the batches.
        batch: examples of a whole one.
        indices: neighbours, a whole batch or an equal part of one.
    """
    if len(indices) == batch:
        return data.train_batch(indices)
    first = indices[0] // batch * batch
    whole = data.train_batch(range(first, first + batch))
    parts = batch // len(indices)
    cut = {name: tensor.chunk(parts)[(indices[0] - first) // len(indices)] for name, tensor in whole.items()}
    targets, all_targets = (int((data.targets(each) != IGNORED).sum()) for each in (cut, whole))
    if not targets:  # the mean over none is NaN, also when it weighs nothing
        cut["labels"] = cut["labels"].new_zeros(cut["labels"].shape)
    return {**cut, WEIGHT: parts * targets / all_targets}
