"""Every file format gives the numbers that the format's own library wrote, whole and by rows, and in little memory."""

import tracemalloc
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from checkpoints import extract
from qkgeom.containers import open_container
from qkgeom.layouts import layout_for
from qkgeom.sources import open_checkpoint
from weight_files import (
    CONFIG,
    GGUF_FIELDS,
    N_LAYER,
    assert_bert,
    bert,
    extracted,
    gguf_layer,
    key,
    query,
    raw,
    rezip,
    write,
    write_gguf,
    write_shards,
)

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def assert_holds(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """The file gives each tensor's shape and exact values, whole and by rows."""
    container = open_container(path)
    for name, tensor in tensors.items():
        array = container.read(name).array
        assert array.shape == tuple(tensor.shape) == container.tensors[name].shape
        assert raw(array) == raw(tensor)
        assert raw(container.read(name, (1, 4)).array) == raw(tensor[1:4])


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(file, dtype, tmp_path):
    tensors = bert(dtype=DTYPES[dtype])
    path = write(tmp_path, tensors, file)
    assert {info.dtype for info in open_container(path).tensors.values()} == {dtype}
    assert_holds(path, tensors)
    assert_bert(extracted(tmp_path, tmp_path / "artifact"), tensors)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("index", [True, False])
def test_shards_with_and_without_index(kind, index, tmp_path):
    tensors = bert()
    write_shards(tmp_path, tensors, kind, index)
    assert_bert(extracted(tmp_path, tmp_path / "artifact"), tensors)


@pytest.mark.parametrize("dtype", DTYPES)
def test_artifact_opens_with_the_safetensors_library(dtype, tmp_path):
    tensors = bert(dtype=DTYPES[dtype])
    write(tmp_path, tensors)
    extracted(tmp_path, tmp_path / "artifact")
    path = tmp_path / "artifact" / "final.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        assert set(file.keys()) == {f"layer.{layer:03d}.{W}" for layer in range(N_LAYER) for W in ("W_q", "W_k")}
        assert file.metadata()["model"] == "tiny"
        for layer in range(N_LAYER):
            assert torch.equal(file.get_tensor(f"layer.{layer:03d}.W_q").flatten(1), tensors[query(layer)].T)
            assert torch.equal(file.get_tensor(f"layer.{layer:03d}.W_k").flatten(1), tensors[key(layer)].T)


def test_safetensors_header_of_any_length(tmp_path):
    """The file's first byte is the length's lowest; 0x80 there also begins a pickle."""
    for length in range(64):
        path = tmp_path / f"{length}.safetensors"
        tensors = {"w": torch.randn(6, 2)}
        safetensors.torch.save_file(tensors, path, metadata={"padding": "x" * 8 * length})
        assert_holds(path, tensors)
    first_bytes = {path.read_bytes()[0] for path in tmp_path.iterdir()}
    assert 0x80 in first_bytes


@pytest.mark.parametrize("zipped", [True, False])  # torch before 1.6 wrote no zip
def test_torch_views_share_one_storage(zipped, tmp_path):
    base = torch.randn(10, 12)
    tensors = {
        "offset": base[3:8],
        "transposed": base.T,
        "every second row": base[::2],
        "columns": base[:, 5:9],
        "tied": base,
        "turned and cut": base.T[2:9, 1::3],
        "repeated": torch.randn(6, 1).expand(6, 4),
    }
    path = tmp_path / "views.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    assert_holds(path, tensors)
    container = open_container(path)
    assert container.tensors["offset"].start == container.tensors["tied"].start
    assert container.read("columns", (0, 2)).origin["bytes"][1] - container.read("tied").origin["bytes"][0] == 10 * 12 * 4


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model", "module"])
def test_torch_state_dict_nested_beside_other_things(wrapper, tmp_path):
    tensors = bert()
    path = tmp_path / "model.pt"
    torch.save({"epoch": 3, "args": {"lr": 0.1}, wrapper: tensors}, path)
    assert set(open_container(path).tensors) == set(tensors)
    assert_holds(path, tensors)


def test_torch_archive_of_an_older_torch_or_another_zip_tool(tmp_path):
    """Without torch's own alignment records, offsets come from the zip directory."""
    tensors = bert()
    path = rezip(write(tmp_path, tensors, "pytorch_model.bin"), tmp_path / "again.bin")
    assert_holds(path, tensors)


def test_checkpoint_offset_says_where_a_storage_lies(tmp_path):
    """The private attribute of torch that containers/torch_zip.py stands on."""
    path = write(tmp_path, {"a": torch.randn(3, 7), "b": torch.randn(5, 2)}, "pytorch_model.bin")
    data = path.read_bytes()
    whole = torch.load(path, weights_only=True)
    for name, tensor in torch.load(path, map_location="meta", weights_only=True).items():
        storage = tensor.untyped_storage()
        assert storage.device.type == "meta"
        assert data[storage._checkpoint_offset :][: storage.nbytes()] == raw(whole[name])


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_extraction_holds_three_tensors_at_most(file, tmp_path):
    """A layer's q and k, and the copy that is being written."""
    d, n_layer = 384, 12
    tensors = {name: torch.randn(d, d) for layer in range(n_layer) for name in (query(layer), key(layer))}
    path = write(tmp_path, tensors, file, {**CONFIG, "hidden_size": d, "num_hidden_layers": n_layer})
    del tensors
    with open_checkpoint(f"file:{tmp_path}") as opened:
        layout = layout_for(opened.config)
        tracemalloc.start()
        try:
            extract(opened, layout, tmp_path / "artifact", "tiny")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 3 * (4 * d * d) + 2**18 < path.stat().st_size / 5


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_gguf_gives_what_the_gguf_package_dequantises(kind, tmp_path):
    tensors = gguf_layer(kind)
    container = open_container(write_gguf(tmp_path / "m.gguf", tensors, GGUF_FIELDS))
    for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert container.tensors[tensor.name].shape == expected.shape == tensors[tensor.name][0].shape
        assert np.array_equal(container.read(tensor.name).array.astype(np.float32), expected)
        assert np.array_equal(container.read(tensor.name, (1, 4)).array.astype(np.float32), expected[1:4])
    assert container.tensors["blk.0.attn_q.weight"].dtype == kind
    ((W_q, W_k),) = extracted(tmp_path / "m.gguf", tmp_path / "artifact")
    q, k = (container.read(f"blk.0.attn_{which}.weight").array.astype(np.float32) for which in "qk")
    assert W_q.dtype == (np.float32 if kind.startswith("Q") else container.read("blk.0.attn_q.weight").array.dtype)
    assert np.array_equal(W_q.astype(np.float32).reshape(64, 64), q.T)
    assert np.array_equal(W_k.astype(np.float32).reshape(64, 32), k.T)


def test_gguf_fields_stand_in_for_config_json(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", gguf_layer(), {**GGUF_FIELDS, "attention.key_length": 16})
    assert open_container(path).config == {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }


def llama_cpp_order(weight: np.ndarray, n_head: int) -> np.ndarray:
    """The rows of a q or k weight as llama.cpp's converter reorders them.

    Source: llama.cpp, conversion of LLaMA, `permute`.
    """
    rows, columns = weight.shape
    return weight.reshape(n_head, 2, rows // n_head // 2, columns).swapaxes(1, 2).reshape(weight.shape)


def per_head(W_q: np.ndarray, W_k: np.ndarray) -> np.ndarray:
    """W_qk of every query head, [n_head, d_model, d_model]."""
    paired = np.repeat(W_k, W_q.shape[1] // W_k.shape[1], axis=1)
    return np.einsum("dhe,fhe->hdf", W_q.astype(np.float64), paired.astype(np.float64))


@pytest.mark.parametrize("n_kv_head", [4, 2, 1])
def test_llama_cpp_reordering_of_rows_changes_no_head(n_kv_head, tmp_path):
    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=n_kv_head,
        num_hidden_layers=2,
        intermediate_size=16,
        vocab_size=9,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "published")
    fields = {"embedding_length": 32, "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": n_kv_head}
    same, one_sided = {}, {}
    for number, layer in enumerate(model.model.layers):
        q, k = (projection.weight.detach().numpy() for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj))
        names = f"blk.{number}.attn_q.weight", f"blk.{number}.attn_k.weight"
        turned = llama_cpp_order(q, 4), llama_cpp_order(k, n_kv_head)
        same |= {name: (array, "F32") for name, array in zip(names, turned, strict=True)}
        one_sided |= {name: (array, "F32") for name, array in zip(names, (turned[0], k), strict=True)}
    published = extracted(tmp_path / "published", tmp_path / "a")
    reordered = extracted(write_gguf(tmp_path / "same.gguf", same, fields), tmp_path / "b")
    broken = extracted(write_gguf(tmp_path / "one_sided.gguf", one_sided, fields), tmp_path / "c")
    assert len(published) == len(reordered) == len(broken) == 2
    for layer in range(2):
        assert not np.array_equal(published[layer][0], reordered[layer][0])
        truth = per_head(*published[layer])
        assert np.linalg.norm(per_head(*reordered[layer]) - truth) < 1e-6 * np.linalg.norm(truth)
        assert np.linalg.norm(per_head(*broken[layer]) - truth) > 0.1 * np.linalg.norm(truth)
