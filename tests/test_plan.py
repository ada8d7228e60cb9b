"""`plan`: what it says that extraction moves and stores is what extraction does, by the real client and the loopback hub."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

import hub_server
from checkpoints import bert_config, bert_tensors, llama_config, llama_tensors
from hub_server import Client, Hub, client, closed_port
from project import ROOT, row, write_models
from qkgeom.artifacts import read_manifest

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client

D = 64
SIZES = {"d": D, "n_head": 4, "n_kv_head": 2, "n_layer": 4}


def one_file(seed: int) -> dict[str, bytes]:
    """A BERT, of whose tensors the values are not needed."""
    return {"config.json": json.dumps(bert_config(D, 4, 3)).encode(), "model.safetensors": save(bert_tensors(seed, D))}


def two_shards(seed: int) -> dict[str, bytes]:
    """A LLaMA with other tensors between query and key, in bfloat16's width."""
    named = {name: array.astype(np.float16) for name, array in llama_tensors(seed, **SIZES).items()}
    named |= {f"{name}.other": np.ones((D, D), np.float16) for name in list(named)}
    shards = {
        f"model-0000{n}-of-00002.safetensors": [key for key in named if (int(key.split(".")[2]) > 1) == (n > 1)] for n in (1, 2)
    }
    index = json.dumps({"weight_map": {name: shard for shard, names in shards.items() for name in names}}).encode()
    files = {shard: save({name: named[name] for name in names}) for shard, names in shards.items()}
    return {"config.json": json.dumps(llama_config(**SIZES)).encode(), "model.safetensors.index.json": index, **files}


def torch_file(seed: int) -> dict[str, bytes]:
    """A BERT as torch writes it."""
    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in bert_tensors(seed, D).items()}, buffer)
    return {"config.json": json.dumps(bert_config(D, 4, 3)).encode(), "pytorch_model.bin": buffer.getvalue()}


def weight_bytes(files: Mapping[str, bytes]) -> int:
    return sum(len(content) for name, content in files.items() if not name.endswith(".json"))


def plan(it: Client, models: Path, *more: str) -> tuple[dict[str, dict], dict]:
    """Runs it; gives the models by id, and the total."""
    result = it.command("plan", "--json", "--models", str(models), "--lock", str(models.with_name("models.lock")), *more)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    answer = json.loads(result.stdout)
    assert "10 GFLOP/s" in answer["how"]
    return {each["model"]: each for each in answer["models"]}, answer["total"]


def moved(hub: Hub) -> int:
    return sum(each.sent for each in hub.log if each.side == "storage")


def header_bytes(files: Mapping[str, bytes]) -> int:
    return sum(8 + int.from_bytes(file[:8], "little") for name, file in files.items() if name.endswith(".safetensors"))


def test_extraction_moves_and_stores_what_was_planned(hub: Hub, hub_client: Client, tmp_path):
    repos = {"plan/bert": one_file(1), "plan/llama": two_shards(2)}
    for repo, files in repos.items():
        hub.add(repo, files)
    rows = [row("bert", "hf:plan/bert@main"), row("llama", "hf:plan/llama", "llama")]
    models = write_models(tmp_path / "models.tsv", rows)
    plans, total = plan(hub_client, models)
    assert [each["state"] for each in plans.values()] == ["headers", "headers"]
    assert moved(hub) == sum(map(header_bytes, repos.values()))  # no weights
    for (repo, files), each in zip(repos.items(), plans.values(), strict=True):
        assert each["checkpoint"] == weight_bytes(files) > each["move"] > 0 and each["seconds"] > 0
        hub.reset()
        folder = tmp_path / each["model"]
        assert hub_client.verb("extract", f"hf:{repo}", "-o", folder).get("error") is None
        assert moved(hub) == each["move"]
        stored = (folder / "final.safetensors").read_bytes()
        assert len(stored) - header_bytes({"a.safetensors": stored}) == each["store"]
    for which in ("move", "checkpoint", "store"):
        assert total[which] == sum(each[which] for each in plans.values())
    hub.reset()
    assert plan(hub_client, models) == (plans, total)
    assert (
        moved(hub) == 0 and len(hub.asked("/api/models/")) == 2 and hub.asked("resolve") == []
    )  # the headers are kept; one question about each repository


def test_a_checkpoint_of_two_models_is_asked_for_and_counted_once(hub: Hub, hub_client: Client, tmp_path):
    hub.add("plan/shared", one_file(3))
    models = write_models(tmp_path / "models.tsv", [row(name, "hf:plan/shared@main") for name in ("first", "second")])
    plans, total = plan(hub_client, models)
    assert total["checkpoint"] == plans["first"]["checkpoint"] and total["move"] == 2 * plans["first"]["move"]
    assert len(hub.asked("/api/models/")) == 1


def test_a_pinned_commit_is_planned_although_its_branch_moved(hub: Hub, hub_client: Client, tmp_path):
    first = hub.add("plan/moving", one_file(4))
    hub.add("plan/moving", two_shards(5))
    models = write_models(tmp_path / "models.tsv", [row("moving", "hf:plan/moving@main")])
    (tmp_path / "models.lock").write_text(f"model\trepository\tcommit\nmoving\tplan/moving@main\t{first}\n")
    plans, _ = plan(hub_client, models)
    assert plans["moving"]["state"] == "headers" and plans["moving"]["checkpoint"] == weight_bytes(one_file(4))


@pytest.mark.faults
def test_models_that_cannot_be_read_are_named_and_stop_no_other(hub: Hub, hub_client: Client, tmp_path):
    hub.add("plan/good", one_file(6))
    hub.add("plan/gated", one_file(7), gated=True)
    hub.add("plan/gated-torch", torch_file(8), gated=True)
    hub.add("plan/empty", {"config.json": b"{}", "README.md": b"nothing"})
    hub.add("plan/other", {**one_file(9), "config.json": json.dumps({"model_type": "bert"}).encode()})
    hub.add("plan/gone", one_file(10))
    names = ("gated", "gated-torch", "empty", "other", "missing", "good", "gone")
    rows = [*(row(name, f"hf:plan/{name}@main") for name in names), row("wheel", "pypi:a==1/b.safetensors")]
    models = write_models(tmp_path / "models.tsv", rows)
    (tmp_path / "models.lock").write_text(f"model\trepository\tcommit\ngone\tplan/gone@main\t{'0' * 40}\n")
    plans, total = plan(hub_client, models)
    states = {name: each["state"] for name, each in plans.items()}
    wrong = dict.fromkeys(("empty", "other", "missing", "gone"), "unusable")
    assert states == wrong | {"gated": "gated", "gated-torch": "gated", "good": "headers", "wheel": "elsewhere"}
    for name in ("gated", "gated-torch"):
        assert f"accept the licence at {hub.url()}/plan/{name}," in plans[name]["note"]
    assert plans["empty"]["note"] == "no weights here"
    assert "no such repository" in plans["missing"]["note"] and "no longer exists" in plans["gone"]["note"]
    assert total["move"] == plans["good"]["move"]
    home = tmp_path / "home"
    with client(home, hub, HF_TOKEN=hub.token) as known, client(home, hub) as unknown:
        assert plan(known, models)[0]["gated"]["state"] == "headers"
        assert plan(unknown, models)[0]["gated"]["state"] == "gated"  # although its headers are here by now


def test_a_torch_file_is_estimated_and_not_touched(hub: Hub, hub_client: Client, tmp_path):
    files = torch_file(11)
    hub.add("plan/torch", files)
    n_params = 9 * D * D
    cells = row("torch", "hf:plan/torch@main", n_params=str(n_params), qk_params=str(n_params * 2 // 3))
    models = write_models(tmp_path / "models.tsv", [cells])
    plans, _ = plan(hub_client, models)
    assert hub.asked("storage") == []
    each = plans["torch"]
    assert each["state"] == "estimate" and "torch" in each["note"] and each["checkpoint"] == weight_bytes(files)
    hub.reset()
    assert hub_client.verb("extract", "hf:plan/torch", "-o", tmp_path / "a").get("error") is None
    read = read_manifest(tmp_path / "a")["snapshots"]["final"]["bytes"]["read"]
    assert each["move"] == pytest.approx(read, rel=0.1)


@pytest.mark.faults
def test_where_ranges_are_ignored_the_whole_file_is_planned_and_not_fetched(hub: Hub, hub_client: Client, tmp_path):
    files = one_file(12)
    hub.add("plan/whole", files)
    models = write_models(tmp_path / "models.tsv", [row("whole", "hf:plan/whole@main", qk_params="24576")])
    hub.fail("storage GET", ignore_range=True)
    each = plan(hub_client, models)[0]["whole"]
    assert each["state"] == "estimate" and "moved whole" in each["note"]
    assert each["move"] == each["checkpoint"] == weight_bytes(files)
    assert len(hub.asked("storage GET")) == 1  # broken off


def test_files_of_the_hubs_cache_are_not_moved(hub: Hub, hub_client: Client, tmp_path):
    commit = hub.add("plan/kept", one_file(13))
    hub_client.keep("plan/kept", commit, "config.json", "model.safetensors")
    models = write_models(tmp_path / "models.tsv", [row("kept", "hf:plan/kept@main")])
    hub.reset()
    each = plan(hub_client, models)[0]["kept"]
    assert (each["state"], each["move"], each["checkpoint"]) == ("headers", 0, weight_bytes(one_file(13)))
    assert each["store"] == 2 * 3 * D * D * 4
    assert hub.asked("resolve") == hub.asked("storage") == []


@pytest.mark.faults
@pytest.mark.parametrize("how", ["offline", "unreachable"])
def test_without_the_hub_the_table_is_the_estimate(hub: Hub, tmp_path, how):
    env = {"HF_HUB_OFFLINE": "1"} if how == "offline" else {"HF_ENDPOINT": f"http://127.0.0.1:{closed_port()}"}
    rows = [row("small", "hf:a/small@main", n_params="110000000", qk_params="14155776"), row("none", "hf:a/none@main")]
    rows.append(row("large", "hf:a/large@main", n_params="8000000000", qk_params="671088640"))
    write_models(tmp_path / "models.tsv", rows)
    with client(tmp_path / "home", **{"HF_ENDPOINT": hub.url()} | env) as it:
        plans, total = plan(it, tmp_path / "models.tsv")
    assert {each["state"] for each in plans.values()} == {"estimate"}
    assert all(each["note"] for each in plans.values())
    assert plans["small"]["move"] == 4 * 14155776 and plans["large"]["move"] == 2 * 671088640
    assert plans["none"]["move"] is None and "no qk_params" in plans["none"]["note"]
    assert total["move"] == plans["small"]["move"] + plans["large"]["move"]
    assert plans["large"]["seconds"] > plans["small"]["seconds"] > 0
    assert hub.log == []


def test_a_preset_is_told_as_tab_separated_lines(tmp_path):
    rows = [row("in", "hf:a/in@main", qk_params="100"), row("out", "hf:a/out@main", presets="paper")]
    write_models(tmp_path / "models.tsv", rows)
    with client(tmp_path / "home", HF_HUB_OFFLINE="1") as it:
        arguments = ["plan", "--models", str(tmp_path / "models.tsv"), "--preset"]
        result, refused = (it.command(*arguments, preset) for preset in ("mini", "mimi"))
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert lines[0] == ["model", "state", "move", "checkpoint", "disk", "seconds", "note"]
    assert [line[0] for line in lines[1:]] == ["in", "total"] and {len(line) for line in lines} == {7}
    assert lines[1][1:5] == ["estimate", "400", "4000000", "400"]
    assert "10 GFLOP/s" in result.stderr
    assert refused.returncode == 2 and "there is no preset mimi" in refused.stderr


def test_planning_imports_neither_torch_nor_transformers(hub: Hub, tmp_path):
    hub.add("plan/light", one_file(14))
    hub.add("plan/light-torch", torch_file(15))
    models = write_models(tmp_path / "models.tsv", [row(name, f"hf:plan/{name}@main") for name in ("light", "light-torch")])
    code = (
        f"import sys; from qkgeom.cli import app; app(['plan', '--models', {str(models)!r}], standalone_mode=False)\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    with client(tmp_path / "home", hub) as it:
        result = subprocess.run(command, cwd=ROOT / "workflow", env=it.env, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "light\theaders\t" in result.stdout


def test_a_series_counts_every_checkpoint(hub: Hub, hub_client: Client, tmp_path):
    for step in (0, 10):
        hub.add("plan/series", one_file(5 + step), f"step{step}")
    models = write_models(
        tmp_path / "models.tsv",
        [row("one", "hf:plan/series@step10"), row("many", "hf:plan/series@step{step}", series="0,10")],
    )
    plans, _ = plan(hub_client, models)
    for cost in ("move", "checkpoint", "store"):
        assert plans["many"][cost] == 2 * plans["one"][cost] > 0
    assert "2 checkpoints" in plans["many"]["note"]


def test_names_of_timm_are_planned_in_their_repository(hub: Hub, hub_client: Client, tmp_path):
    name = "vit_tiny_patch16_224.augreg_in21k"
    config = json.dumps({"model_type": "timm_vit", "d_model": D, "n_head": 4, "n_layer": 1}).encode()
    hub.add(
        f"timm/{name}", {"config.json": config, "model.safetensors": save({"blocks.0.attn.qkv.weight": np.ones((3 * D, D))})}
    )
    rows = [row("tiny", f"timm:{name}", "timm_vit"), row("none", "timm:vit_tiny_patch16_224.of_nobody", "timm_vit")]
    plans, _ = plan(hub_client, write_models(tmp_path / "models.tsv", rows))
    assert plans["tiny"]["state"] == "headers" and plans["tiny"]["move"] == 2 * D * D * 8  # of q, k and v two
    assert plans["none"]["state"] == "unusable"
