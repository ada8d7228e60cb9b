"""`qkgeom.score`: the scores of a model that is already in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qkgeom.checkpoint import Checkpoint
from qkgeom.containers.memory import from_state_dict
from qkgeom.engine import Engine
from qkgeom.errors import ModelFault, UsageError
from qkgeom.extraction import FINAL, layer_weights
from qkgeom.layouts import all_layouts, layout_for
from qkgeom.layouts.timm_base import Timm
from qkgeom.locate import find_layers
from qkgeom.scores import require_precision
from qkgeom.scoring import COLUMNS, choose_device, layer_rows, to_torch
from qkgeom.structure import COLUMNS as STRUCTURE
from qkgeom.untrained import COLUMNS as NULL
from qkgeom.untrained import rows_with_null

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PretrainedConfig


def score(
    module_or_state_dict: object,
    config: Mapping[str, object] | PretrainedConfig | None = None,
    *,
    part: str | None = None,
    heads: bool = False,
    structure: bool = False,
    null: bool = False,
    device: str = "auto",
    precision: str = "auto",
) -> pd.DataFrame:
    """Scores a model in memory, layer by layer; no file is read or written.

    Args:
        module_or_state_dict: a transformers or timm model, or a state dict (torch tensors or numpy arrays by name).
        config: what config.json says (`model_type`, head counts, sizes), as a mapping or a transformers config; a
            transformers model brings its own, a timm model's sizes are read from it.
        part: which stack, where the architecture has several (`encoder`, `decoder`, `vision`, `text`, ...).
        heads: add a row per head.
        structure: add the columns of `qkgeom.structure`.
        null: add each score's z against random weights, and `untrained_p` and `verdict` of all layers together
            (`untrained.COLUMNS`, docs/null.md).
        device: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`.
        precision: `auto` (float32 where that is accurate enough) or `float64`.

    Returns:
        One row per layer (and head) with the columns of scores.csv (`scoring.COLUMNS`).

    Raises:
        UsageError: not a model, no config, or an option with a value that is not allowed.
        ModelFault: no layout reads the architecture, or the tensors do not fit the layout or the config.
    """
    import pandas as pd

    require_precision(precision)
    state = module_or_state_dict
    if not isinstance(state, Mapping) and not hasattr(state, "state_dict"):
        raise UsageError(
            "this is neither a model nor a state dict",
            found=type(state).__name__,
            fix="for a path, a hub id or another URI: python -m qkgeom score",
        )
    if not isinstance(state, Mapping):
        config = config or _config_of(state)
        state = state.state_dict()
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if config is None:
        raise UsageError("a state dict alone does not say its architecture", fix="pass config=, e.g. model.config.to_dict()")
    if not isinstance(config, Mapping):
        raise UsageError(
            "this is no config",
            found=repr(config),
            expected="a mapping, or a transformers config",
            fix="pass config=, e.g. model.config.to_dict(), or json.load of config.json",
        )
    container = from_state_dict(state)
    checkpoint = Checkpoint("a model in memory", config, dict.fromkeys(container.tensors, container))
    layout = layout_for(config, part)
    chosen, engine = choose_device(device), Engine(heads, precision)
    rows, norms = [], {} if structure else None
    for layer in find_layers(checkpoint, layout):
        W_q, W_k, _ = layer_weights(checkpoint, layout, layer)
        rows += layer_rows("model", FINAL, layer.index, to_torch(W_q, chosen), to_torch(W_k, chosen), engine, norms)
    columns = [*COLUMNS, *(STRUCTURE if structure else ()), *(NULL if null else ())]
    return pd.DataFrame(rows_with_null(rows) if null else rows, columns=columns)


def _config_of(module: object) -> Mapping[str, object] | None:
    config = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        return config.to_dict()
    if type(module).__module__.startswith("timm."):
        for layout in all_layouts().values():
            if isinstance(layout, Timm) and (config := layout.config_of(module)):
                return config
        raise ModelFault("no layout reads this timm model", found=type(module).__name__, expected="a ViT or Swin of timm")
    return None
