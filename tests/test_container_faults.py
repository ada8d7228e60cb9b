"""A broken checkpoint is an error that names the file and the tensor, what was found and what was expected."""

import collections
import json
import os
import pickle
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from qkgeom.containers import open_container
from qkgeom.errors import QkgeomError
from qkgeom.extraction import layer_weights
from qkgeom.layouts import layout_for
from qkgeom.locate import find_layers
from qkgeom.sources import open_checkpoint
from weight_files import (
    CONFIG,
    GGUF_FIELDS,
    N_LAYER,
    D,
    bert,
    extracted,
    fault,
    gguf_layer,
    key,
    query,
    rezip,
    write,
    write_gguf,
    write_index,
    write_shards,
)

pytestmark = pytest.mark.faults
ONE_LAYER = {**CONFIG, "num_hidden_layers": 1}


def safetensors_file(path: Path, header: object, data: bytes) -> Path:
    """A file with any header, well formed or not."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def entry(shape: list, start: int, stop: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize("part", ["length", "header", "data", "last byte"])
def test_truncated_safetensors(part, tmp_path):
    path = write(tmp_path, bert())
    data = path.read_bytes()
    header = int.from_bytes(data[:8], "little")
    keep = {"length": 5, "header": header // 2, "data": 8 + header + 1000, "last byte": len(data) - 1}[part]
    path.write_bytes(data[:keep])
    with fault("truncated", path, f"{keep} bytes", "expected:"):
        open_container(path)


def test_safetensors_cut_after_it_was_opened(tmp_path):
    path = write(tmp_path, bert())
    container = open_container(path)
    info = container.tensors[query(2)]
    os.truncate(path, info.start + 100)
    with fault("truncated", path, f"{info.start + 100} bytes", f"at least {info.stop} bytes"):
        container.read(query(2))


HEADERS = {
    "not JSON": (b"{'w': 1}", 0, "cannot be read"),
    "no object": ([1, 2], 0, "cannot be read"),
    "not UTF-8": (b'{"\xff": 1}', 0, "cannot be read"),
    "nested without end": (b"[" * 100_000, 0, "cannot be read"),
    "no dtype": ({"w": {"shape": [1], "data_offsets": [0, 4]}}, 4, "dtype"),
    "no stop": ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, 4, "cannot be read"),
    "endless shape": (b'{"w": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}', 4, "cannot be read"),
    "overlapping": ({"v": entry([2], 0, 8), "w": entry([2], 4, 12)}, 12, "tensor w"),
    "a gap": ({"v": entry([2], 0, 8), "w": entry([2], 12, 20)}, 20, "tensor w"),
    "backwards": ({"w": entry([2], 8, 0)}, 8, "tensor w"),
    "wrong product": ({"w": entry([2, 3], 0, 20)}, 20, "tensor w of F32 [2, 3] in 20 bytes"),
    "wrong product of 8 bits": ({"w": entry([4], 0, 5, "F8_E4M3")}, 5, "tensor w"),
    "data too long": ({"w": entry([2], 0, 8)}, 9, "bytes"),
    "data too short": ({"w": entry([2], 0, 8)}, 7, "bytes"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_safetensors_header_that_is_wrong(case, tmp_path):
    header, n_byte, named = HEADERS[case]
    path = safetensors_file(tmp_path / "w.safetensors", header, bytes(n_byte))
    with fault("damaged", path, "found:", named, "expected:"):
        open_container(path)


def test_safetensors_header_longer_than_the_format_allows(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes((10**12).to_bytes(8, "little") + b"{}")
    with fault("damaged", path, 10**12, "expected:"):
        open_container(path)


def weights_in(where: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """W_q and W_k of every layer, without an artifact."""
    with open_checkpoint(f"file:{where}") as opened:
        layout = layout_for(opened.config)
        return [layer_weights(opened, layout, layer)[:2] for layer in find_layers(opened, layout)]


@pytest.mark.parametrize("kind", ["safetensors", "bin", "gguf"])
def test_a_flipped_bit_is_refused_or_changes_nothing(kind, tmp_path):
    """Outside the tensors' own bytes: safetensors and GGUF hold no checksum of these, torch's archives do."""
    if kind == "gguf":
        path = write_gguf(tmp_path / "model.gguf", gguf_layer(), GGUF_FIELDS)
    else:
        path = write(tmp_path, bert(1), "model.safetensors" if kind == "safetensors" else "pytorch_model.bin", ONE_LAYER)
    data, truth = path.read_bytes(), weights_in(path)
    held = {byte for info in open_container(path).tensors.values() for byte in range(info.start, info.stop)}
    positions = [byte for byte in range(len(data)) if byte not in held][:: 5 if kind == "bin" else 1]
    refused = 0
    for position in positions:
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            found = weights_in(path)
        except QkgeomError:
            refused += 1
            continue
        assert len(found) == len(truth)
        for one, other in zip(found, truth, strict=True):
            assert all(map(np.array_equal, one, other)), f"bit {position % 8} of byte {position}"
    assert refused > len(positions) / 4


def test_no_weights_in_a_file(tmp_path):
    path = tmp_path / "model.safetensors"
    path.touch()
    with fault("empty", path, "0 bytes", "expected:"):
        open_container(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 440449768\n")
    with fault("Git LFS pointer", path, "found:    version", "expected:", "git lfs pull"):
        open_container(path)
    with fault("No such file", tmp_path / "none"):
        open_container(tmp_path / "none")
    path.write_text("<!DOCTYPE html><html><body>Please log in</body></html>")
    with fault("damaged", path, "expected:"):
        open_container(path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_are_packed_integers(dtype, file, tmp_path):
    tensors = bert()
    tensors[query(1)] = tensors[query(1)].to(dtype)
    path = write(tmp_path, tensors, file)
    found = open_container(path).tensors[query(1)].dtype
    assert found.lower() in (str(dtype).removeprefix("torch."), "i8", "u8", "f8_e4m3")
    with fault("cannot be read as numbers", path, query(1), f"found:    {found}", "expected: one of F64, F32, F16, BF16"):
        extracted(tmp_path, tmp_path / "artifact")
    assert not (tmp_path / "artifact" / "manifest.json").exists()
    assert not list((tmp_path / "artifact").glob("*.safetensors"))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated_torch_archive(share, tmp_path):
    path = write(tmp_path, bert(), "pytorch_model.bin")
    os.truncate(path, int(path.stat().st_size * share))
    with fault("torch checkpoint is truncated", path, "found:", "expected:"):
        open_container(path)


def test_a_bit_flipped_inside_a_storage(tmp_path):
    path = write(tmp_path, bert(), "pytorch_model.bin")
    info = open_container(path).tensors[key(1)]
    data = bytearray(path.read_bytes())
    data[info.start + 50] ^= 4
    path.write_bytes(data)
    container = open_container(path)
    container.read(query(1))
    with fault("checksum", path, key(1), "found:    CRC32", "expected:"):
        container.read(key(1))


def test_a_bit_flipped_inside_the_pickle(tmp_path):
    path = write(tmp_path, {"w": torch.randn(3, 4)}, "pytorch_model.bin")
    data = path.read_bytes()
    assert data.count(b"K\x04K\x01\x86") == 1  # the strides (4, 1); with (0, 1) all rows would be the first
    path.write_bytes(data.replace(b"K\x04K\x01\x86", b"K\x00K\x01\x86"))
    with fault("damaged", path, "data.pkl", "expected:"):
        open_container(path)


@pytest.mark.parametrize("wrong", [b"K\x53K\x04\x86", b"K\x03K\x53\x86"])
def test_a_tensor_larger_than_its_storage(wrong, tmp_path):
    """Nothing outside the storage is ever read."""
    path = write(tmp_path, {"w": torch.randn(3, 4)}, "pytorch_model.bin")
    larger = rezip(path, tmp_path / "larger.bin", lambda name, data: data.replace(b"K\x03K\x04\x86", wrong))
    with fault("damaged", larger, "tensor w", "expected:"):
        open_container(larger)


def test_compressed_torch_archive(tmp_path):
    path = write(tmp_path, bert(), "pytorch_model.bin")
    with fault("compressed", tmp_path / "small.bin", "found:", "stored records"):
        open_container(rezip(path, tmp_path / "small.bin", compression=zipfile.ZIP_DEFLATED))


def test_zip_archive_that_is_no_checkpoint(tmp_path):
    path = tmp_path / "w.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no weights")
    with fault("torch checkpoint", path, "found:", "expected:"):
        open_container(path)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.99])
def test_truncated_legacy_torch_file(share, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(bert(), path, _use_new_zipfile_serialization=False)
    os.truncate(path, max(9, int(path.stat().st_size * share)))
    with fault("torch checkpoint is truncated", path, "found:", "expected:"):
        open_container(path)


def test_a_pickle_of_another_program(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps({"a": 1}, protocol=2))
    with fault("pickle", path, "found:    a bare pickle", "expected: safetensors"):
        open_container(path)


class _RunsCode:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_not_run(zipped, tmp_path):
    marker, path = tmp_path / "was here", tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.randn(2, 2), "evil": _RunsCode(marker)}, path, _use_new_zipfile_serialization=zipped)
    with fault("found:    the global getattr\n", path, "expected:", "nothing in it was run"):
        open_container(path)
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists(), "the pickle would not have run anything"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ((os.mkdir, "/nowhere"), "found:    the global posix.mkdir\n"),  # of a module that torch blocks
        ((eval, "1"), "found:    the global eval\n"),
        ((collections.deque, [1]), "found:    the global collections.deque\n"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_what_a_refused_pickle_asks_for_is_named(zipped, harm, said, tmp_path):
    class Asks:
        def __reduce__(self):
            return harm[0], harm[1:]

    torch.save({"w": Asks()}, tmp_path / "w.bin", _use_new_zipfile_serialization=zipped)
    with fault(said, tmp_path / "w.bin"):
        open_container(tmp_path / "w.bin")


def test_torch_file_without_a_state_dict(tmp_path):
    path = tmp_path / "w.pt"
    torch.save([torch.randn(2)], path)
    with fault("found:    a list", path, "expected: a state dict"):
        open_container(path)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.5, 0.99])
def test_truncated_gguf(share, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", gguf_layer(), GGUF_FIELDS)
    size = int(path.stat().st_size * share)
    os.truncate(path, size)
    with fault("truncated", path, f"{size} bytes", "expected:"):
        open_container(path)


@pytest.mark.timeout(30)
def test_gguf_with_a_damaged_length_ends_at_once(tmp_path):
    """The gguf package alone would count to the length."""
    path = write_gguf(tmp_path / "m.gguf", gguf_layer(), GGUF_FIELDS)
    before, name, after = path.read_bytes().partition((8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama")
    assert name
    numbers = (9).to_bytes(4, "little") + (4).to_bytes(4, "little") + (2**60).to_bytes(8, "little")  # an array of uint32
    path.write_bytes(before + numbers + after + bytes(-len(after) % 4))
    with fault("damaged", path, "the file ends", "expected:"):
        open_container(path)


def test_a_config_that_states_billions_of_layers(tmp_path):
    write(tmp_path, bert(), config={**CONFIG, "num_hidden_layers": 2**40})
    with fault("lacks layers", "missing [3, 4,", f"{2**40} layers"):
        extracted(tmp_path, tmp_path / "artifact")


@pytest.mark.parametrize("kind", ["Q8_K", "I8"])
def test_gguf_type_that_the_gguf_package_cannot_dequantise(kind, tmp_path):
    path, n_byte = tmp_path / "m.gguf", {"Q8_K": 4 + 256 + 32, "I8": 256}[kind]
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in {**GGUF_FIELDS, "embedding_length": 256}.items():
        writer.add_uint32(f"llama.{name}", value)
    for which, rows in (("q", 256), ("k", 128)):
        data = np.zeros((rows, n_byte), np.uint8 if kind == "Q8_K" else np.int8)
        writer.add_tensor(f"blk.0.attn_{which}.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with fault("cannot be read as numbers", path, "blk.0.attn_q.weight", f"found:    {kind}", "expected:"):
        extracted(path, tmp_path / "artifact")


def without(name: str) -> dict[str, torch.Tensor]:
    return {each: tensor for each, tensor in bert().items() if each != name}


MISFITS = {
    "neither Q nor K": (lambda: {"embeddings.weight": torch.randn(5, D)}, ["no query or key", "embeddings.weight", "query"]),
    "names of another architecture": (
        lambda: {name.replace("attention.self", "attn"): tensor for name, tensor in bert().items()},
        ["no query or key", "encoder.layer.2.attn.query.weight", "encoder.layer.{N}.attention.self.query.weight"],
    ),
    "Q without K": (lambda: without(key(1)), ["layer 1", query(1), "none of k", "found:", "expected:"]),
    "K without Q": (lambda: without(query(2)), ["layer 2", key(2), "none of q", "found:", "expected:"]),
    "a layer missing": (
        lambda: {name: tensor for name, tensor in bert().items() if ".1." not in name},
        ["lacks layers", "2 layers; missing [1]", "3 layers"],
    ),
    "the last layer missing": (lambda: bert(N_LAYER - 1), ["lacks layers", "missing [2]", "3 layers"]),
    "a surplus layer": (lambda: bert(N_LAYER + 1), ["surplus layers", "surplus [3]", "3 layers"]),
    "another width": (
        lambda: {**bert(), query(1): torch.randn(D, D + 1)},
        ["shape", "model.safetensors", query(1), f"[{D}, {D + 1}]", f"[{D}, {D}]"],
    ),
    "fewer rows": (
        lambda: {**bert(), key(0): torch.randn(D // 2, D)},
        ["shape", "model.safetensors", key(0), f"[{D // 2}, {D}]", f"[{D}, {D}]"],
    ),
    "no matrix": (lambda: {**bert(), key(0): torch.randn(D * D)}, ["shape", key(0), f"[{D * D}]", f"[{D}, {D}]"]),
    "two towers": (
        lambda: {f"{tower}.{name}": tensor.clone() for name, tensor in bert().items() for tower in ("question", "answer")},
        ["several towers", f"question.{query(0)}", f"answer.{query(0)}", "one prefix"],
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_tensors_that_do_not_fit_the_config(case, tmp_path):
    tensors, named = MISFITS[case]
    write(tmp_path, tensors())
    with fault(tmp_path, "found:", "expected:", *named):
        extracted(tmp_path, tmp_path / "artifact")
    assert not (tmp_path / "artifact").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_attention_heads": 5}, ["found:", "expected:"]),
        ({"hidden_size": 48}, ["shape", query(0), f"[{D}, {D}]", "[48, 48]"]),
        ({"num_hidden_layers": 4}, ["lacks layers", "missing [3]", "4 layers"]),
        ({"num_hidden_layers": None}, ["does not state num_hidden_layers"]),
        ({"num_attention_heads": "three"}, ["does not state num_attention_heads", "three", "positive whole number"]),
    ],
)
def test_a_config_that_does_not_fit_the_tensors(change, named, tmp_path):
    write(tmp_path, bert(), config={**CONFIG, **change})
    with fault(*named):
        extracted(tmp_path, tmp_path / "artifact")


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_that_do_not_fit_together(kind, tmp_path):
    stem = "model" if kind == "safetensors" else "pytorch_model"
    whole, second = f"{stem}.{kind}", f"{stem}-00002-of-00002.{kind}"
    listed = write_shards(tmp_path, bert(), kind)
    write_index(tmp_path, whole, {**listed, "pooler.weight": second})
    with fault(f"{whole}.index.json", f"pooler.weight in {second}", "expected:"):
        extracted(tmp_path, tmp_path / "artifact")
    write_index(tmp_path, whole, {**listed, query(0): next(file for file in listed.values() if file != listed[query(0)])})
    with fault(f"{whole}.index.json", query(0), "expected:"):
        extracted(tmp_path, tmp_path / "artifact")
    write_index(tmp_path, whole, listed)
    (tmp_path / second).unlink()
    with fault("incomplete", tmp_path, second, "found:", "expected:"):
        extracted(tmp_path, tmp_path / "artifact")
    (tmp_path / f"{whole}.index.json").unlink()
    with fault("incomplete", tmp_path, "found:", "expected:"):
        extracted(tmp_path, tmp_path / "artifact")


@pytest.mark.parametrize("index", [True, False])
def test_one_tensor_in_two_files(index, tmp_path):
    listed = write_shards(tmp_path, bert(), "safetensors", index)
    other = next(file for file in sorted(set(listed.values())) if file != listed[query(0)])
    held = {name: torch.randn(D, D) for name, file in listed.items() if file == other} | {query(0): torch.randn(D, D)}
    write(tmp_path, held, other)
    with fault("two files", query(0), tmp_path, "found:", *set(listed.values()), "expected:"):
        extracted(tmp_path, tmp_path / "artifact")


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_config_that_is_no_json_object(text, tmp_path):
    write(tmp_path, bert())
    (tmp_path / "config.json").write_text(text)
    with fault("config.json", tmp_path, "found:", "expected:"):
        extracted(tmp_path, tmp_path / "artifact")


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": {}}', '{"weight_map": [1]}'])
def test_an_index_that_is_none(text, tmp_path):
    write_shards(tmp_path, bert(), "safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with fault("model.safetensors.index.json", tmp_path, "found:"):
        extracted(tmp_path, tmp_path / "artifact")


def test_folder_without_a_checkpoint_or_with_several(tmp_path):
    with fault("no weights", tmp_path, "found:    nothing", "expected:"):
        extracted(tmp_path, tmp_path / "artifact")
    for name in ("one", "two"):
        write(tmp_path, bert(), f"{name}.safetensors")
    with fault("several checkpoints", tmp_path, "one.safetensors, two.safetensors", "expected: model.safetensors"):
        extracted(tmp_path, tmp_path / "artifact")
    with fault("no such file", tmp_path / "none"):
        extracted(tmp_path / "none", tmp_path / "artifact")


def test_without_config_json_the_fault_says_what_to_give(tmp_path):
    write(tmp_path, bert())
    (tmp_path / "config.json").unlink()
    with fault("no config.json", tmp_path, "expected:", "--architecture", "--n-head"):
        extracted(tmp_path, tmp_path / "artifact")


def test_gguf_of_a_layout_that_reads_none(tmp_path):
    fields = {**GGUF_FIELDS, "attention.head_count_kv": 4}
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.attn_qkv.weight": (np.ones((192, 64), np.float32), "F32")}, fields, "gpt2")
    with fault("gpt2", path, "GGUF", "do:"):
        extracted(path, tmp_path / "artifact")
