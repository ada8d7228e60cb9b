"""What the GPU's benchmarks say where there is none."""

from __future__ import annotations

import torch

from qkgeom.errors import UsageError


def require_gpu(memory: int, tiny: bool) -> None:
    """Makes sure that there is a GPU, but for tiny sizes.

    Args:
        memory: GB that the benchmark takes on it.
        tiny: whether sizes are tiny.

    Raises:
        UsageError: there is none.
    """
    if not tiny and not torch.cuda.is_available():
        raise UsageError(
            "this benchmark needs a CUDA GPU, and there is none",
            found=f"torch {torch.__version__} without CUDA device",
            fix=f"run it on a machine with one ({memory} GB of memory), or try it anywhere with --tiny",
        )
