"""What the configs and files of single language families need beyond the contract of test_layouts.py."""

import json
import re

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from checkpoints import extract
from contract import build, save, stored_tensors
from qkgeom.artifacts import read_layer
from qkgeom.errors import ModelFault
from qkgeom.layouts import all_layouts, layout_for, layout_named
from qkgeom.layouts.base import Case
from qkgeom.sources import open_checkpoint
from weight_files import fault, write_gguf

FILE = "final.safetensors"
FALCON = {"hidden_size": 64, "n_head": 8, "n_layer": 2}


def case_of(layout, model):
    """The layout's first case of a model class."""
    return next(case for case in layout_named(layout).cases if case.model == model)


@pytest.mark.parametrize(
    ("config", "n_kv_head"),
    [
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2}, 2),
        ({"model_type": "falcon", "new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 2}, 2),
        ({"model_type": "falcon", "new_decoder_architecture": False, "multi_query": True, "num_kv_heads": 8}, 1),
        ({"model_type": "falcon", "multi_query": False}, 8),
        ({"model_type": "falcon"}, 1),
        ({"model_type": "RefinedWeb", "n_head_kv": 2}, 2),
        ({"model_type": "RefinedWebModel", "multi_query": True}, 1),
        ({"model_type": "RefinedWebModel", "multi_query": False, "alibi": True}, 8),
    ],
)
def test_falcons_flags_say_how_many_key_heads_there_are(config, n_kv_head):
    layout = layout_for(config)
    shape = layout.shape(FALCON | config, 0)
    assert (layout.name, shape.n_head, shape.n_kv_head, shape.d_head) == ("falcon", 8, n_kv_head, 8)
    assert layout.n_layer(FALCON | config) == 2
    assert layout.position_in(config) == ("alibi" if config.get("alibi") else "rope")


def test_bloom_and_falcon_are_told_apart_by_the_config_alone(tmp_path):
    case = case_of("falcon", "FalconForCausalLM")
    folder = save(build(case), case, tmp_path)
    names = set(stored_tensors(folder))
    other = case_of("bloom", "BloomForCausalLM")
    bloom = save(build(other), other, tmp_path / "bloom")
    fused = {name for name in names if name.endswith("query_key_value.weight")}
    assert fused == {name for name in stored_tensors(bloom) if name.endswith("query_key_value.weight")}
    with open_checkpoint(f"file:{folder}") as opened:
        assert layout_for(opened.config).name == "falcon"


@pytest.mark.faults
@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_a_head_size_that_does_not_follow_from_d_model_has_to_be_stated(name):
    config = {"model_type": name, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    with pytest.raises(ModelFault, match="does not state head_dim"):
        layout_for(config).shape(config, 0)
    assert layout_for(config).shape({**config, "head_dim": 32}, 0).d_head == 32


@pytest.mark.parametrize("sizes", [{}, {"num_attention_heads": 16, "num_key_value_heads": 8}])
def test_what_a_gemma_3_config_leaves_out_is_what_its_library_takes(sizes):
    """The published 4B config states neither heads nor their size, that of 12B no size."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, **sizes}
    config = {"model_type": "gemma3", "text_config": text}
    layout, theirs = layout_for(config), transformers.Gemma3Config(text_config=text).text_config
    shape = layout.shape(config, 0)
    assert layout.n_layer(config) == 34
    assert (shape.d_model, shape.n_head, shape.n_kv_head, shape.d_head) == (
        *(theirs.hidden_size, theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim),
    )


def test_gemma_3_of_a_gguf_has_its_sizes_beside_its_name():
    config = {"model_type": "gemma3", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4}
    shape = layout_for(config).shape(config | {"num_key_value_heads": 1, "head_dim": 256}, 0)
    assert (shape.d_model, shape.n_head, shape.n_kv_head, shape.d_head) == (1152, 4, 1, 256)


# published sizes, and what is known of the published tensors' shapes (row, column)
PUBLISHED = {
    "phi-4": ("Phi3Model", {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10}, {"qkv": (7680, 5120)}),
    "falcon-7b": ("FalconModel", {"hidden_size": 4544, "num_attention_heads": 71, "multi_query": True}, {"qkv": (4672, 4544)}),
    "falcon-40b": (
        "FalconModel",
        {"hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": True},
        {"qkv": (9216, 8192)},
    ),
    "gemma-3-4b": ("Gemma3TextModel", {"hidden_size": 2560}, {"q": (2048, 2560), "k": (1024, 2560)}),
    "deepseek-v3": (
        "DeepseekV3Model",
        {},
        {"q_a": (1536, 7168), "q_b": (24576, 1536), "kv_a": (576, 7168), "kv_b": (32768, 512)},
    ),
    "deepseek-v2-lite": (
        "DeepseekV2Model",
        {"hidden_size": 2048, "num_attention_heads": 16, "q_lora_rank": None, "first_k_dense_replace": 1},
        {"q_b": (3072, 2048), "kv_a": (576, 2048), "kv_b": (4096, 512)},
    ),
}


@pytest.mark.parametrize(("model", "sizes", "shapes"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_sizes_give_the_shapes_of_the_real_class(model, sizes, shapes):
    model_class = getattr(transformers, model)
    with torch.device("meta"):
        built = model_class(model_class.config_class(**sizes, num_hidden_layers=1, vocab_size=50, pad_token_id=0))
    config = built.config.to_dict()
    layout = layout_for(config)
    needs = layout.needs(layout.shape(config, 0))
    stored = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    for need in needs.values():
        pattern = layout.tensors[need.role].replace("{N}", "0")
        assert [shape for name, shape in stored.items() if re.fullmatch(pattern, name)] == [need.shape]
    assert shapes.items() <= {need.role: need.shape for need in needs.values()}.items()


def test_mla_is_stored_with_one_key_head(tmp_path):
    layout, case = layout_named("deepseek"), case_of("deepseek", "DeepseekV3ForCausalLM")
    folder = save(build(case), case, tmp_path / "checkpoint")
    with open_checkpoint(f"file:{folder}") as opened:
        manifest = extract(opened, layout, tmp_path / "artifact", "tiny")
    W_q, W_k = read_layer(tmp_path / "artifact", FILE, 2)
    assert (W_q.shape, W_k.shape) == ((24, 3, 14), (24, 1, 14))
    assert manifest["snapshots"]["final"]["layers"][2]["qk_nope_head_dim"] == 6


def test_mla_of_half_precision_is_computed_and_stored_in_float32(tmp_path):
    layout, case = layout_named("deepseek"), case_of("deepseek", "DeepseekV2ForCausalLM")
    weights = {}
    for dtype in (torch.bfloat16, torch.float32):
        model = build(case).to(torch.bfloat16).to(dtype)  # the same numbers
        folder = save(model, case, tmp_path / str(dtype))
        with open_checkpoint(f"file:{folder}") as opened:
            extract(opened, layout, folder / "artifact", "tiny")
        weights[dtype] = read_layer(folder / "artifact", FILE, 0)
    for ours, expected in zip(*weights.values(), strict=True):
        assert ours.dtype == expected.dtype == np.float32
        assert np.array_equal(ours, expected)


@pytest.fixture
def deepseek_v3(tmp_path):
    """A saved DeepSeek-V3: its folder, tensors and config."""
    case = case_of("deepseek", "DeepseekV3ForCausalLM")
    folder = save(build(case), case, tmp_path / "checkpoint")
    return folder, stored_tensors(folder), json.loads((folder / "config.json").read_text())


def extract_again(folder, tensors, config, into):
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with open_checkpoint(f"file:{folder}") as opened:
        return extract(opened, layout_for(opened.config), into, "tiny")


def test_layers_that_predict_further_tokens_are_left_out(deepseek_v3, tmp_path):
    folder, tensors, config = deepseek_v3
    extract_again(folder, tensors, config, tmp_path / "plain")
    further = {name.replace("layers.2", "layers.3"): 2 * each for name, each in tensors.items() if "layers.2" in name}
    extract_again(folder, tensors | further, config | {"num_nextn_predict_layers": 1}, tmp_path / "further")
    assert (tmp_path / "further" / FILE).read_bytes() == (tmp_path / "plain" / FILE).read_bytes()
    with fault("surplus layers", "surplus [3]", "3 layers"):
        extract_again(folder, tensors | further, config | {"num_nextn_predict_layers": 0}, tmp_path / "none")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("layers.1.self_attn.q_a_proj", ["layer 1", "but none of q_a", "layers.1.self_attn.q_a_proj.weight"]),
        ("layers.1.self_attn.kv_a_layernorm", ["layer 1", "but none of kv_a_norm"]),
    ],
)
def test_a_missing_tensor_of_mla_is_named(lost, named, deepseek_v3, tmp_path):
    folder, tensors, config = deepseek_v3
    with fault(*named):
        extract_again(folder, {name: each for name, each in tensors.items() if lost not in name}, config, tmp_path / "a")


@pytest.mark.faults
def test_a_config_of_mla_with_another_rank_is_a_fault(deepseek_v3, tmp_path):
    folder, tensors, config = deepseek_v3
    for change in ({"q_lora_rank": None}, {"kv_lora_rank": 9}, {"qk_nope_head_dim": 5}, {"v_head_dim": 6}):
        with fault("does not fit the config"):
            extract_again(folder, tensors, config | change, tmp_path / "artifact")


@pytest.mark.parametrize(
    ("layout", "model", "bias", "position", "qk_norm"),
    [
        ("deberta", "DebertaModel", True, "relative", False),
        ("deberta_v2", "DebertaV2Model", True, "relative", False),
        ("neobert", "NeoBERT", False, "rope", False),
        ("gpt_neo", "GPTNeoModel", False, "learned", False),
        ("gptj", "GPTJModel", False, "rope", False),
        ("opt", "OPTModel", True, "learned", False),
        ("bloom", "BloomModel", True, "alibi", False),
        ("falcon", "FalconModel", False, "rope", False),
        ("phi3", "Phi3Model", False, "rope", False),
        ("phi3small", "Phi3SmallForCausalLM", True, "rope", False),
        ("llama", "PhiModel", True, "rope", False),
        ("llama", "PhiForCausalLM", True, "rope", True),
        ("llama", "Qwen2ForCausalLM", True, "rope", False),
        ("llama", "Qwen3ForCausalLM", False, "rope", True),
        ("llama", "Gemma2ForCausalLM", False, "rope", False),
        ("llama", "Olmo2Model", False, "rope", True),
        ("gemma3", "Gemma3ForCausalLM", False, "rope", True),
        ("deepseek", "DeepseekV3ForCausalLM", False, "rope", True),
    ],
)
def test_manifest_says_what_is_not_in_the_weights(layout, model, bias, position, qk_norm, tmp_path):
    case = case_of(layout, model)
    folder = save(build(case), case, tmp_path / "checkpoint")
    with open_checkpoint(f"file:{folder}") as opened:
        flags = extract(opened, layout_for(opened.config), tmp_path / "artifact", "tiny")["not_in_W_qk"]
    assert flags == {"position": position, "bias": bias, "qk_norm": qk_norm}


def test_gemma_3_is_read_under_both_names_that_its_library_writes(tmp_path):
    case = case_of("gemma3", "Gemma3ForConditionalGeneration")
    weights = []
    for original in (True, False):
        folder = tmp_path / str(original)
        build(case).save_pretrained(folder, save_original_format=original)
        names = stored_tensors(folder)
        assert any(name.startswith("language_model.model." if original else "model.language_model.") for name in names)
        assert any("vision_tower" in name and name.endswith("self_attn.q_proj.weight") for name in names)
        with open_checkpoint(f"file:{folder}") as opened:
            extract(opened, layout_for(opened.config), folder / "artifact", "tiny")
        weights.append((folder / "artifact" / FILE).read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize("layout", [layout for layout in all_layouts().values() if layout.gguf], ids=lambda layout: layout.name)
def test_gguf_names_are_those_of_the_gguf_package(layout):
    architectures = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name in layout.model_types}
    assert architectures
    for kind in architectures.values():
        names = [gguf.TENSOR_NAMES[tensor].format(bid=7) + ".weight" for tensor in gguf.MODEL_TENSORS[kind]]
        for pattern in layout.gguf.values():
            assert [name for name in names if re.fullmatch(pattern.replace("{N}", "7"), name)], (kind, pattern)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf_of_phi_3_gives_what_its_safetensors_give(kind, tmp_path):
    config = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    case = Case("Phi3Model", {**config, **tokens, "intermediate_size": 32, "vocab_size": 50})
    folder = save(build(case), case, tmp_path / "checkpoint")
    qkv = stored_tensors(folder)["layers.0.self_attn.qkv_proj.weight"].numpy()
    assert gguf.MODEL_TENSOR.ATTN_QKV in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.PHI3]
    fields = {"embedding_length": 64, "block_count": 1, "attention.head_count": 4, "attention.head_count_kv": 2}
    path = write_gguf(tmp_path / "phi3.gguf", {"blk.0.attn_qkv.weight": (qkv, kind)}, fields, "phi3")
    for where, into in ((folder, "a"), (path, "b")):
        with open_checkpoint(f"file:{where}") as opened:
            extract(opened, layout_for(opened.config), tmp_path / into, "tiny")
    for whole, ours in zip(read_layer(tmp_path / "a", FILE, 0), read_layer(tmp_path / "b", FILE, 0), strict=True):
        assert whole.shape == ours.shape
        assert np.allclose(whole, ours, atol=0 if kind == "F32" else 5e-3)
