"""Weights of 8-bit floats with one scale per block, as DeepSeek-V3's files store them, back to float32.

A weight's scales are the tensor of its name and `_scale_inv`; the weight is multiplied by them, whatever the name says.

Source: DeepSeek-V3's inference/kernel.py, `weight_dequant`; transformers/integrations/finegrained_fp8.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qkgeom.checkpoint import Checkpoint
from qkgeom.containers.base import FLOAT8
from qkgeom.errors import ModelFault

BLOCK = (128, 128)  # rows and columns under one scale, unless the config says otherwise


def scales_of(checkpoint: Checkpoint, name: str) -> str | None:
    """The name of the scales that the weight `name` needs, [row block, column block]; None if it needs none.

    Raises:
        ModelFault: it needs scales and there are none, or their number does not fit it.
    """
    container = checkpoint.where[name]
    if container.tensors[name].dtype not in FLOAT8:
        return None
    scales = f"{name}_scale_inv"
    if scales not in checkpoint.where:
        raise container.unreadable_dtype(name)
    found = checkpoint.where[scales].tensors[scales].shape
    rows, columns = container.tensors[name].shape
    block = block_of(checkpoint.config)
    expected = (-(-rows // block[0]), -(-columns // block[1]))
    if found != expected:
        raise ModelFault(
            "the scales of an 8-bit weight do not fit it",
            where=f"{checkpoint.uri}, tensor {scales}",
            found=list(found),
            expected=f"{list(expected)}: one for each block of {block[0]} x {block[1]} of {rows} x {columns}",
            fix="check quantization_config.weight_block_size in config.json",
        )
    return scales


def block_of(config: Mapping[str, object]) -> tuple[int, int]:
    """Rows and columns of a block, as the config's `quantization_config` says.

    Raises:
        ModelFault: it says something else.
    """
    block = (config.get("quantization_config") or {}).get("weight_block_size") or BLOCK
    if not (isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(size, int) and size > 0 for size in block)):
        raise ModelFault(
            "the config's weight_block_size is no size of a block",
            found=block,
            expected="two positive whole numbers",
            fix="correct quantization_config in config.json",
        )
    return tuple(block)


def dequantise(values: np.ndarray, scales: np.ndarray, block: tuple[int, int], first_row: int = 0) -> np.ndarray:
    """Rows of a weight as float32.

    Args:
        values: the rows as stored, [row, column].
        scales: of the whole weight, [row block, column block].
        block: rows and columns of a block.
        first_row: where in the weight the rows begin.
    """
    rows = np.arange(first_row, first_row + values.shape[0]) // block[0]
    columns = np.arange(values.shape[1]) // block[1]
    return values.astype(np.float32) * scales.astype(np.float32)[rows][:, columns]
