"""LoRA adapters in PEFT's format: merged on the way in, as the product added to the real model's weights by hand.

PEFT is not installed here: adapters are written as its save_and_load.py, `get_peft_model_state_dict`, writes them.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from transformers.pytorch_utils import Conv1D

import hub_server
from contract import build, save
from hub_server import Client, Hub
from project import Project, qkgeom, row, write_models
from qkgeom.acquisition import acquire
from qkgeom.artifacts import read_layer, read_manifest
from qkgeom.dropping import drop, weights_of
from qkgeom.errors import UsageError
from qkgeom.layouts import layout_named
from qkgeom.layouts.base import Case
from qkgeom.registry import read_models
from weight_files import GGUF_FIELDS, fault, gguf_layer, write_gguf

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client

FILE = "final.safetensors"
TARGETS = {  # layout, the number of its case, target_modules, how the base's names begin otherwise than the adapter's
    "LLaMA with grouped queries": ("llama", "LlamaForCausalLM", ["q_proj", "k_proj", "v_proj"], ""),
    "LLaMA, only q": ("llama", "LlamaForCausalLM", r"model\.layers\.\d+\.self_attn\.(q|o)_proj", ""),
    "BERT": ("bert", "BertForMaskedLM", ["query", "key"], ""),
    "GPT-2": ("gpt2", "GPT2LMHeadModel", ["c_attn"], ""),
    "GPT-2 without the adapter's prefix": ("gpt2", "GPT2LMHeadModel", ["attn.c_attn", "c_proj"], "transformer."),
    "GPT-NeoX, fused per head": ("gpt_neox", "GPTNeoXForCausalLM", "all-linear", ""),
    "Phi-3, rows of a fused weight": ("phi3", "Phi3ForCausalLM", ["qkv_proj"], ""),
}
LAYERS = (0, 2)  # that the adapter touches, of three


def model_of(layout: str, name: str) -> tuple[torch.nn.Module, Case]:
    case = next(each for each in layout_named(layout).cases if each.model == name)
    return build(case), case


def adapted_modules(model: torch.nn.Module, targets: list[str] | str) -> dict[str, torch.nn.Module]:
    """The modules of some layers that these targets name, as PEFT's `check_target_module_exists` finds them."""
    found = {}
    for name, module in model.named_modules():
        layer = re.search(r"\.(?:layers?|h)\.(\d+)\.", name)
        if not isinstance(module, torch.nn.Linear | Conv1D) or layer is None or int(layer[1]) not in LAYERS:
            continue
        if targets == "all-linear" or (
            re.fullmatch(targets, name) if isinstance(targets, str) else any(name.endswith(f".{each}") for each in targets)
        ):
            found[name] = module
    return found


def write_adapter(folder: Path, model: torch.nn.Module, targets: list[str] | str, config: Mapping = {}) -> Path:
    """An adapter on `model`, and its product added to the model's own weights."""
    stated = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": targets, "bias": "none", "use_dora": False}
    stated |= {"fan_in_fan_out": False, "init_lora_weights": True, "modules_to_save": None, "rank_pattern": {}, **config}
    stated["base_model_name_or_path"] = "org/base"
    tensors = {}
    for name, module in adapted_modules(model, targets).items():
        conv = isinstance(module, Conv1D)
        n_out, n_in = module.weight.shape[::-1] if conv else module.weight.shape
        rank, alpha = (
            next(
                (value for key, value in stated.get(pattern, {}).items() if re.match(rf"(.*\.)?({key})$", name)),
                stated[default],
            )
            for pattern, default in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
        )
        A, B = torch.randn(rank, n_in), torch.randn(n_out, rank)
        tensors[f"base_model.model.{name}.lora_A.weight"], tensors[f"base_model.model.{name}.lora_B.weight"] = A, B
        delta = (B @ A) * (alpha / math.sqrt(rank) if stated.get("use_rslora") else alpha / rank)
        with torch.no_grad():
            module.weight += delta.T if conv else delta
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    return folder


def layers(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    return [read_layer(folder, FILE, layer) for layer in range(3)]


def assert_merged(folder: Path, by_hand: Path, base: Path, which: tuple[int, ...] = (0, 1)) -> None:
    """Touched layers are those of the model changed by hand, the others the base's bit for bit."""
    for layer, (ours, expected, plain) in enumerate(zip(layers(folder), layers(by_hand), layers(base), strict=True)):
        for role in (0, 1):
            if layer in LAYERS and role in which:
                np.testing.assert_allclose(ours[role], expected[role], rtol=1e-5, atol=1e-5)
                assert np.abs(ours[role] - plain[role].astype(np.float32)).max() > 0.1
            else:
                assert ours[role].dtype == plain[role].dtype and np.array_equal(ours[role], plain[role])


def three(folder: Path, layout: str, name: str, targets, config: Mapping = {}, cut: str = "") -> tuple[str, str]:
    """A base, an adapter on it, and the artifacts of the base and of the model with the product added by hand."""
    model, case = model_of(layout, name)
    base = save(model, case, folder / "base")
    if cut:
        tensors = safetensors.torch.load_file(base / "model.safetensors")
        safetensors.torch.save_file({key.removeprefix(cut): each for key, each in tensors.items()}, base / "model.safetensors")
    changed = copy.deepcopy(model)
    adapter = write_adapter(folder / "adapter", changed, targets, config)
    save(changed, case, folder / "changed")
    acquire(f"file:{base}", folder / "plain", "m")
    acquire(f"file:{folder / 'changed'}", folder / "by-hand", "m")
    return f"file:{base}", f"file:{adapter}"


@pytest.mark.parametrize(("layout", "name", "targets", "cut"), TARGETS.values(), ids=TARGETS)
def test_products_are_added_before_the_layout_splits_the_weight(layout, name, targets, cut, tmp_path):
    base, adapter = three(tmp_path, layout, name, targets, {"fan_in_fan_out": layout == "gpt2" and not cut}, cut)
    acquire(base, tmp_path / "merged", "m", adapter=adapter)
    only_q = isinstance(targets, str) and "(q|o)" in targets
    assert_merged(tmp_path / "merged", tmp_path / "by-hand", tmp_path / "plain", (0,) if only_q else (0, 1))


@pytest.mark.parametrize(
    ("config", "scalings"),
    [
        ({"use_rslora": True}, {"q": (4, 4.0), "k": (4, 4.0)}),
        ({"rank_pattern": {"k_proj": 2}}, {"q": (4, 2.0), "k": (2, 4.0)}),
        (
            {"rank_pattern": {r"layers\.\d+\.self_attn\.q_proj": 1}, "alpha_pattern": {"k_proj": 2}},
            {"q": (1, 8.0), "k": (4, 0.5)},
        ),
    ],
)
def test_rank_and_scaling_of_a_module(config, scalings, tmp_path):
    base, adapter = three(tmp_path, "llama", "LlamaForCausalLM", ["q_proj", "k_proj"], config)
    manifest = acquire(base, tmp_path / "merged", "m", adapter=adapter)
    assert_merged(tmp_path / "merged", tmp_path / "by-hand", tmp_path / "plain")
    stated = manifest["snapshots"]["final"]["source"]["adapter"]["tensors"]
    assert stated == {
        f"model.layers.{layer}.self_attn.{which}_proj.weight": {"rank": rank, "scaling": scaling}
        for layer in LAYERS
        for which, (rank, scaling) in scalings.items()
    }


def test_the_manifest_says_what_was_added(tmp_path):
    base, adapter = three(tmp_path, "gpt2", "GPT2LMHeadModel", ["c_attn", "c_proj"])
    acquire(base, tmp_path / "merged", "m", adapter=adapter)
    snapshot = read_manifest(tmp_path / "merged")["snapshots"]["final"]
    source = snapshot["source"]["adapter"]
    size = (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size
    assert (source["uri"], source["kind"], source["stated_base"]) == (adapter, "file", "org/base")
    assert source["files"] == {"adapter_model.safetensors": {"bytes": size}}
    assert source["modules_left_out"] == 4  # c_proj of attention and of the MLP
    touched = ["qkv", "qkv_lora_A", "qkv_lora_B"]
    assert [sorted(each["read"]) for each in snapshot["layers"]] == [touched, ["qkv"], touched]
    A = snapshot["layers"][2]["read"]["qkv_lora_A"]
    assert A["tensor"] == "base_model.model.transformer.h.2.attn.c_attn.lora_A.weight" and len(A["sha256"]) == 64


def test_dropped_weights_come_again_with_what_was_added(tmp_path):
    base, adapter = three(tmp_path, "gpt2", "GPT2LMHeadModel", ["c_attn", "c_proj"])
    folder = tmp_path / "merged"
    manifest = acquire(base, folder, "m", adapter=adapter)
    expected = layers(folder)
    drop(folder, manifest)
    with weights_of(folder, manifest, "final") as place:
        found = layers(place)
    assert all(np.array_equal(found[layer][which], expected[layer][which]) for layer in range(3) for which in (0, 1))


def spoiled(folder: Path, config: Mapping, change) -> None:
    """An adapter with other words in its config, and other tensors."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(config)))
    tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    safetensors.torch.save_file(change(tensors), folder / "adapter_model.safetensors")


Q = "base_model.model.model.layers.0.self_attn.q_proj"
FAULTS = {
    "DoRA": ({"use_dora": True}, dict, ["use_dora True", "adapter_config.json", "merge_and_unload"]),
    "DoRA by its tensors": ({}, lambda t: t | {f"{Q}.lora_magnitude_vector": torch.ones(24)}, ["magnitudes", f"{Q}.lora_mag"]),
    "biases": ({"bias": "lora_only"}, dict, ["bias 'lora_only'"]),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, dict, ["init_lora_weights 'pissa_niter_4'"]),
    "LoHa": ({"peft_type": "LOHA"}, dict, ["found:    peft_type 'LOHA'"]),
    "IA3": ({"peft_type": "IA3"}, dict, ["found:    peft_type 'IA3'"]),
    "a whole q": (
        {"modules_to_save": ["q_proj"]},
        lambda t: t | {f"{Q}.weight": torch.ones(24, 24)},
        ["replaces whole", f"{Q}.weight", "modules_to_save ['q_proj']"],
    ),
    "other modules only": (
        {},
        lambda t: {n.replace("q_proj", "v_proj").replace("k_proj", "o_proj"): x for n, x in t.items()},
        ["touches no query"],
    ),
    "no tensors": ({}, lambda t: {}, ["holds no tensors"]),
    "a wider base": (
        {},
        lambda t: {n: torch.ones(4, 32) if "lora_A" in n else x for n, x in t.items()},
        ["found:    [4, 32]", "expected: [4, 24]", "lora_A.weight", "org/base"],
    ),
    "more key heads": (
        {},
        lambda t: {n: torch.ones(24 * 3, 4) if "k_proj.lora_B" in n else x for n, x in t.items()},
        ["found:    [72, 4]", "k_proj.lora_B.weight"],
    ),
    "a deeper base": (
        {},
        lambda t: {n.replace("layers.2", "layers.7"): x for n, x in t.items()},
        ["another base", "layer 7", "3 layers"],
    ),
    "another rank": ({"r": 8}, dict, ["found:    [4, 24]", "expected: [8, 24]"]),
    "no rank": ({"r": None}, dict, ["states no r", "adapter_config.json"]),
    "a rank that is no number": ({"r": "four"}, dict, ["states no r", "found:    four"]),
    "half a product": (
        {},
        lambda t: {n: x for n, x in t.items() if n != f"{Q}.lora_B.weight"},
        ["incomplete", "layers.0.self_attn.q_proj"],
    ),
    "a module that is no target": (
        {"target_modules": ["k_proj"]},
        dict,
        ["does not name", "q_proj", "target_modules ['k_proj']"],
    ),
    "ranks without names": ({"rank_pattern": [4]}, dict, ["rank_pattern", "found:    [4]", "numbers by name"]),
    "a broken pattern": ({"target_modules": "(q_proj"}, dict, ["no regular expression", "(q_proj"]),
}


@pytest.mark.faults
@pytest.mark.parametrize(("config", "change", "said"), FAULTS.values(), ids=FAULTS)
def test_an_adapter_that_cannot_be_merged_is_a_fault(config, change, said, tmp_path):
    model, case = model_of("llama", "LlamaForCausalLM")
    base = save(model, case, tmp_path / "base")
    spoiled(write_adapter(tmp_path / "adapter", model, ["q_proj", "k_proj"]), config, change)
    with fault(str(tmp_path / "adapter"), *said):
        acquire(f"file:{base}", tmp_path / "a", "m", adapter=str(tmp_path / "adapter"))
    assert not (tmp_path / "a" / "manifest.json").exists()


def test_what_is_merged_is_stored_in_float32_and_the_rest_as_published(tmp_path):
    base, adapter = three(tmp_path, "llama", "LlamaForCausalLM", ["q_proj"])
    for folder in ("base", "adapter"):
        (path,) = (tmp_path / folder).glob("*.safetensors")
        tensors = safetensors.torch.load_file(path)
        safetensors.torch.save_file({name: each.bfloat16() for name, each in tensors.items()}, path)
    acquire(base, tmp_path / "merged", "m", adapter=adapter)
    for layer, ((q, k), (q_by_hand, _)) in enumerate(
        zip(layers(tmp_path / "merged"), layers(tmp_path / "by-hand"), strict=True)
    ):
        assert (str(q.dtype), str(k.dtype)) == ("float32" if layer in LAYERS else "bfloat16", "bfloat16")
        np.testing.assert_allclose(q.astype(np.float32), q_by_hand, rtol=0.05, atol=0.1)


@pytest.mark.faults
def test_an_adapter_on_a_gguf_file_is_a_fault(tmp_path):
    model, _ = model_of("llama", "LlamaForCausalLM")
    adapter = write_adapter(tmp_path / "adapter", model, ["q_proj"])
    path = write_gguf(tmp_path / "m.gguf", gguf_layer(), GGUF_FIELDS)
    with fault("GGUF", path, "do:"):
        acquire(f"file:{path}", tmp_path / "a", "m", adapter=str(adapter))


@pytest.mark.faults
def test_what_is_no_adapter_is_a_fault(tmp_path):
    model, case = model_of("bert", "BertForMaskedLM")
    base = save(model, case, tmp_path / "base")
    for uri, said in ((f"file:{base}", "no adapter here"), (f"file:{base}/model.safetensors", "no such folder")):
        with fault(said, base):
            acquire(f"file:{base}", tmp_path / "a", "m", adapter=uri)
    with pytest.raises(UsageError, match="not read from there"):
        acquire(f"file:{base}", tmp_path / "a", "m", adapter="timm:vit")
    with pytest.raises(UsageError, match="not to a series"):
        acquire(f"file:{base}{{step}}", tmp_path / "a", "m", series="0,1", adapter=f"file:{base}")


def test_from_the_hub_only_the_products_of_queries_and_keys_move(hub: Hub, hub_client: Client, tmp_path):
    three(tmp_path, "llama", "LlamaForCausalLM", ["q_proj", "k_proj", "v_proj", "gate_proj"])
    hub.add("tiny/lora-base", tmp_path / "base")
    hub.add("tiny/lora", tmp_path / "adapter")
    answer = hub_client.verb(
        "extract", "hf:tiny/lora-base", "--adapter", "hf:tiny/lora@main", "-o", tmp_path / "merged", "--model", "m"
    )
    assert "error" not in answer and not answer["torch"], answer
    assert_merged(tmp_path / "merged", tmp_path / "by-hand", tmp_path / "plain")
    snapshot = read_manifest(tmp_path / "merged")["snapshots"]["final"]
    source = snapshot["source"]["adapter"]
    assert (source["repo"], len(source["commit"])) == ("tiny/lora", 40)
    content = (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes()
    digest = hub_server.digest_of("adapter_model.safetensors", content)
    moved = sum(stop - start for path, start, stop in hub.ranges() if digest in path)
    header = 8 + int.from_bytes(content[:8], "little")
    wanted = sum(
        stop - start
        for layer in snapshot["layers"]
        for key, record in layer["read"].items()
        for start, stop in [record["bytes"]]
        if "lora" in key
    )
    assert moved == header + wanted < len(content)
    served = sum(each.sent for each in hub.log if each.side == "storage" or "/resolve/" in each.path)
    assert snapshot["source"]["bytes_moved_in_all_runs"] == served


def test_an_adapter_in_the_hubs_cache_is_used_with_no_request(hub: Hub, hub_client: Client, tmp_path):
    three(tmp_path, "bert", "BertForMaskedLM", ["query", "key"])
    commits = []
    for repo, folder in (("tiny/kept-base", "base"), ("tiny/kept-lora", "adapter")):
        commits.append(hub.add(repo, tmp_path / folder))
        names = (
            ("config.json", "model.safetensors") if folder == "base" else ("adapter_config.json", "adapter_model.safetensors")
        )
        hub_client.keep(repo, commits[-1], *names)
    hub.reset()
    uri, adapter = (f"hf:{repo}@{commit}" for repo, commit in zip(("tiny/kept-base", "tiny/kept-lora"), commits, strict=True))
    answer = hub_client.verb("extract", uri, "--adapter", adapter, "-o", tmp_path / "merged", "--model", "m")
    assert "error" not in answer, answer
    assert_merged(tmp_path / "merged", tmp_path / "by-hand", tmp_path / "plain")
    assert not hub.log


@pytest.mark.faults
@pytest.mark.parametrize("form", ["hf:tiny/lone-lora", "{}", "{}/adapter_model.safetensors"])
def test_an_adapter_by_itself_is_told_apart_from_a_model(hub: Hub, hub_client: Client, tmp_path, form):
    three(tmp_path, "bert", "BertForMaskedLM", ["query", "key"])
    hub.add("tiny/lone-lora", tmp_path / "adapter")
    answer = hub_client.verb("score", form.format(tmp_path / "adapter"), "--device", "cpu")
    assert answer["error"] == "ModelFault" and "this is an adapter" in answer["text"] and "--adapter" in answer["text"]


def test_show_and_models_say_what_is_added_to_what(tmp_path):
    three(tmp_path, "bert", "BertForMaskedLM", ["query", "key"])
    folder = tmp_path / "results" / "models" / "b"
    acquire(f"file:{tmp_path / 'base'}", folder, "b", adapter=str(tmp_path / "adapter"))
    shown = {line[:20].strip(): line[20:] for line in qkgeom("show", str(folder)).stdout.splitlines()}
    assert shown["source uri"] == f"file:{tmp_path / 'base'}" and shown["adapter uri"] == str(tmp_path / "adapter")
    assert shown["adapter stated base"] == "org/base" and shown["adapter products"] == "4 of rank 4, scaling 2"
    assert not any("{" in text for text in shown.values())
    table = write_models(tmp_path / "models.tsv", [row("a", "hf:o/base"), row("b", "hf:o/base", adapter="hf:o/lora@main")])
    listed = qkgeom("models", "--models", str(table), cwd=tmp_path).stdout.splitlines()
    assert [line.rpartition("\t")[2] for line in listed] == ["weights", "hf:o/base", "hf:o/base + hf:o/lora@main"]


def test_score_shows_base_and_merged_side_by_side(tmp_path):
    three(tmp_path, "bert", "BertForMaskedLM", ["query", "key"])
    answer = qkgeom("score", str(tmp_path / "base"), "--adapter", str(tmp_path / "adapter"), "--json", "--device", "cpu")
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)
    base, both = ({each["layer"]: each["symmetry"] for each in rows if each["model"] == m} for m in ("base", "base+adapter"))
    assert len(base) == len(both) == 3 and base[1] == both[1] and all(base[layer] != both[layer] for layer in LAYERS)
    text = qkgeom("score", str(tmp_path / "base"), "--adapter", str(tmp_path / "adapter"), "--device", "cpu").stderr
    assert "Median over layers of base:" in text and "Median over layers of base+adapter:" in text


@pytest.mark.faults
@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("hf:tiny/no-lora", "no such repository"),
        ("hf:tiny/for-score@v9", "not this revision"),
        ("hf:tiny/dora", "use_dora True"),
        ("hf:tiny/other", "touches no query"),
        ("hf:tiny/../x", "not an address"),
        ("../nowhere", "neither a URI nor an existing path"),
        ("whisper:tiny", "not read from there"),
    ],
)
def test_an_adapter_is_looked_at_before_its_base_has_moved(hub: Hub, hub_client: Client, tmp_path, adapter, said):
    three(tmp_path, "bert", "BertForMaskedLM", ["query", "key"])
    folder = tmp_path / "adapter"
    base = hub.add("tiny/base-of-none", tmp_path / "base")
    weights = hub_server.digest_of("model.safetensors", (tmp_path / "base" / "model.safetensors").read_bytes())
    hub.add("tiny/for-score", folder)
    spoiled(folder, {"use_dora": True}, dict)
    hub.add("tiny/dora", folder)
    spoiled(folder, {"use_dora": False}, lambda t: {name.replace(".self.", ".output."): each for name, each in t.items()})
    hub.add("tiny/other", folder)
    answer = hub_client.verb("score", f"hf:tiny/base-of-none@{base}", "--adapter", adapter, "--device", "cpu")
    assert said in answer["text"], answer
    header = 8 + int.from_bytes((tmp_path / "base" / "model.safetensors").read_bytes()[:8], "little")
    moved = [(start, stop) for path, start, stop in hub.ranges() if weights in path]
    assert moved in ([], [(0, 8), (8, header)])


def test_a_row_names_its_adapter(tmp_path):
    table = write_models(tmp_path / "models.tsv", [row("a", "hf:o/base"), row("b", "hf:o/base", adapter="hf:o/lora@main")])
    assert [model.adapter for model in read_models(table).values()] == ["", "hf:o/lora@main"]
    for cells, said in (
        ({"uri": "hf:o/base", "adapter": "timm:vit"}, "not read from there"),
        ({"uri": "hf:o/base@{step}", "series": "0,1", "group": "dynamics_public", "adapter": "hf:o/lora"}, "not to a series"),
    ):
        table = write_models(tmp_path / "models.tsv", [row("a", **cells)])
        with pytest.raises(UsageError, match=said):
            read_models(table)


@pytest.mark.slow
def test_the_pipeline_extracts_a_row_with_an_adapter(tmp_path):
    three(tmp_path, "bert", "BertForMaskedLM", ["query", "key"])
    project = Project.create(tmp_path / "project")
    project.add_model(model="merged", uri=f"file:{tmp_path}/base", adapter=f"file:{tmp_path}/adapter")
    target = "results/models/merged/manifest.json"
    project.run(target)
    folder = project.folder / "results/models/merged"
    assert_merged(folder, tmp_path / "by-hand", tmp_path / "plain")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(path.read_text().replace('"lora_alpha": 8', '"lora_alpha": 16'))
    assert project.planned(target) == {"extract": {"merged"}}
