"""`audit --from-source` against wrong extractions: each is planted in a layout, and the model's own class tells."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import hub_server
from audited import audited, make_results
from checkpoints import extract, write_bert
from contract import build, save
from hub_server import Client, Hub
from project import qkgeom, row, write_models
from qkgeom.audit.findings import Part
from qkgeom.audit.options import Options
from qkgeom.audit.source import check_source
from qkgeom.layouts import all_layouts
from qkgeom.layouts.base import FusedPerHead, FusedRows, SeparateLinear, from_linear
from qkgeom.scoring import score_artifact, write_scores
from qkgeom.sources import open_checkpoint

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client
# layout -> number of its case: one of each way in which weights are stored, and of each library
PROBED = {
    **{"bert": 1, "albert": 0, "deberta": 0, "deberta_v2": 0, "modernbert": 1, "gpt2": 1, "gpt_neo": 1, "gpt_neox": 1},
    **{"llama": 2, "falcon": 2, "bloom": 1, "opt": 1, "phi3": 1, "deepseek": 2, "t5_encoder": 1, "t5_decoder": 1},
    **{"bart_encoder": 1, "bart_decoder": 1, "whisper_openai_encoder": 0, "whisper_openai_decoder": 0, "vit": 0, "swin": 2},
    **{"timm_vit": 0, "timm_swin": 0, "clip_text": 0, "clip_vision": 0, "wav2vec2": 0, "detr_encoder": 0, "git_vision": 0},
}


def check(layout, case, folder: Path, wrong=None, monkeypatch=None) -> Part:
    """Extracts and scores a tiny real model, with a wrong layout if one is given, and reads its source again."""
    checkpoint = save(build(case), case, folder / "checkpoint")
    if wrong:
        for name, value in wrong.items():
            monkeypatch.setattr(type(layout), name, value)
    with open_checkpoint(f"file:{checkpoint}") as opened:
        manifest = extract(opened, layout, folder / "models/tiny", "tiny")
    write_scores(folder / "models/tiny/scores.csv", score_artifact(folder / "models/tiny", heads=True, device="cpu"))
    part = Part("model", "tiny")
    check_source(part, manifest, Options(folder, sample=None))
    return part


@pytest.mark.parametrize("name", PROBED)
def test_a_right_extraction_is_verified(name, tmp_path):
    layout = all_layouts()[name]
    part = check(layout, layout.cases[PROBED[name]], tmp_path)
    assert (part.findings, part.unchecked) == ([], [])
    layers = json.loads((tmp_path / "models/tiny/manifest.json").read_text())["n_layer"]
    assert part.counts["layers derived from the source"] == layers > 0
    assert part.largest["W_qk from the source"] < 1e-6 and part.largest["symmetry"] < 1e-6


def q_for_k(self, arrays, shape):
    return from_linear(arrays["q"], shape.d_head), from_linear(arrays["q"], shape.d_head)


def exchanged(self, arrays, shape):
    return from_linear(arrays["k"], shape.d_head), from_linear(arrays["q"], shape.d_head)


def wrong_pairs(self, arrays, shape):
    return from_linear(arrays["q"], shape.d_head), from_linear(arrays["k"], shape.d_head)[:, ::-1]


def not_transposed(self, arrays, shape):
    return tuple(arrays[key].reshape(shape.d_model, -1, shape.d_head) for key in ("q", "k"))


def thirds_of_interleaved(self, arrays, shape):
    size = shape.n_head * shape.d_head
    split = {"q": arrays["qkv"][:size], "k": arrays["qkv"][size : 2 * size]}
    return FusedRows.split(self, split, shape)


def not_transposed_conv(self, arrays, shape):
    return SeparateLinear.split(self, dict(zip("qkv", np.split(arrays["qkv"], 3, 1), strict=True)), shape)


def the_other_attention(layout):
    return {role: pattern.replace("self_attn", "encoder_attn") for role, pattern in layout.tensors.items()}


WRONG = {
    "Q read for K": ("bert", 0, {"split": q_for_k}),
    "Q and K exchanged": ("bert", 0, {"split": exchanged}),
    "query heads with the wrong key heads": ("llama", 2, {"split": wrong_pairs}),
    "a transpose forgotten": ("bert", 0, {"split": not_transposed}),
    "a transpose too many": ("gpt2", 0, {"split": not_transposed_conv}),
    "contiguous thirds of interleaved weights": ("gpt_neox", 0, {"split": thirds_of_interleaved}),
    "cross-attention for self-attention": ("bart_decoder", 0, {"tensors": the_other_attention}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_extraction_is_found(what, tmp_path, monkeypatch):
    name, case, wrong = WRONG[what]
    layout = all_layouts()[name]
    if "tensors" in wrong:
        wrong = {"tensors": wrong["tensors"](layout)}
    assert isinstance(layout, FusedPerHead) == (name == "gpt_neox")
    part = check(layout, layout.cases[case], tmp_path, wrong, monkeypatch)
    of_weights = [finding for finding in part.findings if "W_qk of head" in finding.found]
    assert [finding.item for finding in of_weights][:2] == ["layer 0", "layer 1"]
    assert all(f"mend the layout {name}" in finding.fix for finding in of_weights)


def test_layers_that_were_left_out_are_found(tmp_path, monkeypatch):
    layout = all_layouts()["bert"]
    checkpoint = save(build(layout.cases[0]), layout.cases[0], tmp_path / "checkpoint")
    with open_checkpoint(f"file:{checkpoint}") as opened:
        manifest = extract(opened, layout, tmp_path / "models/tiny", "tiny")
    manifest["snapshots"]["final"]["layers"].pop()
    part = Part("model", "tiny")
    check_source(part, manifest, Options(tmp_path, sample=None))
    (finding,) = part.findings
    assert (finding.found, finding.expected) == ("2 layers", "3 self-attentions, as the model's class executes")


def test_what_is_too_large_or_has_no_class_here_is_said(tmp_path):
    layouts = all_layouts()
    part = check(layouts["neobert"], layouts["neobert"].cases[0], tmp_path / "remote")
    assert not part.findings and "only its bytes were compared" in part.unchecked[0]
    assert part.counts["ranges of the source"] > 0
    checkpoint = write_bert(tmp_path / "checkpoint")
    with open_checkpoint(f"file:{checkpoint}") as opened:
        manifest = extract(opened, layouts["bert"], tmp_path / "models/tiny", "tiny")
    part = Part("model", "tiny")
    check_source(part, manifest, Options(tmp_path, most_bytes=1000))
    assert not part.findings and "more than --most-gb" in part.unchecked[0] and part.counts["ranges of the source"] == 6


def test_other_bytes_at_the_source_are_found(tmp_path):
    checkpoint = write_bert(tmp_path / "checkpoint")
    with open_checkpoint(f"file:{checkpoint}") as opened:
        manifest = extract(opened, all_layouts()["bert"], tmp_path / "models/tiny", "tiny")
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["bert.encoder.layer.1.attention.self.key.weight"][0, 0] += 1
    save_file(tensors, checkpoint / "model.safetensors")
    (tmp_path / "models/tiny/scores.csv").write_text("model,snapshot,layer,head\n")
    part = Part("model", "tiny")
    check_source(part, manifest, Options(tmp_path))
    assert "bert.encoder.layer.1.attention.self.key.weight" in part.findings[0].item
    assert any(finding.item == "layer 1" and "W_qk of head" in finding.found for finding in part.findings)
    (checkpoint / "model.safetensors").unlink()
    part = Part("model", "tiny")
    check_source(part, manifest, Options(tmp_path))
    assert not part.findings and "cannot be read here: no weights here" in part.unchecked[0]


def test_a_model_of_the_hub_is_read_again_from_its_commit(hub: Hub, hub_client: Client, tmp_path):
    folder = write_bert(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    commit = hub.add("audit/bert", files)
    results = tmp_path / "project/results"
    scores, collected = results / "models/hubbed/scores.csv", results / "mini/collected"
    models = tmp_path / "models.tsv"
    write_models(models, [row("hubbed", "hf:audit/bert@main")])
    steps = [
        ("extract", "hf:audit/bert@main", "-o", scores.parent),
        ("score", scores.parent, "--in-place", "--device", "cpu"),
        ("collect", scores, "-o", collected, "--models", models),
    ]
    assert [answer for step in steps if "error" in (answer := hub_client.verb(*step))] == []
    moved = {**files, "model.safetensors": (write_bert(tmp_path / "other", seed=9) / "model.safetensors").read_bytes()}
    hub.add("audit/bert", moved)  # the branch moves on; the commit stays
    hub.reset()
    told = qkgeom("audit", str(results / "mini"), "--from-source", **hub_client.env)
    assert told.returncode == 0, told.stderr
    (model,) = json.loads((results / "mini/audit/audit.json").read_text())["models"]
    assert model["checked"]["layers derived from the source"] == 3 and model["verdict"] == "verified"
    hub.repos["audit/bert"].commits[commit] = moved
    shutil.rmtree(hub_client.home / "hub", ignore_errors=True)
    told = qkgeom("audit", str(results / "mini"), "--from-source", **hub_client.env)
    assert told.returncode == 1 and "layer.0.attention.self.query.weight, bytes" in told.stderr


def test_the_terminal_is_told_what_was_read_again(tmp_path):
    make_results(tmp_path / "p")
    told = qkgeom("audit", "results/mini", "--from-source", "--sample", "1", cwd=tmp_path / "p")
    assert told.returncode == 0, told.stderr
    assert "3 layers derived from the source" in told.stdout and "%|" not in told.stderr
    assert audited(tmp_path / "p", from_source=True).findings == []
