"""How long `plan` takes for the whole zoo once it has the headers, against a hub on the loopback interface.

Every repository of models.tsv is there, under its name: a tiny model of the layout's real class, with as many further
tensors and shards as a checkpoint of the row's size has, and answers of the hub that take as long as over a network.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import transformers
from safetensors.numpy import load, save

from figures import Figure
from qkgeom.errors import QkgeomError
from qkgeom.layouts import layout_named
from qkgeom.registry import MODELS, Model, read_models
from qkgeom.sources import on_hub

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import contract
from hub_server import Hub

WORKFLOW = Path(__file__).parents[1] / "workflow"
ROUNDS, ANSWER = 3, 0.1  # seconds until the hub answers a question
SHARD, PER_LAYER, WIDTH = 5e9, 12, 64  # bytes of a shard, tensors of a layer, d_model per layer
TINY = ("bert-base-uncased", "llama-3.1-8b", "t5-base.encoder", "t5-base.decoder", "alpaca-lora-7b")


def measure(tiny: bool) -> list[Figure]:
    """Seconds of a plan of every row.

    Raises:
        QkgeomError: a plan failed, or could not read the headers of a row.
    """
    rows = {name: row for name, row in read_models().items() if not tiny or name in TINY}
    answer = 0.0 if tiny else ANSWER
    hub = Hub()
    transformers.utils.logging.disable_progress_bar()
    try:
        fill(hub, rows.values())
        with TemporaryDirectory() as folder:
            table = Path(folder) / "models.tsv"
            header, *lines = MODELS.read_text().splitlines(keepends=True)
            table.write_text(header + "".join(line for line in lines if line.partition("\t")[0] in rows))
            first = plan(hub, table, rows)
            hub.fail("hub", stall=answer)
            times = []
            for _ in range(1 if tiny else ROUNDS):
                hub.log.clear()
                times.append(plan(hub, table, rows))
            asked = len(hub.log)
    finally:
        hub.close()
    detail = f"{len(rows)} models; {asked} questions of {answer} s; {first:.1f} s for the headers, without a network"
    return [Figure("plan of the whole zoo, headers cached", median(times), "s", 10, at_most=True, detail=detail)]


def plan(hub: Hub, table: Path, rows: Mapping[str, Model]) -> float:
    """Plans; gives seconds."""
    homes = {"HF_HOME": str(table.with_name("home")), "QKGEOM_CACHE": str(table.with_name("cache"))}
    env = os.environ | homes | {"HF_ENDPOINT": hub.url(), "PIP_INDEX_URL": hub.url(), "PYTHONPATH": str(WORKFLOW)}
    command = [
        sys.executable,
        "-m",
        "qkgeom",
        "plan",
        "--json",
        "--models",
        str(table),
        "--results",
        str(table.with_name("none")),
    ]
    started = perf_counter()
    result = subprocess.run(command, capture_output=True, text=True, env=env | {"NO_PROXY": "*", "no_proxy": "*"}, check=False)
    seconds = perf_counter() - started
    if result.returncode:
        raise QkgeomError("a plan failed", found=result.stderr)
    plans = json.loads(result.stdout)["models"]
    if wrong := [each for each in plans if each["state"] != "headers" and on_hub(rows[each["model"]].uris[-1])]:
        raise QkgeomError("a plan did not read the headers of every row", found=wrong[:5])
    return seconds


def fill(hub: Hub, rows: Iterable[Model]) -> None:
    """Adds the repository of each row's last checkpoint, and of its adapter."""
    for row in rows:
        for uri, files in ((row.uris[-1], checkpoint), (row.adapter, adapter)):
            if uri and (address := on_hub(uri)):
                repo, _, revision = address.partition("@")
                hub.add(repo, files(row, repo), revision or "main")


def checkpoint(row: Model, repo: str) -> dict[str, bytes]:
    """The files of a row's repository."""
    config, tensors = tiny_model(row.layout)
    n_layer = math.ceil((32 * int(row.qk_params)) ** (1 / 3) / WIDTH)
    others = [
        f"model.layers.{n}.{repo.replace('/', '_')}.part{part}.weight" for n in range(n_layer) for part in range(PER_LAYER)
    ]
    named = tensors | dict.fromkeys(others, np.zeros(1, np.float32))
    n_shard = math.ceil(2 * int(row.n_params) / SHARD)
    if n_shard == 1:
        return {"config.json": config, "model.safetensors": save(named)}
    names = list(named)
    files = {f"model-{n + 1:05d}-of-{n_shard:05d}.safetensors": names[n::n_shard] for n in range(n_shard)}
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    shards = {file: save({name: named[name] for name in held}) for file, held in files.items()}
    return {"config.json": config, "model.safetensors.index.json": json.dumps(index).encode(), **shards}


def adapter(row: Model, _repo: str) -> dict[str, bytes]:
    """An adapter of the tiny model's `q_proj` and `k_proj`."""
    targets, rank = ("q_proj", "k_proj"), 2
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    _, tensors = tiny_model(row.layout)
    modules = {
        module: each.shape for name, each in tensors.items() if (module := name.removesuffix(".weight")).endswith(targets)
    }
    parts = {
        f"base_model.model.{module}.{part}.weight": np.zeros(size, np.float32)
        for module, (out, into) in modules.items()
        for part, size in (("lora_A", (rank, into)), ("lora_B", (out, rank)))
    }
    return {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": save(parts)}


@cache
def tiny_model(layout: str) -> tuple[bytes, dict[str, np.ndarray]]:
    """config.json and the tensors of the layout's first case."""
    case = layout_named(layout).cases[0]
    with TemporaryDirectory() as folder:
        path = contract.save(contract.build(case), case, Path(folder))
        return (path / "config.json").read_bytes(), load((path / "model.safetensors").read_bytes())
