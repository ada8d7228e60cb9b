"""The scoring engine on the CPU: against the dense way, a layer of LLaMA-3.1-405B, and how its cost grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from against_dense import LLAMA_405B, compare, dense_scores, faster, in_turns, weights
from figures import Figure
from qkgeom.errors import QkgeomError
from qkgeom.products import SMALL
from qkgeom.scores import score_factors
from synthetic import write_artifact

WORKFLOW = Path(__file__).parents[1] / "workflow"
CPU = torch.device("cpu")
WIDTHS, RANKS = (512, 1024, 2048, 4096), (1 / 64, 1 / 16, 1 / 8, 1 / 4, 1)  # d, and r in d
SQUARE = 1024  # rows and columns of the matrices whose product is the measure of speed

# Runs in a process of its own, for its peak memory. The time is that of scoring alone.
CHILD = """
import json, sys, time
from pathlib import Path
import torch
from qkgeom.scoring import score_artifact
torch.set_num_threads(int(sys.argv[2]))
started = time.perf_counter()
rows = score_artifact(Path(sys.argv[1]), device="cpu")
seconds = time.perf_counter() - started
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "peak": int(peak.split()[1]) * 1024, "status": rows[0]["status"]}))
"""


def measure(tiny: bool) -> list[Figure]:
    """Speed, memory, and cost by shape, with as many threads as torch takes here."""
    return [*compare(CPU, tiny), *of_405b(tiny), growth(tiny)]


def of_405b(tiny: bool) -> list[Figure]:
    """A layer of LLaMA-3.1-405B from an artifact in bfloat16."""
    W_q, W_k = weights(LLAMA_405B, CPU, tiny)
    with TemporaryDirectory() as folder:
        write_artifact(Path(folder), 1, len(W_q), W_q.shape[1], W_k.shape[1], W_q.shape[2])
        command = [sys.executable, "-c", CHILD, folder, str(torch.get_num_threads())]
        result = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(WORKFLOW)}, check=False
        )
    if result.returncode:
        raise QkgeomError("scoring an artifact failed", found=result.stderr)
    ours = json.loads(result.stdout)
    started = perf_counter()
    dense_scores(W_q, W_k)  # the whole layer, once
    dense = perf_counter() - started
    return [
        faster("a layer of LLaMA-3.1-405B from its artifact", dense, ours["seconds"], 12),
        Figure("peak memory of that", ours["peak"] / 2**30, "GiB", 2.5, True, "of the whole process, torch included"),
    ]


def growth(tiny: bool) -> Figure:
    """How evenly the time follows the operations that the engine needs; less than a millisecond of them does not count."""
    curve = {(d, r): cost(d, r) for d in WIDTHS[: 1 if tiny else None] for r in (max(4, int(d * share)) for share in RANKS)}
    detail = ", ".join(f"{d} x {r}: {value:.1f}" for (d, r), value in curve.items())
    worst = max(value for shape, value in curve.items() if operations(*shape) >= SMALL)
    name = "time per needed operation, worst shape of a millisecond or more"
    return Figure(name, worst, "x a matrix product's", 4, True, detail)


def operations(d: int, r: int) -> int:
    """What the cheaper way should need, in float32 operations: 10 d r^2 in float64, which take twice as long, or 2 d^2 r."""
    return min(2 * 10 * d * r**2, 2 * d**2 * r)


def cost(d: int, r: int) -> float:
    """Time per needed operation for factors [d, r], as a multiple of what a product of two large matrices takes."""
    A, B, square = torch.randn(d, r), torch.randn(d, r), torch.randn(SQUARE, SQUARE)
    ours, reference = in_turns(lambda: score_factors(A, B), lambda: square @ square, 10)
    return ours / operations(d, r) / (reference / (2 * SQUARE**3))
