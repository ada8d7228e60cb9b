"""What extraction from the model hub moves, asks for and needs, against a hub on the loopback interface.

A sharded checkpoint as large models have it, half of it neither query nor key weights. The same byte ranges are then
taken from the same storage server with curl, as many at a time, each to a file of its own, in turns with the extraction;
the median over the rounds of the ratio counts. The server limits each connection, so that all together are a gigabit line.

Without that limit no network is measured but the processors: curl copies, while the extraction also transposes, and hashes
every byte twice (as read and as stored), which curl does not. How fast that could be at most is measured too: the processor
time of curl, of the server and of two sha256, spread evenly over all processors.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from figures import Figure
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.sources.read_ahead import IN_FLIGHT

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hub_server import Hub

WORKFLOW = Path(__file__).parents[1] / "workflow"
REPO, N_SHARD, ROUNDS = "bench/llama", 3, 3
LINE = 125e6  # bytes per second of all connections together: a gigabit

# Runs in a process of its own: the time and the peak memory of the extraction alone, imports not counted in the time.
CHILD = """
import json, sys, time
from pathlib import Path
import httpcore2, huggingface_hub.file_download, huggingface_hub.hf_api, tenacity
from qkgeom import acquisition
from qkgeom.layouts import layout_named
layout_named("llama")
started = time.perf_counter()
manifest = acquisition.acquire(f"hf:{sys.argv[1]}@{sys.argv[2]}", Path(sys.argv[3]), "m")
seconds = time.perf_counter() - started
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "peak": int(peak.split()[1]) * 1024}))
"""


def measure(tiny: bool) -> list[Figure]:
    """Bytes, requests, speed and memory.

    Raises:
        UsageError: there is no curl.
        QkgeomError: an extraction failed.
    """
    if not shutil.which("curl"):
        raise UsageError("the benchmark of the partial reader compares with curl", found="no curl", fix="install curl")
    d_model = 256 if tiny else 4096
    files = checkpoint(d_model)
    hub = Hub()
    commit = hub.add(REPO, files)
    try:
        with TemporaryDirectory() as folder:
            first = extraction(hub, commit, Path(folder) / "first")
            moved, resolved = hub.ranges(), hub.asked("/resolve/")
            hub.rate = LINE / IN_FLIGHT
            limited = compared(hub, commit, moved, Path(folder), 1 if tiny else ROUNDS)
            hub.rate = None
            unlimited = compared(hub, commit, moved, Path(folder), 1 if tiny else ROUNDS)
    finally:
        hub.close()
    headers = sum(8 + int.from_bytes(file[:8], "little") for name, file in files.items() if name.endswith("safetensors"))
    needed = headers + 2 * N_SHARD * 2 * d_model * d_model * 2
    served = sum(stop - start for _, start, stop in moved)
    largest = d_model * d_model * 2
    size = sum(map(len, files.values()))
    return [
        Figure("bytes of a sharded checkpoint", served / needed, "of Q/K bytes and headers", 1.02, True, f"of {size:,} B"),
        Figure("requests to resolve a file", len(resolved) / len(files), "per file", 1, True, f"{len(files)} files"),
        speed(f"extraction over a line of {LINE / 1e6:g} MB/s", limited, served),
        speed("extraction from an unlimited server", unlimited, served, f"; {bound(unlimited, served)}"),
        Figure(
            "peak memory of an extraction",
            first["peak"] / 2**20,
            "MiB",
            (2 * largest + 200e6) / 2**20,
            at_most=True,
            detail=f"largest tensor {largest / 2**20:.0f} MiB",
        ),
    ]


def checkpoint(d_model: int) -> dict[str, bytes]:
    """A sharded LLaMA of two layers per shard, in bf16, with the other weights of its layers."""
    rng = np.random.default_rng(0)
    block = rng.standard_normal((d_model, d_model), dtype=np.float32).astype(ml_dtypes.bfloat16)
    shards, where = {}, {}
    for shard in range(N_SHARD):
        name = f"model-{shard + 1:05d}-of-{N_SHARD:05d}.safetensors"
        parts = ("self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj")
        layers = (2 * shard, 2 * shard + 1)
        tensors = {f"model.layers.{layer}.{part}.weight": np.roll(block, layer) for layer in layers for part in parts}
        shards[name] = save(tensors)
        where |= dict.fromkeys(tensors, name)
    config = {
        "model_type": "llama",
        "hidden_size": d_model,
        "num_attention_heads": 32,
        "num_hidden_layers": 2 * N_SHARD,
    }
    index = {"weight_map": where}
    return {"config.json": json.dumps(config).encode(), "model.safetensors.index.json": json.dumps(index).encode(), **shards}


def extraction(hub: Hub, commit: str, folder: Path) -> dict[str, float]:
    """Extracts with empty caches; gives seconds and the peak memory in bytes."""
    hub.log.clear()
    homes = {"HF_HOME": str(folder / "home"), "QKGEOM_CACHE": str(folder / "cache")}
    env = os.environ | homes | {"HF_ENDPOINT": hub.url(), "PYTHONPATH": str(WORKFLOW), "NO_PROXY": "*", "no_proxy": "*"}
    command = [sys.executable, "-c", CHILD, REPO, commit, str(folder / "model")]
    result = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if result.returncode:
        raise QkgeomError("an extraction failed", found=result.stderr)
    shutil.rmtree(folder)
    return json.loads(result.stdout)


@dataclass(frozen=True)
class Round:
    """Seconds of an extraction and of curl, and the processor time of curl and the server together."""

    ours: float
    curl: float
    curl_cpu: float


def compared(hub: Hub, commit: str, ranges: list[tuple[str, int, int]], folder: Path, rounds: int) -> list[Round]:
    """The extraction and curl, in turns."""
    return [Round(extraction(hub, commit, folder / "ours")["seconds"], *curl(hub, ranges, folder)) for _ in range(rounds)]


def curl(hub: Hub, ranges: list[tuple[str, int, int]], folder: Path) -> tuple[float, float]:
    """Seconds that curl takes for the same ranges, each to a file, and processor time with the server's."""
    asked = [
        f'url = "{hub.url("storage")}{path}?X-Amz-Signature={hub.signature}"\nrange = {start}-{stop - 1}\noutput = {number}\n'
        for number, (path, start, stop) in enumerate(ranges)
    ]
    target = folder / "curl"
    target.mkdir()
    (target / "asked").write_text("next\n".join(asked))
    command = ["curl", "--silent", "--fail", "--no-progress-meter", "--parallel", "--parallel-max", str(IN_FLIGHT)]
    started, cpu = perf_counter(), sum(os.times()[:4])  # of this process, in which the server runs, and of its children
    subprocess.run([*command, "--config", "asked"], cwd=target, check=True, capture_output=True)
    seconds, cpu = perf_counter() - started, sum(os.times()[:4]) - cpu
    shutil.rmtree(target)
    return seconds, cpu


def speed(name: str, rounds: list[Round], served: int, more: str = "") -> Figure:
    """The ratio of two speeds."""
    ours = served / median(each.ours for each in rounds) / 1e6
    curls = served / median(each.curl for each in rounds) / 1e6
    detail = f"MB/s: {ours:.0f}; curl --parallel-max {IN_FLIGHT}, the same ranges: {curls:.0f}{more}"
    return Figure(name, median(each.curl / each.ours for each in rounds), "of curl's bytes/s", 0.8, detail=detail)


def bound(rounds: list[Round], served: int) -> str:
    """The most that any reader reaches here that moves the bytes as cheaply as curl and hashes them twice."""
    block, started = bytes(2**26), process_time()
    sha256(block)
    per_byte = (process_time() - started) / len(block)
    n_core = len(os.sched_getaffinity(0))
    least = (median(each.curl_cpu for each in rounds) + 2 * per_byte * served) / n_core
    return f"curl and two sha256 at {1e-6 / per_byte:.0f} MB/s, on all of {n_core} cores: {served / least / 1e6:.0f}"
