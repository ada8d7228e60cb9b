"""Checkpoints of several stacks, or of one in stages: scored from a file and from memory, and misread on purpose."""

import copy
import csv

import pandas as pd
import pytest
import timm
import torch
import transformers
from torch.nn import Module

import qkgeom as library
from checkpoints import extract
from contract import build, save
from project import qkgeom
from qkgeom.errors import ModelFault
from qkgeom.layouts import all_layouts, layout_for, layout_named
from qkgeom.scoring import score_artifact
from qkgeom.sources import open_checkpoint

OURS = [
    *("swin", "timm_swin", "mask2former_encoder", "mask2former_decoder", "sam_encoder", "sam_decoder", "seggpt"),
    *("detr_encoder", "detr_decoder", "imagegpt", "git_vision", "git_text", "clip_vision", "clip_text"),
    *("mllama_vision", "mllama_vision_global", "mllama_text", "vit_mae_encoder", "vit_mae_decoder", "wav2vec2"),
    *("speecht5_encoder", "speecht5_decoder", "musicgen_encoder", "musicgen_decoder"),
]


def separate(*attentions: Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(each.q_proj.weight, each.k_proj.weight) for each in attentions]


def fused(*attentions: Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [each.qkv.weight.chunk(3)[:2] for each in attentions]


# layout -> query and key weights of each layer, [out, in], by the modules of the model in memory
MODULES = {
    "swin": lambda model: separate(*(block.attention for stage in model.encoder.layers for block in stage.blocks)),
    "timm_swin": lambda model: fused(*(block.attn for stage in model.layers for block in stage.blocks)),
    "sam_encoder": lambda model: fused(*(layer.attn for layer in model.vision_encoder.layers)),
    "sam_decoder": lambda model: separate(*(layer.self_attn for layer in model.mask_decoder.transformer.layers)),
    "clip_vision": lambda model: separate(*(layer.self_attn for layer in model.vision_model.encoder.layers)),
    "clip_text": lambda model: separate(*(layer.self_attn for layer in model.text_model.encoder.layers)),
    "wav2vec2": lambda model: separate(*(layer.attention for layer in model.encoder.layers)),
    "musicgen_decoder": lambda model: separate(*(layer.self_attn for layer in model.decoder.model.decoder.layers)),
    "musicgen_encoder": lambda model: [
        (block.layer[0].SelfAttention.q.weight, block.layer[0].SelfAttention.k.weight)
        for block in model.text_encoder.encoder.block
    ],
}


def symmetry(W_q: torch.Tensor, W_k: torch.Tensor) -> float:
    """tr(M M) / ||M||^2 of the dense M; it does not need the heads."""
    M = (W_q.T @ W_k).detach().double()
    return float((M @ M).trace() / M.square().sum())


@pytest.mark.parametrize("name", MODULES)
def test_score_from_the_command_line_is_that_of_the_models_modules(name, tmp_path):
    layout = layout_named(name)
    case = next((case for case in layout.cases if case.model == "HubertModel"), layout.cases[0])
    model = build(case)
    folder, table = save(model, case, tmp_path / "checkpoint"), tmp_path / "scores.csv"
    part = ["--part", layout.part] if layout.part else []
    result = qkgeom("score", str(folder), "-o", str(table), *part)
    assert result.returncode == 0, result.stderr
    weights = MODULES[name](model)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["layer"]) for row in rows] == list(range(len(weights)))
    assert [int(row["d_model"]) for row in rows] == [W_q.shape[1] for W_q, _ in weights]
    assert [float(row["symmetry"]) for row in rows] == pytest.approx([symmetry(*pair) for pair in weights], abs=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_a_model_in_memory_has_the_scores_of_its_checkpoint(name, tmp_path):
    """In memory transformers 5 calls some weights by other names than in the file."""
    layout = layout_named(name)
    case = layout.cases[0]
    model = build(case)
    with open_checkpoint(f"file:{save(model, case, tmp_path / 'checkpoint')}") as opened:
        extract(opened, layout, tmp_path / "artifact", "model")
    stored = pd.DataFrame(score_artifact(tmp_path / "artifact", heads=True, device="cpu"))
    pd.testing.assert_frame_equal(library.score(model, part=layout.part, heads=True, device="cpu"), stored, rtol=1e-6)


def test_layers_are_numbered_through_the_stages_and_differ_in_width(tmp_path):
    case = layout_named("swin").cases[0]  # depths 2, 1, 3
    with open_checkpoint(f"file:{save(build(case), case, tmp_path / 'checkpoint')}") as opened:
        manifest = extract(opened, layout_for(opened.config), tmp_path / "artifact", "model")
    layers = manifest["snapshots"]["final"]["layers"]
    assert [layer["layer"] for layer in layers] == [0, 1, 2, 3, 4, 5]
    assert [(layer["d_model"], layer["n_head"]) for layer in layers] == [(8, 2)] * 2 + [(16, 4)] + [(32, 2)] * 3
    names = [layer["read"]["q"]["tensor"] for layer in layers]
    places = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert names == [f"encoder.layers.{stage}.blocks.{block}.attention.self.query.weight" for stage, block in places]


def test_layers_are_counted_past_those_that_have_no_self_attention(tmp_path):
    case = layout_named("mllama_text").cases[0]  # six layers, 1 and 3 with cross-attention
    with open_checkpoint(f"file:{save(build(case), case, tmp_path / 'checkpoint')}") as opened:
        manifest = extract(opened, layout_for(opened.config, "text"), tmp_path / "artifact", "model")
    layers = manifest["snapshots"]["final"]["layers"]
    assert [layer["layer"] for layer in layers] == [0, 1, 2, 3]
    names = [layer["read"]["q"]["tensor"] for layer in layers]
    assert names == [f"language_model.model.layers.{number}.self_attn.q_proj.weight" for number in (0, 2, 4, 5)]


def test_more_than_ten_stages_or_layers_are_in_the_order_of_their_numbers():
    layout, config = layout_named("swin"), {"embed_dim": 8, "depths": [1, 12], "num_heads": [2, 4]}
    assert list(layout.numbers(config)) == [(0, 0), *((1, block) for block in range(12))]
    assert [layout.shape(config, layer).d_model for layer in (0, 1, 12)] == [8, 16, 16]


def test_published_names_of_the_mae_decoder_are_read_too():
    """transformers 5 reads them, and saves others."""
    case = layout_named("vit_mae_decoder").cases[0]
    model = build(case)
    native = model.state_dict()
    ours = {"attention.q_proj": "attention.attention.query", "attention.k_proj": "attention.attention.key"}
    published = {name.replace(old, new): tensor for name, tensor in native.items() for old, new in ours.items() if old in name}
    assert "decoder.decoder_layers.0.attention.attention.query.weight" in published
    assert library.score(published, model.config, part="decoder").equals(library.score(model, part="decoder"))


@pytest.mark.parametrize(("kind", "config_class"), [("clip", "CLIPConfig"), ("siglip", "SiglipConfig")])
@pytest.mark.parametrize("part", ["vision", "text"])
def test_sizes_that_a_published_config_leaves_out_are_the_librarys(kind, config_class, part):
    whole = getattr(transformers, config_class)().to_dict()
    layout = layout_for({"model_type": kind}, part)
    sparse = {"model_type": kind, layout.section: {}}
    assert layout.n_layer(sparse) == layout.n_layer(whole) == whole[layout.section]["num_hidden_layers"]
    assert layout.shape(sparse, 0) == layout.shape(whole, 0)
    assert layout.shape(whole, 0).n_head == whole[layout.section]["num_attention_heads"]


def misread(name: str, **wrong) -> object:
    layout = copy.copy(layout_named(name))
    for attribute, value in wrong.items():
        setattr(layout, attribute, value)
    return layout


@pytest.mark.faults
@pytest.mark.parametrize(
    ("layout", "named"),
    [
        (misread("git_vision", section=None), ["surplus [2, 3]", "2 layers"]),  # the text decoder's depth
        (misread("clip_vision", section="text_config"), ["surplus [3]"]),
        (misread("mllama_vision", tensors=layout_named("mllama_vision_global").tensors), ["lacks layers", "missing [2]"]),
        (misread("mllama_text", numbers=lambda config: ((n,) for n in range(4))), ["lacks layers", "missing [1, 3]"]),
        (misread("mllama_text", section="vision_config"), ["does not state cross_attention_layers"]),
        (misread("timm_swin", tensors=layout_named("timm_vit").tensors), ["several towers", "layers.0.", "layers.1."]),
        (misread("musicgen_decoder", section="audio_encoder"), ["does not state num_hidden_layers"]),
        (misread("mask2former_encoder", section=None), ["does not state the stages", "depths"]),
        (misread("sam_decoder", section="prompt_encoder_config"), ["does not state"]),
    ],
)
def test_a_layout_that_takes_its_sizes_from_elsewhere_is_refused(layout, named, tmp_path):
    case = layout.cases[0]
    with open_checkpoint(f"file:{save(build(case), case, tmp_path)}") as opened, pytest.raises(ModelFault) as caught:
        extract(opened, layout, tmp_path / "artifact", "model")
    assert all(text in str(caught.value) for text in named), caught.value


@pytest.mark.faults
@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"depths": [2, 1, 2]}, ["surplus [2.2]", "5 layers"]),
        ({"depths": [2, 2, 3]}, ["lacks layers", "missing [1.1]", "7 layers"]),
        ({"depths": [2, 2**40, 3]}, ["lacks layers", "missing [1.1, 1.2,"]),
        ({"depths": [2, 1, 3], "num_heads": [2, 4]}, ["does not state the stages", "[2, 4]"]),
        ({"depths": None}, ["does not state the stages"]),
        ({"embed_dim": 16}, ["shape", "encoder.layers.0.blocks.0", "[8, 8]", "[16, 16]"]),
    ],
)
def test_stages_that_do_not_fit_the_config(config, named):
    case = layout_named("swin").cases[0]
    model = build(case)
    with pytest.raises(ModelFault) as caught:
        library.score(model.state_dict(), {**model.config.to_dict(), **config})
    assert all(text in str(caught.value) for text in named), caught.value


@pytest.mark.faults
def test_a_missing_tensor_of_a_stage_is_named():
    model = build(layout_named("swin").cases[0])
    missing = "encoder.layers.2.blocks.1.attention.k_proj.weight"
    state = {name: tensor for name, tensor in model.state_dict().items() if name != missing}
    with pytest.raises(ModelFault, match=r"layer 2\.1 has the tensor of q but none of k\n(.*\n)*.*layers\.2\.blocks\.1\."):
        library.score(state, model.config)


@pytest.mark.faults
def test_a_config_without_a_towers_section_is_named():
    model = build(layout_named("clip_vision").cases[0])
    with pytest.raises(ModelFault, match="no section vision_config"):
        library.score(model.state_dict(), {"model_type": "clip"}, part="vision")


@pytest.mark.faults
@pytest.mark.parametrize("architecture", ["resnet18", "xcit_nano_12_p16_224"])  # XCiT's `blocks.N.attn.qkv` attends to channels
def test_a_timm_model_of_another_kind_is_refused(architecture):
    with pytest.raises(ModelFault, match="no layout reads this timm model"):
        library.score(timm.create_model(architecture))


def test_every_layout_of_a_section_or_of_stages_is_tested_here():
    assert {name for name, layout in all_layouts().items() if layout.section or layout.needs_config} <= set(OURS)
