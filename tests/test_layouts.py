"""Every layout against the models it reads; see contract.py."""

import copy
import json
import shutil

import numpy as np
import pytest
import timm
import torch

from checkpoints import extract
from contract import (
    NO_CROSS,
    build,
    class_of,
    cross_attention,
    extracted,
    mismatch,
    save,
    stored_tensors,
    weight_file,
    wrong_readings,
)
from qkgeom.checkpoint import Heads
from qkgeom.errors import ModelFault, UsageError
from qkgeom.layouts import all_layouts, layout_for, layout_named
from qkgeom.layouts.base import Case, FusedConv1D, FusedPerHead, FusedRows, SeparateLinear
from qkgeom.layouts.deepseek import DeepSeek
from qkgeom.layouts.timm_base import Timm
from qkgeom.sources import open_checkpoint

CASES = [
    pytest.param((layout, case), id=f"{layout.name}-{case.model}-{number}")
    for layout in all_layouts().values()
    for number, case in enumerate(layout.cases)
]
FILE = "final.safetensors"
DEPTHS = {
    None: ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"),
    "encoder": ("encoder_layers", "num_layers", "n_audio_layer"),
    "decoder": ("decoder_layers", "num_decoder_layers", "n_text_layer"),
}
N_PRODUCT = {  # attention products in a case of a stack whose depth stands elsewhere in the config
    "swin": 6,
    "timm_swin": 6,
    "mask2former_encoder": 5,
    "mask2former_decoder": 3,
    "vit_mae_encoder": 3,
    "vit_mae_decoder": 2,
    "sam_encoder": 3,
    "sam_decoder": 2,
    "git_vision": 4,
    "git_text": 2,
    "clip_vision": 4,
    "clip_text": 3,
    "mllama_vision": 3,
    "mllama_vision_global": 2,
    "mllama_text": 4,
    "musicgen_encoder": 3,
    "musicgen_decoder": 2,
}
SEVERAL_PARTS = [name for name, layout in all_layouts().items() if layout.part]
WITH_CROSS = [name for name, layout in all_layouts().items() if layout.part == "decoder" and name not in NO_CROSS]


def n_product(layout, case):
    """How many attention products the case's model executes, known from its config without the layout."""
    config = case.config.get("text_config", case.config)
    return N_PRODUCT.get(layout.name) or next(config[name] for name in DEPTHS[layout.part] if name in config)


@pytest.fixture(scope="module", params=CASES)
def proof(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("case")
    yield extracted(*request.param, folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize("layout", all_layouts().values(), ids=all_layouts())
def test_every_architecture_of_a_layout_has_a_case(layout):
    assert layout.cases
    proved = {class_of(case).config_class.model_type for case in layout.cases if case.library in ("transformers", "remote")}
    other_libraries = {"timm_vit", "timm_swin", "whisper_openai"}
    old_names = {"RefinedWeb", "RefinedWebModel"}  # Falcon's, see below
    assert proved == set(layout.model_types) - other_libraries - old_names


@pytest.mark.parametrize("implementation", ["fused", "eager"])
def test_extracted_weights_are_what_the_model_multiplies(proof, implementation):
    executions = proof.executions[implementation]
    order = [execution.layer for execution in executions]
    assert order == sorted(order) and set(order) == set(range(proof.manifest["n_layer"]))
    assert len(order) == n_product(proof.layout, proof.case)
    for execution in executions:
        W_q, W_k = proof.weights(execution.layer)
        found = mismatch(execution, W_q, W_k)
        assert found.heads.shape == (W_q.shape[1],)
        assert found.heads.max() < 1e-4 and found.layer < 1e-4
        # plain, or with the softmax scale in q; DeBERTa's counts two terms of relative positions too
        scales = np.array([1, W_q.shape[2] ** -0.5, (3 * W_q.shape[2]) ** -0.5])
        assert np.isclose(found.scale, scales, rtol=1e-4).any()


def test_wrong_readings_are_noticed(proof):
    first = {execution.layer: execution for execution in reversed(proof.executions["fused"])}
    for layer, execution in first.items():
        for way, W_q, W_k in wrong_readings(proof, layer):
            found = mismatch(execution, W_q, W_k)
            # five hundred times what the right reading may differ; a left-out gain of DeepSeek's differs least
            assert found.heads.max() > 0.05 and found.layer > 0.05, way


def test_a_wrong_number_of_heads_is_noticed(proof):
    """All heads as one have the right sum, and only that."""
    execution = proof.executions["fused"][0]
    W_q, W_k = (W.flatten(1)[:, None] for W in proof.weights(execution.layer))
    found = mismatch(execution, W_q, W_k)
    assert found.heads.min() > 0.1 and found.layer < 1e-4


def test_wrong_readings_cover_every_way_of_storing():
    ways = (SeparateLinear, FusedRows, FusedPerHead, FusedConv1D, DeepSeek)
    assert all(isinstance(layout, ways) for layout in all_layouts().values())
    assert all(any(isinstance(layout, way) for layout in all_layouts().values()) for way in ways)


def test_without_config_json_the_stated_heads_give_the_same_weights(proof, tmp_path):
    saved = weight_file(proof.checkpoint)
    lone = tmp_path / saved.name
    lone.symlink_to(saved)
    sizes = proof.manifest["snapshots"]["final"]["layers"][0]
    heads = Heads(sizes["n_head"], sizes["n_kv_head"])
    opening = open_checkpoint(f"file:{lone}", architecture=proof.layout.model_types[0], heads=heads)
    if proof.layout.needs_config:
        with opening as opened, pytest.raises(ModelFault, match=r"without its config\.json"):
            extract(opened, proof.layout, tmp_path / "artifact", "tiny")
        return
    with opening as opened:
        again = extract(opened, layout_for(opened.config, proof.layout.part), tmp_path / "artifact", "tiny")
    assert again["snapshots"]["final"]["layers"] == proof.manifest["snapshots"]["final"]["layers"]
    assert (tmp_path / "artifact" / FILE).read_bytes() == (proof.artifact / FILE).read_bytes()


@pytest.mark.parametrize("name", WITH_CROSS)
def test_cross_attention_read_for_self_attention_fails_the_check(name, tmp_path):
    wrong = copy.copy(layout_named(name))
    wrong.tensors = {role: cross_attention(pattern) for role, pattern in wrong.tensors.items()}
    # SAM's cross-attentions are narrower, so there the config speaks against it
    with pytest.raises((AssertionError, ModelFault), match=r"this is no self-attention|does not fit the config"):
        extracted(wrong, wrong.cases[0], tmp_path)


@pytest.mark.parametrize("name", SEVERAL_PARTS)
def test_without_a_part_the_error_names_the_parts(name):
    layout = layout_named(name)
    for kind in layout.model_types:
        config = {"model_type": kind}
        parts = sorted(each.part for each in all_layouts().values() if each.reads(config))
        assert layout.part in parts and len(set(parts)) == len(parts) > 1
        assert layout_for(config, layout.part) is layout
        for part in (None, "tower"):
            with pytest.raises(UsageError, match=rf"the parts {', '.join(parts)}\n.*\n.*choose one with --part"):
                layout_for(config, part)


def test_a_t5_that_states_one_depth_has_it_in_both_parts():
    config = {"model_type": "t5", "num_layers": 6, "num_decoder_layers": None}
    assert [layout_for(config, part).n_layer(config) for part in ("encoder", "decoder")] == [6, 6]


def test_whispers_own_loader_reads_what_the_case_saves(tmp_path):
    import whisper

    case = layout_named("whisper_openai_encoder").cases[0]
    saved = build(case)
    loaded = whisper.load_model(str(weight_file(save(saved, case, tmp_path))), device="cpu")
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in saved.named_parameters())


def test_whisper_runs_with_both_of_its_attentions(tmp_path):
    """Its plain product has the scale in q and k; torch's fused attention is given them without."""
    layout = layout_named("whisper_openai_decoder")
    proof = extracted(layout, layout.cases[0], tmp_path)
    scales = {way: mismatch(found[0], *proof.weights(0)).scale for way, found in proof.executions.items()}
    assert scales == pytest.approx({"fused": 1, "eager": 6**-0.5})


@pytest.mark.faults
def test_a_whisper_file_whose_dims_lack_a_size_is_named(tmp_path):
    case = layout_named("whisper_openai_decoder").cases[0]
    file = weight_file(save(build(case), case, tmp_path))
    dims = {name: size for name, size in case.config.items() if name != "n_text_head"}
    torch.save({"dims": dims, "model_state_dict": stored_tensors(tmp_path)}, file)
    with open_checkpoint(f"file:{file}") as opened, pytest.raises(ModelFault, match="n_text_head"):
        extract(opened, layout_for(opened.config, "decoder"), tmp_path / "artifact", "tiny")


@pytest.mark.faults
def test_a_state_dict_without_dims_says_no_architecture(tmp_path):
    case = layout_named("whisper_openai_decoder").cases[0]
    file = weight_file(save(build(case), case, tmp_path))
    torch.save({"dims": None, "model_state_dict": stored_tensors(tmp_path)}, file)
    with pytest.raises(ModelFault, match=r"no config\.json"), open_checkpoint(f"file:{file}"):
        pass


_BERT, _LLAMA = all_layouts()["bert"].cases[0], all_layouts()["llama"].cases[1]
_SMALL = {"img_size": 32, "depth": 1}
_NARROW = {**_SMALL, "embed_dim": 24, "num_heads": 3}


@pytest.mark.parametrize(
    ("layout", "case", "bias", "position", "qk_norm"),
    [
        ("bert", _BERT, True, "learned", False),
        ("llama", _LLAMA, False, "rope", False),
        ("llama", Case("LlamaModel", {**_LLAMA.config, "attention_bias": True}), True, "rope", False),
        ("gpt2", all_layouts()["gpt2"].cases[0], True, "learned", False),
        (
            "timm_vit",
            Case("beit_base_patch16_224", {**_SMALL, "embed_dim": 24, "num_heads": 3}, "timm"),
            True,
            "relative",
            False,
        ),
        ("t5_encoder", all_layouts()["t5_encoder"].cases[0], False, "relative", False),
        ("bart_encoder", all_layouts()["bart_encoder"].cases[0], True, "learned", False),
        ("bart_encoder", all_layouts()["bart_encoder"].cases[3], True, "sinusoidal", False),
        ("bart_decoder", all_layouts()["bart_decoder"].cases[3], True, "learned", False),
        ("bart_decoder", all_layouts()["bart_decoder"].cases[5], True, "sinusoidal", False),
        ("whisper_openai_encoder", all_layouts()["whisper_openai_encoder"].cases[0], True, "sinusoidal", False),
        ("whisper_openai_decoder", all_layouts()["whisper_openai_decoder"].cases[0], True, "learned", False),
        ("vit", all_layouts()["vit"].cases[4], True, "learned", False),
        ("vit", all_layouts()["vit"].cases[6], True, "relative", False),
        ("vit_mae_encoder", all_layouts()["vit_mae_encoder"].cases[0], True, "sinusoidal", False),
        ("swin", all_layouts()["swin"].cases[0], True, "relative", False),
        ("swin", all_layouts()["swin"].cases[2], True, "relative", True),
        ("timm_swin", all_layouts()["timm_swin"].cases[0], True, "relative", False),
        ("timm_swin", all_layouts()["timm_swin"].cases[1], True, "relative", True),
        ("sam_encoder", all_layouts()["sam_encoder"].cases[0], True, "relative", False),
        ("seggpt", all_layouts()["seggpt"].cases[0], True, "relative", False),
        ("detr_encoder", all_layouts()["detr_encoder"].cases[0], True, "sinusoidal", False),
        ("detr_decoder", all_layouts()["detr_decoder"].cases[0], True, "learned", False),
        ("mllama_vision", all_layouts()["mllama_vision"].cases[0], False, "learned", False),
        ("mllama_text", all_layouts()["mllama_text"].cases[0], False, "rope", False),
        ("wav2vec2", all_layouts()["wav2vec2"].cases[0], True, "convolutional", False),
        ("wav2vec2", all_layouts()["wav2vec2"].cases[7], True, "relative", False),
        ("speecht5_encoder", all_layouts()["speecht5_encoder"].cases[0], True, "relative", False),
        ("musicgen_decoder", all_layouts()["musicgen_decoder"].cases[0], False, "sinusoidal", False),
        ("musicgen_encoder", all_layouts()["musicgen_encoder"].cases[0], False, "relative", False),
        ("timm_vit", Case("vit_tiny_patch16_224", {**_SMALL, "qkv_bias": False}, "timm", "pixels"), False, "learned", False),
        ("timm_vit", Case("vit_tiny_patch16_224", {**_SMALL, "qk_norm": True}, "timm", "pixels"), True, "learned", True),
    ],
)
def test_manifest_says_what_is_not_in_the_weights(layout, case, bias, position, qk_norm, tmp_path):
    folder = save(build(case), case, tmp_path / "checkpoint")
    with open_checkpoint(f"file:{folder}") as opened:
        flags = extract(opened, layout_named(layout), tmp_path / "artifact", "tiny")["not_in_W_qk"]
    assert (flags["bias"], flags["qk_norm"]) == (bias, qk_norm)
    assert flags["position"] == position


def test_with_qk_norm_the_weights_are_those_before_the_norm(tmp_path):
    case = Case("vit_tiny_patch16_224", {**_SMALL, "qk_norm": True}, "timm", "pixels")
    proof = extracted(layout_named("timm_vit"), case, tmp_path)
    (execution,) = proof.executions["fused"]
    assert mismatch(execution, *proof.weights(0)).heads.max() < 1e-4


@pytest.mark.parametrize(
    "architecture",
    [
        "aimv2_large_patch14_224",
        "beit_base_patch16_224",
        "beit_large_patch16_512",
        "beitv2_base_patch16_224",
        "deit_tiny_distilled_patch16_224",
        "deit_small_patch16_224",
        "deit3_small_patch16_224",
        "deit3_huge_patch14_224",
        "vit_tiny_patch16_224",
        "vit_base_patch32_224",
        "vit_small_patch14_reg4_dinov2",
        "vit_base_patch16_clip_224",
        "vit_base_patch16_siglip_224",
        "samvit_base_patch16",
    ],
)
def test_table_of_timms_plain_architectures_is_that_of_timm(architecture):
    with torch.device("meta"):
        blocks = timm.create_model(architecture, pretrained=False).blocks
    layout, config = layout_named("timm_vit"), {"architecture": f"{architecture}.some_pretraining"}
    assert layout_for(config) is layout
    assert layout.n_layer(config) == len(blocks)
    for number, block in enumerate(blocks):
        shape = layout.shape(config, number)
        assert (shape.d_model, shape.n_head) == (block.attn.qkv.in_features, block.attn.num_heads)
        assert layout.needs(shape)["q"].shape == tuple(block.attn.qkv.weight.shape)


@pytest.mark.parametrize("architecture", ["swin_tiny_patch4_window7_224", "swin_s3_base_224", "swinv2_large_window12_192"])
def test_table_of_timms_staged_architectures_is_that_of_timm(architecture):
    with torch.device("meta"):
        stages = timm.create_model(architecture, pretrained=False).layers
    layout, config = layout_named("timm_swin"), {"architecture": f"{architecture}.some_pretraining"}
    assert layout_for(config) is layout
    attentions = [block.attn for stage in stages for block in stage.blocks]
    assert layout.n_layer(config) == len(attentions)
    for number, attention in enumerate(attentions):
        shape = layout.shape(config, number)
        assert (shape.d_model, shape.n_head) == (attention.qkv.in_features, attention.num_heads)


@pytest.mark.parametrize(
    "layout", [layout for layout in all_layouts().values() if isinstance(layout, Timm)], ids=lambda layout: layout.name
)
def test_table_of_timm_architectures_names_nothing_that_timm_lacks(layout):
    assert set(layout.architectures()) <= set(timm.list_models())


def test_an_unknown_architecture_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ModelFault) as caught:
        layout_for({"model_type": "perceptron"})
    message = str(caught.value)
    assert "perceptron" in message
    assert all(kind in message for layout in all_layouts().values() for kind in layout.model_types)


def test_an_unknown_layout_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UsageError) as caught:
        layout_named("perceptron")
    assert all(name in str(caught.value) for name in all_layouts())


def test_a_part_is_refused_where_there_is_one_only():
    with pytest.raises(UsageError, match="one part only"):
        layout_for({"model_type": "bert"}, "decoder")


def test_timm_config_that_is_saved_names_the_architecture_alone(tmp_path):
    """What the table is for: a published timm config.json states no head count."""
    case = Case("vit_tiny_patch16_224", {"img_size": 32}, "timm", "pixels")
    config_file = save(build(case), case, tmp_path) / "config.json"
    config = json.loads(config_file.read_text())
    assert "num_heads" not in json.dumps(config)
    with open_checkpoint(f"file:{tmp_path}") as opened:
        manifest = extract(opened, layout_for(opened.config), tmp_path / "artifact", "tiny")
    assert manifest["n_layer"] == 12
    assert manifest["snapshots"]["final"]["layers"][0]["n_head"] == 3
