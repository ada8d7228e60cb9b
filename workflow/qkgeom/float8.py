"""Weights of 8-bit floats with one scale per block, as DeepSeek-V3's files store them, back to float32.

A weight's scales are the tensor of its name and `_scale_inv`; the weight is multiplied by them, whatever the name says.

Source: DeepSeek-V3's inference/kernel.py, `weight_dequant`; transformers/integrations/finegrained_fp8.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qkgeom.checkpoint import Checkpoint
from qkgeom.containers.base import FLOAT8, Reading
from qkgeom.errors import ModelFault

BLOCK = (128, 128)  # rows and columns under one scale, unless the config says otherwise


def is_float8(array: np.ndarray) -> bool:
    """Whether an array as read still needs its scales."""
    return array.dtype in FLOAT8.values()


def read_scales(checkpoint: Checkpoint, name: str) -> Reading:
    """Reads the scales of the weight `name`, [row block, column block].

    Raises:
        ModelFault: there are none, or their number does not fit the weight.
    """
    container = checkpoint.where[name]
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
            where=f"{checkpoint.where[scales].path}, tensor {scales}",
            found=list(found),
            expected=f"{list(expected)}: one for each block of {block[0]} x {block[1]} of {rows} x {columns}",
            fix="check quantization_config.weight_block_size in config.json",
        )
    return checkpoint.where[scales].read(scales)


def block_of(config: Mapping[str, object]) -> tuple[int, int]:
    """Rows and columns of a block, as the config's `quantization_config` says."""
    quantisation = config.get("quantization_config") or {}
    rows, columns = quantisation.get("weight_block_size") or BLOCK
    return rows, columns


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
