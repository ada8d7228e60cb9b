"""Scoring from the disk to the rows: speed against what cannot be avoided, many small models, and memory of the largest.

What cannot be avoided is to read the bytes, and to multiply the factors once. Either is timed by itself in turns with the
scoring, and the larger one is what is compared with; start-up is counted with the small models only. All run on one
thread, as the pipeline's jobs do: threads that wait for each other measure who else uses the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch

from figures import Figure
from qkgeom.errors import QkgeomError
from qkgeom.scoring import score_artifact
from synthetic import write_artifact

WORKFLOW = Path(__file__).parents[1] / "workflow"
MEDIUM = {"n_layer": 16, "d_model": 2048, "n_head": 32, "n_kv_head": 8, "d_head": 64}  # Llama-3.2-1B
SMALL = {"n_layer": 6, "d_model": 384, "n_head": 12, "n_kv_head": 12, "d_head": 32}  # MiniLM-L6
LARGEST = {"n_layer": 3, "d_model": 16384, "n_head": 128, "n_kv_head": 8, "d_head": 128}  # layers of Llama-3.1-405B
TINY = {"n_layer": 2, "d_model": 64, "n_head": 4, "n_kv_head": 2, "d_head": 8}
ROUNDS, MODELS = 7, 100
CHUNK = 2**23  # bytes

# Runs in a process of its own, which prints its peak memory in KiB.
CHILD = """
import sys
from pathlib import Path
from qkgeom.scoring import score_artifact
score_artifact(Path(sys.argv[1]), device="cpu")
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1])
"""


def measure(tiny: bool) -> list[Figure]:
    """Ratios of speed with a warm and a cold cache, seconds per small model, and peak memory.

    Raises:
        QkgeomError: a process failed.
    """
    medium, small, largest = (TINY, TINY, TINY) if tiny else (MEDIUM, SMALL, LARGEST)
    rounds, models = (1, 2) if tiny else (ROUNDS, MODELS)
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        artifact = write_artifact(Path(folder) / "medium", **medium)
        file = artifact / "final.safetensors"
        multiply = products(**medium)
        return [
            speed(artifact, "warm", lambda: read(file), multiply, rounds),
            speed(artifact, "cold", lambda: forget(file), multiply, rounds),
            many(write_artifact(Path(folder) / "small", **small), models),
            memory(write_artifact(Path(folder) / "largest", **largest)),
        ]


def speed(artifact: Path, cache: str, prepare: Callable[[], None], multiply: Callable[[], None], rounds: int) -> Figure:
    """How near scoring comes to what cannot be avoided, with the file in the system's cache or without."""
    file = artifact / "final.safetensors"
    parts = (lambda: score_artifact(artifact, device="cpu"), lambda: read(file), multiply)
    times = [[timed(part, prepare) for part in parts] for _ in range(rounds)]
    scoring, reading, multiplying = (1e3 * median(each) for each in zip(*times, strict=True))
    detail = f"{scoring:.0f} ms for {file.stat().st_size / 1e6:.0f} MB; reading {reading:.0f}, products {multiplying:.0f}"
    ratio = max(reading, multiplying) / scoring
    return Figure(f"scoring an artifact, {cache} cache", ratio, "of the possible speed", 0.7, detail=detail)


def products(n_layer: int, d_model: int, n_head: int, n_kv_head: int, d_head: int) -> Callable[[], None]:
    """The cheaper of the two ways' products for all layers: M, or in float64 what a Gram matrix's way multiplies."""
    r = n_kv_head * d_head
    A, B = torch.randn(d_model, r), torch.randn(d_model, r)
    G, M = torch.randn(r, r).double(), torch.empty(d_model, d_model)
    A64, AG, GG = A.double(), A.double(), G.clone()

    def whole() -> None:
        torch.mm(A, B.T, out=M)

    def gram() -> None:
        for _ in range(3):
            torch.mm(A64.T, A64, out=GG)
        for _ in range(2):
            torch.mm(A64, G, out=AG)

    cheaper = min((whole, gram), key=lambda way: min(timed(way) for _ in range(3)))
    return lambda: [cheaper() for _ in range(n_layer)]


def many(artifact: Path, models: int) -> Figure:
    """Seconds per small model of a run of models in one process, start-up included."""
    copies = [artifact.parent / f"copy{number}" for number in range(models)]
    for copy in copies:
        shutil.copytree(artifact, copy, copy_function=os.link)
    command = ["-m", "qkgeom", "score", *map(str, copies), "--in-place", "--device", "cpu", "--threads", "1"]
    seconds = timed(lambda: process(*command))
    detail = f"{models} models in {seconds:.1f} s"
    return Figure("scoring small models in one process", seconds / models, "s per model", 1, at_most=True, detail=detail)


def memory(artifact: Path) -> Figure:
    """Peak memory of scoring the largest layers there are, PyTorch included."""
    peak = int(process("-c", CHILD, str(artifact))) / 2**20
    detail = f"{(artifact / 'final.safetensors').stat().st_size / 2**30:.1f} GiB on the disk"
    return Figure("peak memory of scoring 405B-shaped layers", peak, "GiB", 2.5, at_most=True, detail=detail)


def process(*arguments: str) -> str:
    """What a new Python process prints."""
    env = {**os.environ, "PYTHONPATH": str(WORKFLOW)}
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env, check=False)
    if result.returncode:
        raise QkgeomError("a scoring process failed", found=result.stderr)
    return result.stdout


def read(file: Path) -> None:
    """Reads a file, keeping nothing."""
    chunk = np.empty(CHUNK, np.uint8)
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(chunk):
            pass


def forget(file: Path) -> None:
    """Makes the system forget a file, so that it is read from the disk again."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(work: Callable[[], object], prepare: Callable[[], None] = lambda: None) -> float:
    """Seconds that the work takes."""
    prepare()
    started = perf_counter()
    work()
    return perf_counter() - started
