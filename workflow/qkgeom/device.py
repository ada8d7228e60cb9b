"""Where torch computes."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from qkgeom.errors import UsageError
from qkgeom.files import locked

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"
_held: list[IO[bytes]] = []  # the locks of this process's GPUs, open until the process ends


def choose_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda`, `cuda:N` or `mps`; `auto` is CUDA, else MPS, else the CPU.

    Raises:
        UsageError: no such device here.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if count else "mps" if mps else "cpu"
    here = ["cpu", *["mps"] * mps, *["cuda"] * bool(count), *(f"cuda:{index}" for index in range(count))]
    if name not in here:
        raise UsageError(
            "there is no such device",
            found=name,
            expected=f"auto, cpu, cuda[:N] or mps; here are {', '.join(here)}",
            fix="set `device: auto` in config.yaml, or --device auto",
        )
    return torch.device(name)


def visible_gpus() -> list[str]:
    """The NVIDIA GPUs that CUDA will see, as CUDA_VISIBLE_DEVICES would name them; asks neither torch nor the driver."""
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return [str(index) for index, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
    return list(takewhile(lambda gpu: gpu not in ("", "-1"), visible.replace(" ", "").split(",")))


def gpu_slots(device: str) -> int:
    """How many jobs with this `device` a machine runs at a time, one per GPU; 0 where they use none."""
    here = len(visible_gpus())
    if device.startswith("cuda"):
        return 1 if ":" in device else max(here, 1)
    return here if device == "auto" else 0


def take_free_gpus(device: str, count: int = 1) -> None:
    """Leaves this process so many of the GPUs: the first that no other process of ours has taken, until it ends.

    A scheduler that has chosen already (CUDA_VISIBLE_DEVICES names no more) is left alone, and so is `cuda:N`. To be
    called before torch uses CUDA, which reads the variable once.

    Raises:
        UsageError: there are GPUs, but fewer.
    """
    gpus = visible_gpus()
    if device not in ("auto", "cuda") or len(gpus) in (0, count):
        return
    if len(gpus) < count:
        fix = "set `gpus_per_run` in config.yaml to what there is"
        raise UsageError("a run is to use more GPUs than there are", found=", ".join(gpus), expected=count, fix=fix)
    folder = Path(tempfile.gettempdir()) / f"qkgeom-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    taken: list[str] = []
    for gpu in gpus:
        file = (folder / re.sub(r"[^\w-]", "_", gpu)).open("ab")
        if len(taken) < count and locked(file, without_locks=True):
            _held.append(file)
            taken.append(gpu)
        else:
            file.close()
    if len(taken) < count:
        first = os.getpid() % len(gpus)
        shared = [gpu for gpu in gpus[first:] + gpus[:first] if gpu not in taken][: count - len(taken)]
        logger.warning("%d GPUs are taken by other jobs of ours; sharing GPU %s", len(gpus) - len(taken), ", ".join(shared))
        taken += shared
    os.environ[VISIBLE] = ",".join(taken)
    logger.info("GPU %s of %s", ", ".join(taken), ", ".join(gpus))


@contextmanager
def full_precision() -> Iterator[None]:
    """Within it float32 products are float32: no TF32 or bfloat16 in their place, whatever is set outside."""
    import torch

    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # cuBLAS reads it when it starts, and obeys it above all else
    backends = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)
    backends = [each for each in backends if hasattr(each, "fp32_precision")]  # since torch 2.9
    before = [backend.fp32_precision for backend in backends]
    try:
        overall = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set per backend
        overall = "highest"
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(overall)
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


@contextmanager
def bfloat16_products() -> Iterator[None]:
    """Within it the CPU multiplies float32 matrices as if they held bfloat16 numbers, and sums in float32.

    That is exact for matrices that do hold such numbers, and for no others. It holds for the whole process.
    """
    import torch

    backend = torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    backend.fp32_precision = "bf16"
    try:
        yield
    finally:
        backend.fp32_precision = before


def has_matrix_unit(device: torch.device) -> bool:
    """Whether products of bfloat16 numbers are much faster there than those of float32: on a CPU with AMX, as torch sees it."""
    import torch

    return device.type == "cpu" and torch.backends.mkldnn.is_available() and torch.cpu.get_capabilities().get("amx_bf16", False)
