"""Whether there is a GPU, and whether its driver is new enough for the lock's CUDA."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from qkgeom.digests import LOCK
from qkgeom.doctor.case_device import device_of
from qkgeom.doctor.command import run
from qkgeom.doctor.finding import Case, Finding, fault, ok, warning

DRIVERS = {12: 525, 13: 580}  # CUDA -> first driver; source: NVIDIA, "CUDA compatibility", minor version compatibility
_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_TORCH = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
NO_GPU = "set `device: auto` or `cpu` in config.yaml, or start the run on a machine with a GPU (docs/cluster.md)"

CLUSTER = "on a cluster with GPUs set `device: cuda` in config.yaml (docs/cluster.md)"


def examine(case: Case) -> Iterator[Finding]:
    """Asks the driver, and only where it has a GPU PyTorch too, in a process of its own."""
    wanted = device_of(case).startswith("cuda") and not case.slurm  # with SLURM the nodes have them
    answer = run(_QUERY, case.left(5))
    gpus = [line.split(", ") for line in answer.out.splitlines() if line.count(", ") == 2] if answer.fine else []
    if not gpus:
        found = "none here" if answer.status == 127 else f"none: nvidia-smi says: {answer.said}"
        if not wanted:
            if case.may_submit and device_of(case) == "auto":
                yield warning("gpu", f"{found}, and with device: auto no job of the cluster asks for one", CLUSTER)
            else:
                yield ok("gpu", f"{found}; not needed")
        elif case.may_submit:
            yield warning("gpu", f"{found}: jobs with `device: cuda` need the nodes of profiles/slurm", NO_GPU)
        else:
            yield fault("gpu", f"{found}, but config.yaml says device: cuda", NO_GPU)
        return
    kinds = ", ".join(f"{name} ({memory})" for name, memory, _ in gpus)
    yield ok("gpu", kinds)
    bad = fault if wanted else warning
    driver, cuda = gpus[0][-1], cuda_of(LOCK)
    if int(re.match(r"\d*", driver)[0] or 0) < DRIVERS.get(cuda, 0):
        found = f"{driver} is older than {DRIVERS[cuda]}, which the lock's PyTorch (CUDA {cuda}) needs: the CPU would be used"
        yield bad("driver", found, "update the driver, or set `device: cpu` in config.yaml")
        return
    yield ok("driver", f"{driver}, for CUDA {cuda}" if cuda else driver)
    yield from _torch(case, len(gpus), bad)


def _torch(case: Case, n_gpu: int, bad: Callable[[str, str, str], Finding]) -> Iterator[Finding]:
    answer = run([sys.executable, "-c", _TORCH], case.left() - 0.5)
    if answer.status is None:
        yield warning("torch", "PyTorch did not start in time", "a slow file system? try `python -c 'import torch'`")
    elif not answer.fine:
        yield bad("torch", f"PyTorch does not start: {answer.said}", "run `make setup` again")
    elif (count := int(answer.out)) < n_gpu:
        fix = "is CUDA_VISIBLE_DEVICES set? is this the lock's PyTorch? Else: device: cpu"
        yield bad("torch", f"PyTorch sees {count} of {n_gpu} GPUs", fix)
    else:
        yield ok("torch", f"PyTorch sees {count} of {n_gpu} GPUs")


def cuda_of(lock: Path) -> int | None:
    """The CUDA version that the lock's PyTorch is built for, if it is for any."""
    match = re.search(r"^cuda-toolkit==(\d+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return int(match[1]) if match else None
