"""How large a job is before it runs: memory, time, disk and GPU memory, from what the tables say of its model.

Nothing is opened and nothing asked, so that a workflow can size hundreds of jobs while it is read. Memory is measured:
what a process takes before it has read a weight, and what the engine holds of a layer. Rates of time are nominal; see
`RATES`. Sizes of layers are guessed from a model's count of query and key weights, and rather too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qkgeom.layouts import layout_named
from qkgeom.registry import Model
from qkgeom.sources import on_hub, split_uri

# MiB of a process that has read no weights yet, measured with the locked packages on x86-64 Linux
PLAIN, HUB, TORCH = 80, 140, 700  # without torch; with the hub's client; with torch
SNAKEMAKE = 400  # of the two Snakemake processes that a cluster's job runs in
CUDA_HOST, CUDA_CONTEXT = 3000, 600  # nominal: what CUDA's libraries take on the host, and a process on the GPU
AHEAD = 96  # of what is fetched before it is read, see sources/read_ahead.py
WORKING = 80  # of tiles and of intermediate results on the CPU, see products.py
GPU_WORKING = 2 * 512 + 256  # of two tiles on a GPU, and of query heads that are summed
ROW = 2e3  # bytes of a row of scores until all are written
SCORED = 18  # bytes per number of a layer: two layers as stored, halves in float32, and all of it in float64 where need be
STRUCTURE = 24  # more of them for its QR decompositions
CONVERTED = 3  # times what a layer takes as stored while it is merged or dequantised
COMPUTED = 4  # bytes of a number that is not stored as published: merged with an adapter's, or dequantised
ABSORBED = 8  # numbers of latent attention in its absorbed form for each that the checkpoint has, at most
UNEVEN = 2.2  # a layer may be so many times as large as it would be in a model of the usual shape
WHOLE = 4e7  # numbers of a model, below which it may be a single layer (ALBERT, one-layer models)
TOGETHER = 1e9  # numbers of a model over all its snapshots, up to which it is scored in one job with others

FLOPS, GPU_FLOPS = 1e10, 1e12  # float64 operations a second of a CPU core, and of a GPU
NETWORK = 2e7  # bytes a second of a download
STORED = 3e8  # bytes a second put in order and written, or read
START = 6.0  # seconds in which a job's process starts
SCORING = 2e-3  # seconds of a row of scores besides its operations
SHORTEST, SLACK = 15, 2  # a job may take so many minutes, and so many times as long as is expected
RATES = (
    f"scoring at {FLOPS / 1e9:.0f} GFLOP/s of a CPU core and {GPU_FLOPS / 1e12:.0f} TFLOP/s of a GPU in float64, and "
    f"downloads at {NETWORK / 1e6:.0f} MB/s, all nominal"
)


@dataclass(frozen=True)
class Need:
    """What a job takes when nothing goes wrong.

    Attributes:
        memory: MiB at the peak, of its own process.
        seconds: roughly.
        disk: bytes that it leaves.
        gpu_memory: MiB on the GPU; 0 where it uses none. Scoring gets on with less: in smaller tiles, then on the CPU.
    """

    memory: float
    seconds: float
    disk: float
    gpu_memory: float = 0

    def resources(self, attempt: int) -> dict[str, int]:
        """What it asks for at its so many-th try, in the units of Snakemake: MiB, minutes and, for `disk_mb`, MB."""
        return {
            "mem_mb": _up((self.memory + SNAKEMAKE) * attempt, 100),
            "runtime": _up((SHORTEST + SLACK * self.seconds / 60) * attempt, 5),
            "disk_mb": _up(self.disk / 1e6, 10),
            "gpu_mem_mb": _up(self.gpu_memory * attempt, 100),
        }


def together(needs: Sequence[Need]) -> Need:
    """What they take one after another in one job."""
    memory, gpu_memory = (max(getattr(need, name) for need in needs) for name in ("memory", "gpu_memory"))
    seconds = sum(need.seconds for need in needs) - START * (len(needs) - 1)  # in one process
    return Need(memory, seconds, sum(need.disk for need in needs), gpu_memory)


@dataclass(frozen=True)
class Stack:
    """The query and key weights of a model.

    Attributes:
        d_model: width.
        n_layer: depth.
        n_head: query heads of a layer.
        numbers: in W_q and W_k of all layers of a snapshot, as stored.
        largest: in those of the largest layer, as stored; rather too many.
        snapshots: so many checkpoints.
        width: bytes of a stored number.
        moved: bytes fetched of a snapshot.
        read: bytes of the largest layer as it is read.
        converted: whether a layer is stored otherwise than it is read: merged with an adapter's, or dequantised.
        reader: MiB of a process that reads its files.
    """

    d_model: float
    n_layer: float
    n_head: float
    numbers: float
    largest: float
    snapshots: int
    width: int
    moved: float
    read: float
    converted: bool
    reader: float


def published(row: Model) -> Stack:
    """What the table says of a published model; a missing count of query and key weights is a third of all."""
    n_params = int(row.n_params or 1e9)
    n_qk = int(row.qk_params or 0) or n_params / 3
    layout, (scheme, address) = layout_named(row.layout), split_uri(row.uri)
    as_published = 4 if n_params <= 1e9 else 2
    converted = bool(row.adapter) or layout.computed or address.endswith(".gguf")
    width = COMPUTED if converted else as_published
    numbers = n_qk * (ABSORBED if layout.computed else 1)
    d_model = (32 * n_qk) ** (1 / 3)  # of d_model / 64 layers with 2 d_model^2 of them each
    n_layer = max(1.0, d_model / 64)
    largest = min(numbers, max(UNEVEN * numbers / n_layer, WHOLE))
    away = scheme != "file"
    times = 1.5 if layout.reads_values else 1  # as many values as queries and keys
    moved = away * as_published * (n_params if scheme in ("pypi", "whisper") else n_qk * times)
    read = as_published * times * largest / (ABSORBED if layout.computed else 1)
    in_torchs_format = not address.endswith((".gguf", ".safetensors"))  # perhaps: a table does not say it of the hub's
    reader = TORCH if in_torchs_format else HUB if on_hub(row.uri) else PLAIN
    return Stack(d_model, n_layer, d_model / 64, numbers, largest, len(row.uris), width, moved, read, converted, reader)


def is_small(row: Model) -> bool:
    """Whether a published model is scored in one job with others: starting PyTorch takes about as long."""
    stack = published(row)
    return stack.numbers * stack.snapshots <= TOGETHER


def extraction(stack: Stack) -> Need:
    """Fetching and storing a model: a layer as read and as stored, and what is read ahead."""
    held = stack.read + stack.converted * CONVERTED * stack.largest * stack.width
    if stack.moved:
        held += 2 * stack.read + AHEAD * 2**20  # two of the longest spans, which may be a whole layer
    store = stack.numbers * stack.width
    seconds = START + stack.snapshots * (stack.moved / NETWORK + store / STORED)
    return Need(stack.reader + held / 2**20, seconds, stack.snapshots * store)


def scoring(stack: Stack, *, heads: bool, structure: bool, threads: int, gpu: bool) -> Need:
    """Scoring a model: two layers and their copies, and on a GPU the same on the host, where a layer ends that does not fit."""
    rows = stack.snapshots * stack.n_layer * (1 + heads * stack.n_head)
    layer = stack.largest * (SCORED + structure * STRUCTURE) / 2**20
    memory = TORCH + WORKING + layer + rows * ROW / 2**20 + gpu * CUDA_HOST
    rank = stack.numbers / stack.n_layer / (2 * stack.d_model)
    of_heads = heads * stack.n_head * operations(stack.d_model, rank / stack.n_head)
    of_layer = (operations(stack.d_model, rank) + of_heads) * (6 if structure else 1)
    rate = GPU_FLOPS if gpu else FLOPS * threads
    computing = stack.n_layer * of_layer / rate + stack.numbers * stack.width / STORED
    seconds = START + stack.snapshots * computing + rows * SCORING
    return Need(memory, seconds, rows * 150, gpu * (CUDA_CONTEXT + GPU_WORKING + layer))


def operations(d: float, r: float) -> float:
    """Float64 operations of `qkgeom.scores` for A B^T with [d, r] factors; those of its float32 tiles take half the time."""
    return min(10 * d * r * r, d * d * r)


def _up(value: float, step: int) -> int:
    return step * math.ceil(value / step)
