"""The processes that train one run together, mostly one: which one this is, and what they tell each other.

torchrun's variables say it: RANK of WORLD_SIZE processes. The first alone writes files. A single process imports nothing
of torch.distributed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from qkgeom.errors import TransientFault

T = TypeVar("T")  # PEP 695 needs Python 3.12
TIMEOUT = timedelta(minutes=30)  # of one exchange; a process that dies is noticed by the launcher at once
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def count() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def count_here() -> int:
    """How many of them run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


@contextmanager
def connected(device: str) -> Iterator[None]:
    """Connects the processes while the block lasts: by NCCL where they compute on GPUs, else by gloo.

    Args:
        device: `cpu`, or `cuda`, of which each process takes the one with its local rank.

    Raises:
        TransientFault: another process is gone.
    """
    if count() == 1:
        yield
        return
    import torch
    from torch import distributed

    if sys.platform == "linux":  # a process whose launcher is gone must not write beside the next attempt
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "by peer" not in str(error):  # gloo's errors have no class
            raise
        found = str(error).splitlines()[0]
        raise TransientFault("another process of this training is gone", where=f"rank {rank()}", found=found) from None
    distributed.destroy_process_group()  # not after an error: the others would be waited for


def gathered(value: T) -> list[T]:
    """Every process's value, by rank; all have to call it."""
    if count() == 1:
        return [value]
    from torch import distributed

    values: list[T] = [value] * count()
    distributed.all_gather_object(values, value)
    return values


def of_first(make: Callable[[], T]) -> T:
    """What the first process makes, for all of them."""
    return gathered(make() if is_first() else None)[0]
