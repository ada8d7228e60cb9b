"""W_q and W_k of every layer of a model in memory, and likewise their gradients, read by the layout of its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from qkgeom.checkpoint import Checkpoint
from qkgeom.containers.memory import from_state_dict
from qkgeom.errors import ModelFault, UsageError
from qkgeom.extraction import layer_weights
from qkgeom.layouts import layout_for
from qkgeom.locate import find_layers

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig


def factors(state: Mapping[str, Tensor], config: PretrainedConfig) -> list[tuple[Tensor, Tensor]]:
    """W_q [d_model, n_head, d_head] and W_k [d_model, n_kv_head, d_head] of every layer.

    Args:
        state: a model's weights by name, or anything of their shapes, such as their gradients.
        config: of the model.

    Raises:
        ModelFault: no layout reads the architecture, it has several stacks, or the tensors do not fit it.
    """
    config = config.to_dict()
    container = from_state_dict(state)
    checkpoint = Checkpoint("a model in memory", config, dict.fromkeys(container.tensors, container))
    try:
        layout = layout_for(config)
    except UsageError as error:
        raise ModelFault(
            "the updates of a model of several stacks are not measured",
            where=config["model_type"],
            found=error.what,
            expected="one stack of self-attention",
            fix="leave its runs out of the preset's `updates: runs` (docs/theory.md)",
        ) from error
    read = (layer_weights(checkpoint, layout, layer)[:2] for layer in find_layers(checkpoint, layout))
    return [tuple(torch.from_numpy(each.copy()) for each in pair) for pair in read]
