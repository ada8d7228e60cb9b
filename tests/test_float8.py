"""Weights of 8-bit floats with scales per block, as DeepSeek-V3 and others publish them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

from checkpoints import extract
from contract import build, save, stored_tensors
from qkgeom.artifacts import read_layer, read_manifest
from qkgeom.layouts import layout_for, layout_named
from qkgeom.layouts.base import Case
from qkgeom.sources import open_checkpoint
from weight_files import fault

FILE = "final.safetensors"
ROOMY = {"hidden_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 50}
CASES = {  # layout, model, size of its blocks (none stated: 128 x 128)
    "MLA": ("deepseek", layout_named("deepseek").cases[2], (8, 5)),
    "separate": ("llama", Case("LlamaModel", {**ROOMY, "num_hidden_layers": 2}), None),
    "fused, key rows in the middle of a block": ("phi3", layout_named("phi3").cases[1], (7, 9)),
}


def quantised(weight, block):
    """The weight's blocks as 8-bit floats, their scales, and what these are worth, block by block."""
    rows, columns = ((size + step - 1) // step for size, step in zip(weight.shape, block, strict=True))
    values, restored = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
    scales = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            at = (
                slice(row * block[0], (row + 1) * block[0]),
                slice(column * block[1], (column + 1) * block[1]),
            )
            scales[row, column] = weight[at].abs().max() / 448  # the largest E4M3 number
            values[at] = (weight[at] / scales[row, column]).to(torch.float8_e4m3fn)
            restored[at] = values[at].float() * scales[row, column]
    return values, scales, restored


def rewrite(folder, change, config=None):
    """Writes a saved checkpoint again with other tensors, and more in its config."""
    safetensors.torch.save_file(change, folder / "model.safetensors")
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | (config or {})))


def extracted(folder, into):
    with open_checkpoint(f"file:{folder}") as opened:
        return extract(opened, layout_for(opened.config), into, "tiny")


@pytest.fixture(params=CASES.values(), ids=CASES)
def checkpoint(request, tmp_path):
    """A checkpoint with 8-bit projections, and the same with the numbers that these stand for."""
    layout, case, block = request.param
    folder = save(build(case), case, tmp_path / "float8")
    tensors, plain = {}, {}
    for name, tensor in stored_tensors(folder).items():
        tensors[name] = plain[name] = tensor
        if "self_attn" in name and "norm" not in name and "o_proj" not in name:
            tensors[name], tensors[f"{name}_scale_inv"], plain[name] = quantised(tensor, block or (128, 128))
    stated = {"quantization_config": {"quant_method": "fp8", "weight_block_size": block}} if block else {}
    rewrite(folder, tensors, stated)
    rewrite(save(build(case), case, tmp_path / "plain"), plain)
    return folder, tmp_path / "plain", layout


def test_8_bit_weights_times_their_scales_are_stored_in_float32(checkpoint, tmp_path):
    float8, plain, _ = checkpoint
    manifest = extracted(float8, tmp_path / "a")
    extracted(plain, tmp_path / "b")
    for layer in range(manifest["n_layer"]):
        for ours, expected in zip(
            read_layer(tmp_path / "a", FILE, layer), read_layer(tmp_path / "b", FILE, layer), strict=True
        ):
            assert ours.dtype == np.float32
            assert np.array_equal(ours, expected)


def test_the_manifest_says_which_scales_were_applied(checkpoint, tmp_path):
    folder, _, _ = checkpoint
    extracted(folder, tmp_path / "artifact")
    snapshot = read_manifest(tmp_path / "artifact")["snapshots"]["final"]
    read = snapshot["layers"][1]["read"]
    weights = {key: record for key, record in read.items() if record["dtype"] == "F8_E4M3"}
    assert weights
    for key, record in weights.items():
        assert read[f"{key}_scales"]["tensor"] == record["tensor"] + "_scale_inv"
        assert read[f"{key}_scales"]["dtype"] == "F32"
    ranges = [record["bytes"] for layer in snapshot["layers"] for record in layer["read"].values()]
    assert snapshot["bytes"]["read"] == sum(stop - start for start, stop in ranges)


def test_scales_are_among_what_the_source_is_told_to_fetch(checkpoint, tmp_path):
    folder, _, _ = checkpoint
    told = []
    with open_checkpoint(f"file:{folder}") as opened:
        telling = replace(opened, expect=told.extend)
        manifest = extract(telling, layout_for(opened.config), tmp_path / "artifact", "tiny")
    read = [[*each["read"].values()] for each in manifest["snapshots"]["final"]["layers"]]
    assert [[[start, stop] for _, start, stop in group] for group in told] == [
        [each["bytes"] for each in group] for group in read
    ]
    assert any(each["tensor"].endswith("_scale_inv") for group in read for each in group)


@pytest.mark.faults
def test_scales_of_another_number_are_a_fault(checkpoint, tmp_path):
    folder, _, _ = checkpoint
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("_scale_inv"))
    rewrite(folder, tensors | {name: torch.ones(1, 3)})
    with fault("do not fit", name, folder, "found:    [1, 3]", "weight_block_size"):
        extracted(folder, tmp_path / "artifact")


@pytest.mark.faults
@pytest.mark.parametrize("block", [[128], [128, 0], 128, "wide"])
def test_a_block_of_no_size_is_a_fault(block, checkpoint, tmp_path):
    folder, _, _ = checkpoint
    rewrite(
        folder, safetensors.torch.load_file(folder / "model.safetensors"), {"quantization_config": {"weight_block_size": block}}
    )
    with fault("weight_block_size", f"found:    {block}", "two positive whole numbers"):
        extracted(folder, tmp_path / "artifact")


@pytest.mark.faults
def test_8_bit_weights_without_scales_are_a_fault(checkpoint, tmp_path):
    folder, _, _ = checkpoint
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    rewrite(folder, {name: tensor for name, tensor in tensors.items() if not name.endswith("_scale_inv")})
    with fault("cannot be read as numbers", "F8_E4M3", "with its scales"):
        extracted(folder, tmp_path / "artifact")
    assert not (tmp_path / "artifact" / "manifest.json").exists()
