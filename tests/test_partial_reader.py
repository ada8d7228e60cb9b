"""Extraction from the hub by byte range: what is moved, what is checked, and what a kill leaves; with the real client."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import hub_server
from checkpoints import bert_config, llama_config, llama_tensors
from hub_server import Client, Hub, client, small_disk
from qkgeom.artifacts import read_layer, read_manifest
from weight_files import rezip

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client

N_LAYER, D = 6, 64
SIZES = {"d": D, "n_head": 4, "n_kv_head": 2, "n_layer": N_LAYER}
SHARDS = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = "model.safetensors.index.json"
WIDE = json.dumps(bert_config(256, 4, 1)).encode()
TRIES = 4  # what hub_client.py says


def tensors(seed: int) -> dict[str, np.ndarray]:
    """A LLaMA's query and key weights, each between others."""
    wanted = llama_tensors(seed, **SIZES)
    return {name: each for key, value in wanted.items() for name, each in ((f"{key}.other", value + 1), (key, value))}


def sharded(seed: int, spoil: Mapping[str, object] | None = None) -> dict[str, bytes]:
    """A repository of three shards, two layers each; `spoil` replaces entries of the index."""
    named = tensors(seed)
    where = {name: SHARDS[int(name.split(".")[2]) // 2] for name in named}
    shards = {shard: save({name: named[name] for name in named if where[name] == shard}) for shard in SHARDS}
    index = json.dumps({"weight_map": where | dict(spoil or {})}).encode()
    return {"config.json": json.dumps(llama_config(**SIZES)).encode(), INDEX: index, **shards}


def safetensors(header: object, data: bytes = b"") -> bytes:
    """A file with this header, whatever it says."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def header_size(file: bytes) -> int:
    return 8 + int.from_bytes(file[:8], "little")


def needed(files: Mapping[str, bytes], seed: int) -> int:
    """Bytes of the headers and of the query and key weights."""
    shards = [file for name, file in files.items() if name.endswith(".safetensors")]
    return sum(map(header_size, shards)) + sum(each.nbytes for each in llama_tensors(seed, **SIZES).values())


def assert_llama(folder: Path, seed: int) -> None:
    """The artifact holds the weights, transposed and cut into heads."""
    named = llama_tensors(seed, **SIZES)
    for layer in range(N_LAYER):
        for array, which in zip(read_layer(folder, "final.safetensors", layer), ("q", "k"), strict=True):
            expected = named[f"model.layers.{layer}.self_attn.{which}_proj.weight"]
            assert np.array_equal(array.reshape(D, -1), expected.T)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*") if path.is_file()) + sorted(path.name for path in folder.glob(".*"))


def extract(it: Client, repo: str, folder: Path) -> dict:
    """Extracts; gives the answer, with the manifest if there is one."""
    answer = it.verb("extract", f"hf:{repo}", "-o", folder, "--model", "m")
    return answer | {"manifest": read_manifest(folder) if (folder / "manifest.json").exists() else None}


def test_only_headers_and_the_needed_ranges_move(hub: Hub, hub_client: Client, tmp_path):
    files = sharded(1)
    hub.add("tiny/partial", files)
    answer = extract(hub_client, "tiny/partial", tmp_path / "a")
    assert_llama(tmp_path / "a", 1)
    assert left_in(tmp_path / "a") == ["digests.json", "final.safetensors", "manifest.json"]
    assert not answer["torch"]
    ranges = hub.ranges()
    sizes = [header_size(files[shard]) for shard in SHARDS]
    opening = sorted([(0, 8)] * 3 + [(8, size) for size in sizes])
    assert sorted(each[1:] for each in ranges if each[1:] in opening) == opening  # 8 bytes, then exactly the header
    assert sum(stop - start for _, start, stop in ranges) == needed(files, 1)
    served = sum(each.sent for each in hub.log if each.side == "storage" or "/resolve/" in each.path)
    source = answer["manifest"]["snapshots"]["final"]["source"]
    assert source["bytes_moved_in_all_runs"] == served == needed(files, 1) + len(files["config.json"]) + len(files[INDEX])
    assert answer["manifest"]["snapshots"]["final"]["bytes"]["read"] == needed(files, 1) - sum(sizes)
    asked = [each.path for each in hub.asked("/resolve/")]
    assert len(asked) == len(set(asked)) == 5  # one request per file, the rest at the address that it gave


def test_neighbours_are_one_request(hub: Hub, hub_client: Client, tmp_path):
    """q and k of a layer with a bias between them, as BERT stores them; of a fused weight only the rows of Q and K."""
    d = 64
    rng = np.random.default_rng(0)
    at = "encoder.layer.0.attention.self."
    shapes = {"key.bias": (d,), "key.weight": (d, d), "query.bias": (4,), "query.weight": (d, d), "value.weight": (d, d)}
    bert = {at + name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    fused = {"blocks.0.attn.qkv.weight": rng.standard_normal((3 * d, d)).astype(np.float32), "z": np.ones(3, np.float32)}
    vit = {"model_type": "timm_vit", "d_model": d, "n_head": 4, "n_layer": 1}
    for name, config, named, expected in (
        ("bert", bert_config(d, 4, 1), bert, 2 * d * d * 4 + 16),
        ("vit", vit, fused, 2 * d * d * 4),
    ):
        hub.reset()
        hub.add(f"tiny/next-{name}", {"config.json": json.dumps(config).encode(), "model.safetensors": save(named)})
        manifest = extract(hub_client, f"tiny/next-{name}", tmp_path / name)["manifest"]
        assert manifest["status"] == "ok", manifest
        (start, stop) = next(each[1:] for each in hub.ranges() if each[1] > 8)
        assert len(hub.ranges()) == 3 and stop - start == expected
    W_q, W_k = read_layer(tmp_path / "vit", "final.safetensors", 0)
    qkv = fused["blocks.0.attn.qkv.weight"]
    assert np.array_equal(W_q.reshape(d, d), qkv[:d].T) and np.array_equal(W_k.reshape(d, d), qkv[d : 2 * d].T)


def test_long_tensors_move_in_parts(hub: Hub, hub_client: Client, tmp_path):
    """Each part is 64 MiB at most, and several are on their way at a time."""
    d = 3072
    rng = np.random.default_rng(0)
    at = "encoder.layer.0.attention.self."
    named = {f"{at}{which}.weight": rng.standard_normal((d, d), dtype=np.float32) for which in ("query", "key", "value")}
    config = json.dumps(bert_config(d, 4, 1)).encode()
    hub.add("tiny/long", {"config.json": config, "model.safetensors": save(named)})
    hub.fail("storage GET", 1, stall=0.5)  # the first byte range, after which nothing waits
    assert extract(hub_client, "tiny/long", tmp_path / "a")["manifest"]["status"] == "ok"
    parts = [stop - start for _, start, stop in hub.ranges()]
    assert max(parts) <= 2**26 and len(parts) == 2 + 2 * 3
    W_q, W_k = read_layer(tmp_path / "a", "final.safetensors", 0)
    assert np.array_equal(W_q.reshape(d, d), named[f"{at}query.weight"].T)
    assert np.array_equal(W_k.reshape(d, d), named[f"{at}key.weight"].T)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("match", "times", "fault"),
    [
        ("storage GET", 3, {"status": 503}),
        ("storage GET", 2, {"status": 429, "headers": {"Retry-After": "2"}}),
        ("storage GET", 1, {"status": 408}),
        ("storage GET", 2, {"keep": 1000}),
        ("storage GET", 2, {"cut": 5}),
        ("storage GET", 1, {"stated": {"Content-Range": "bytes 5-9/10"}}),
        ("storage GET", 1, {"stated": {"ETag": '"another"'}}),
        ("HEAD .*00002", 2, {"status": 503}),
    ],
)
def test_faults_that_pass(hub: Hub, hub_client: Client, tmp_path, request, match, times, fault):
    """Faults of the headers are in test_hub.py; here the headers are known, so it is the weights' ranges that fail."""
    repo, seed = f"tiny/pass-{abs(hash(request.node.name))}", request.node.callspec.indices["match"] + 100
    files = sharded(seed)
    hub.add(repo, files)
    hub_client.fetch(repo)  # keeps the headers
    hub.reset()
    hub.fail(match, times, **fault)
    answer = extract(hub_client, repo, tmp_path / "a")
    assert answer["manifest"]["status"] == "ok", answer
    assert_llama(tmp_path / "a", seed)
    assert left_in(tmp_path / "a") == ["digests.json", "final.safetensors", "manifest.json"]
    moved = answer["manifest"]["snapshots"]["final"]["source"]["bytes_moved_in_all_runs"]
    assert moved == needed(files, seed) + len(files["config.json"]) + len(files[INDEX])  # each byte counted once
    assert len(answer["waits"]) == times
    if "headers" in fault:
        assert all(2 <= wait <= 3 for wait in answer["waits"])


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"status": 503}, "HTTP 503"),
        ({"keep": 1000}, "cannot be reached"),
        ({"cut": 5}, "not what was asked for"),
        ({"stated": {"Content-Range": "bytes 5-9/10"}}, "bytes 5-9/10"),
        ({"stated": {"ETag": '"another"'}}, "it changed meanwhile"),
    ],
)
def test_faults_that_stay_are_not_the_models(hub: Hub, hub_client: Client, tmp_path, request, fault, said):
    repo, seed = f"tiny/stay-{abs(hash(request.node.name))}", request.node.callspec.indices["fault"] + 200
    digest = hub_server.digest_of(SHARDS[1], sharded(seed)[SHARDS[1]])
    hub.add(repo, sharded(seed))
    hub_client.fetch(repo)
    hub.reset()
    hub.fail(f"storage GET /{digest}", **fault)
    answer = extract(hub_client, repo, tmp_path / "a")
    assert answer["error"] == "TransientFault" and said in answer["text"] and SHARDS[1] in answer["text"], answer
    assert answer["manifest"] is None
    assert all(len(hub.asked(f"storage GET /{digest}")) >= TRIES for _ in "x")
    hub.faults.clear()
    hub.log.clear()
    assert extract(hub_client, repo, tmp_path / "a")["manifest"]["status"] == "ok"
    assert_llama(tmp_path / "a", seed)
    first = hub_server.digest_of(SHARDS[0], sharded(seed)[SHARDS[0]])
    if "ETag" not in str(fault):  # what was right before is not fetched again
        assert not [each for each in hub.ranges() if first in each[0]]


@pytest.mark.faults
def test_an_expired_address_is_renewed(hub: Hub, hub_client: Client, tmp_path):
    hub.add("tiny/expires", sharded(2))
    hub_client.fetch("tiny/expires")
    hub.reset()
    hub.rate = 20_000
    with client(hub_client.home, hub) as it:
        pid = it.start("extract", "hf:tiny/expires", "-o", tmp_path / "a", "--model", "m")
        wait_for(lambda: len(hub.asked("storage GET")) > 4)  # the second shard has begun
        hub.signature = "renewed"
        assert it.wait(pid) == 0
    hub.signature = "signed"
    assert_llama(tmp_path / "a", 2)
    statuses = {each.status for each in hub.asked("storage GET .*=signed")}
    assert statuses == {206, 403} and {each.status for each in hub.asked("storage GET .*=renewed")} == {206}
    resolved = [each.path for each in hub.asked("HEAD .*/resolve/")]
    assert max(map(resolved.count, resolved)) == 2  # once more where it was needed, not once per range


@pytest.mark.faults
def test_the_token_goes_to_the_hub_only(hub: Hub, tmp_path):
    files = sharded(3)
    hub.add("tiny/secret", files, private=True)
    third = Hub()  # a host that the storage server sends on to
    third.add("tiny/secret", files)
    third.signature = hub.signature
    first = hub_server.digest_of(SHARDS[0], files[SHARDS[0]])
    away = f"{third.url('storage')}/{first}?X-Amz-Signature={third.signature}"
    hub.fail(f"storage GET /{first}", status=302, headers={"Location": away})
    with client(tmp_path / "home", hub, HF_TOKEN=hub.token) as it:
        assert extract(it, "tiny/secret", tmp_path / "a")["manifest"]["status"] == "ok"
    third.close()
    assert_llama(tmp_path / "a", 3)
    assert all("Authorization" in each.headers for each in hub.asked("hub .*tiny"))
    for each in [*hub.asked("storage"), *third.log]:
        assert "Authorization" not in each.headers
    assert third.asked("storage GET") and not third.asked("hub")
    assert not any(hub.token.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.faults
def test_a_server_that_ignores_ranges_gives_the_whole_file(hub: Hub, tmp_path):
    files = sharded(4)
    hub.add("tiny/ignores", files)
    hub.fail("storage GET", ignore_range=True)
    with client(tmp_path / "home", hub) as it:
        answer = extract(it, "tiny/ignores", tmp_path / "a")
        log = it.errors.read_text()
    assert_llama(tmp_path / "a", 4)
    assert all(f"{shard}: the server ignores byte ranges" in log for shard in SHARDS) and "WARNING" in log
    source = answer["manifest"]["snapshots"]["final"]["source"]
    assert source["bytes_moved_in_all_runs"] == sum(map(len, files.values()))


@pytest.mark.faults
def test_a_byte_that_changes_on_the_way(hub: Hub, hub_client: Client, tmp_path):
    """A safetensors file has no checksums: what happens to a weight between the server and here shows in its digest only.

    TLS guards the way itself. The manifest's sha256 of what was read differs from an undisturbed run's.
    """
    hub.add("tiny/flips", sharded(5))
    right = extract(hub_client, "tiny/flips", tmp_path / "a")["manifest"]["snapshots"]["final"]["layers"]
    hub.fail("storage GET", 1, flip=100)
    wrong = extract(hub_client, "tiny/flips", tmp_path / "b")["manifest"]["snapshots"]["final"]["layers"]
    digests = [
        (each["read"][key]["sha256"], other["read"][key]["sha256"])
        for each, other in zip(right, wrong, strict=True)
        for key in ("q", "k")
    ]
    assert sum(first != second for first, second in digests) == 1


@pytest.mark.faults
@pytest.mark.parametrize(
    ("file", "said"),
    [
        (safetensors(b"{not json"), "cannot be read"),
        (safetensors(b"[]"), "cannot be read"),
        (safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)), "last tensor ends"),
        (safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(12)), "last tensor ends"),
        (
            safetensors({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"}, bytes(8)),
            "the one before ends at",
        ),
        (safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, bytes(8)), "in 8 bytes"),
        ((10**12).to_bytes(8, "little") + b"{}", "announce"),
        (b"{}", "announce"),
        (b"", "is empty"),
    ],
)
def test_a_header_that_is_none_is_the_models_fault(hub: Hub, hub_client: Client, tmp_path, request, file, said):
    repo = f"tiny/header-{request.node.callspec.indices['file']}"
    hub.add(repo, {"config.json": b'{"model_type": "llama"}', "model.safetensors": file})
    manifest = extract(hub_client, repo, tmp_path / "a")["manifest"]
    assert (
        manifest["status"] == "failed"
        and said in manifest["reason"]
        and f"{repo}@main, model.safetensors" in manifest["reason"]
    )
    assert left_in(tmp_path / "a") == ["manifest.json"]


@pytest.mark.parametrize("old", [False, True])
def test_of_a_torch_archive_only_the_needed_storages_move(hub: Hub, hub_client: Client, tmp_path, old):
    """The zip directory and the pickle first; an archive of an old torch states its alignment nowhere."""
    import torch

    named = {name: torch.from_numpy(each) for name, each in wide_bert(20).items()}
    torch.save(named, tmp_path / "new.bin")
    file = rezip(tmp_path / "new.bin", tmp_path / "old.bin") if old else tmp_path / "new.bin"
    hub.add(f"tiny/zip-{old}", {"config.json": WIDE, "pytorch_model.bin": file.read_bytes()})
    answer = extract(hub_client, f"tiny/zip-{old}", tmp_path / "a")
    assert answer["manifest"]["status"] == "ok", answer["manifest"]
    for which, array in zip(("query", "key"), read_layer(tmp_path / "a", "final.safetensors", 0), strict=True):
        assert np.array_equal(array.reshape(256, 256), wide_bert(20)[f"encoder.layer.0.attention.self.{which}.weight"].T)
    moved = sum(stop - start for _, start, stop in hub.ranges())
    wanted = 2 * 256 * 256 * 4
    assert wanted <= moved < wanted + 5 * 2**16 < file.stat().st_size / 2
    assert moved + len(WIDE) == answer["manifest"]["snapshots"]["final"]["source"]["bytes_moved_in_all_runs"]
    assert len(hub.asked("HEAD .*/resolve/")) == 1
    hub.reset()
    extract(hub_client, f"tiny/zip-{old}", tmp_path / "b")
    moved = sum(stop - start for _, start, stop in hub.ranges())
    assert moved < wanted + 256  # the directory is kept; between the storages lies a record's header


def wide_bert(seed: int) -> dict[str, np.ndarray]:
    """A layer between tensors that nobody needs."""
    rng = np.random.default_rng(seed)
    names = ["before", *(f"encoder.layer.0.attention.self.{which}.weight" for which in ("query", "key")), "behind"]
    shapes = [(1500, 256), (256, 256), (256, 256), (1500, 256)]
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in zip(names, shapes, strict=True)}


def test_a_legacy_torch_file_is_fetched_whole(hub: Hub, tmp_path):
    """It has no directory and no checksums, but the hub states a digest of the whole."""
    import torch

    path = tmp_path / "pytorch_model.bin"
    torch.save(
        {name: torch.from_numpy(each) for name, each in wide_bert(22).items()}, path, _use_new_zipfile_serialization=False
    )
    hub.add("tiny/legacy", {"config.json": WIDE, "pytorch_model.bin": path.read_bytes()})
    with client(tmp_path / "home", hub) as it:
        answer = extract(it, "tiny/legacy", tmp_path / "a")
        assert "not read by range, so the whole file is fetched" in it.errors.read_text()
        assert answer["manifest"]["status"] == "ok", answer
        hub.reset()
        again = extract(it, "tiny/legacy", tmp_path / "b")  # from the hub's cache
        assert not hub.asked("/resolve/")
    source = answer["manifest"]["snapshots"]["final"]["source"]
    assert source["bytes_moved_in_all_runs"] == path.stat().st_size + len(WIDE)
    assert again["manifest"]["snapshots"]["final"]["source"]["bytes_moved_in_all_runs"] == len(WIDE)
    for which, array in zip(("query", "key"), read_layer(tmp_path / "a", "final.safetensors", 0), strict=True):
        assert np.array_equal(array.reshape(256, 256), wide_bert(22)[f"encoder.layer.0.attention.self.{which}.weight"].T)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("spoil", "said"),
    [("deflated", "is compressed"), ("malicious", "nothing in it was run"), ("flipped", "CRC32")],
)
def test_a_torch_archive_that_is_not_read(hub: Hub, hub_client: Client, tmp_path, spoil, said):
    import torch

    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    named: dict = {name: torch.from_numpy(each) for name, each in wide_bert(21).items()}
    path = tmp_path / "pytorch_model.bin"
    torch.save(named | ({"x": Malicious()} if spoil == "malicious" else {}), path)
    if spoil == "deflated":
        rezip(path, tmp_path / "small.bin", compression=zipfile.ZIP_DEFLATED).replace(path)
    hub.add(f"tiny/{spoil}", {"config.json": WIDE, "pytorch_model.bin": path.read_bytes()})
    if spoil == "flipped":
        hub.fail("storage GET", 10**9, flip=70_000)  # a storage; what is read of the directory is shorter
    answer = extract(hub_client, f"tiny/{spoil}", tmp_path / "a")
    assert answer["manifest"]["status"] == "failed" and said in answer["manifest"]["reason"], answer["manifest"]
    assert not (tmp_path / "harm").exists() and left_in(tmp_path / "a") == ["manifest.json"]
    assert sum(stop - start for _, start, stop in hub.ranges()) < path.stat().st_size / 2


def test_a_long_header_and_a_tensor_without_numbers(hub: Hub, hub_client: Client, tmp_path):
    named = llama_tensors(6, **SIZES) | {f"padding.{i:05d}": np.zeros((0, 3), np.float32) for i in range(1500)}
    file = save(named)
    assert header_size(file) > 100_000
    hub.add("tiny/padded", {"config.json": json.dumps(llama_config(**SIZES)).encode(), "model.safetensors": file})
    assert extract(hub_client, "tiny/padded", tmp_path / "a")["manifest"]["status"] == "ok"
    assert (8, header_size(file)) in [each[1:] for each in hub.ranges()]
    assert_llama(tmp_path / "a", 6)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"model.layers.0.self_attn.q_proj.weight": "model-00009-of-00003.safetensors"}, "no model-00009"),
        ({"model.layers.9.self_attn.q_proj.weight": SHARDS[0]}, "model.layers.9.self_attn.q_proj.weight"),
        ({"model.layers.0.self_attn.q_proj.weight": SHARDS[2]}, "model.layers.0.self_attn.q_proj.weight"),
        ({"model.layers.0.self_attn.q_proj.weight": "../../escape.safetensors"}, "escape"),
    ],
)
def test_an_index_that_names_what_is_not_there(hub: Hub, hub_client: Client, tmp_path, request, spoil, said):
    repo = f"tiny/index-{request.node.callspec.indices['spoil']}"
    hub.add(repo, sharded(7, spoil) | {"../../escape.safetensors": b"x"})
    manifest = extract(hub_client, repo, tmp_path / "a")["manifest"]
    assert manifest["status"] == "failed" and said in manifest["reason"], manifest
    assert not list(tmp_path.rglob("escape*"))


@pytest.mark.faults
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_what_is_kept_of_earlier_runs_is_checked(hub: Hub, tmp_path, damage):
    """Headers, config.json and index in the cache: what is damaged is fetched again."""
    files = sharded(14)
    hub.add("tiny/kept", files)
    with client(tmp_path / "home", hub) as it:
        extract(it, "tiny/kept", tmp_path / "a")
        kept = [path for path in (it.home / "qkgeom").rglob("*") if path.is_file()]
        assert len(kept) == 5
        for path in kept:
            content = bytearray(path.read_bytes())
            content[-9] ^= 1
            path.write_bytes({"flipped": content, "cut": content[:-9], "empty": b""}[damage])
        hub.reset()
        answer = extract(it, "tiny/kept", tmp_path / "b")
    assert answer["manifest"]["status"] == "ok", answer
    assert_llama(tmp_path / "b", 14)
    served = sum(each.sent for each in hub.log if each.side == "storage" or "/resolve/" in each.path)
    assert served == needed(files, 14) + len(files["config.json"]) + len(files[INDEX])
    assert (tmp_path / "a" / "manifest.json").read_bytes() == (tmp_path / "b" / "manifest.json").read_bytes()


# kills


def wait_for(happened, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.mark.kill
def test_a_killed_extraction_is_taken_up_again(hub: Hub, tmp_path):
    """Killed 24 times at random moments; each run goes on where the last one was, and the artifact is the same."""
    files = sharded(8)
    hub.add("tiny/killed", files)
    with client(tmp_path / "other home", hub) as it:
        assert extract(it, "tiny/killed", tmp_path / "whole")["manifest"]["status"] == "ok"
    chance = random.Random(0)
    folder = tmp_path / "killed"
    done: set[tuple[str, int, int]] = set()
    halfway = 0
    with client(tmp_path / "home", hub) as it:
        it.fetch("hf:..")  # imports what a fetch needs
        for turn in range(24):
            if turn % 4 == 0 or (folder / "manifest.json").exists():  # from the beginning
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(it.home / "qkgeom", ignore_errors=True)
                done = set()
            hub.reset()
            hub.rate = 40_000  # the ranges take about a second
            pid = it.start("extract", "hf:tiny/killed", "-o", folder, "--model", "m")
            wait_for(lambda: hub.asked("tiny/killed"))
            time.sleep(chance.uniform(0, 1))
            os.kill(pid, signal.SIGKILL)
            it.wait(pid)
            assert not done & set(hub.ranges()), "a finished layer was fetched again"
            done = finished(folder, files)
            halfway += 0 < len(done) < 2 * N_LAYER
        hub.reset()
        answer = extract(it, "tiny/killed", folder)
    assert halfway >= 5
    assert not done & set(hub.ranges())
    assert answer["manifest"]["status"] == "ok"
    for name in ("final.safetensors", "manifest.json"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert left_in(folder) == ["digests.json", "final.safetensors", "manifest.json"]


def finished(folder: Path, files: Mapping[str, bytes]) -> set[tuple[str, int, int]]:
    """The ranges of the layers that a journal says are stored."""
    journals = [path for path in folder.glob(".*") if "journal" in path.name]
    lines = [line for path in journals for line in path.read_bytes().splitlines(keepends=True)[1:]]
    records = [each for line in lines if line.endswith(b"\n") for each in json.loads(line)["entry"]["read"].values()]
    return {(f"/{hub_server.digest_of(each['file'], files[each['file']])}", *each["bytes"]) for each in records}


@pytest.mark.kill
def test_a_finished_file_without_its_manifest_is_not_fetched_again(hub: Hub, hub_client: Client, tmp_path):
    """A kill after the weights and before the manifest, or in a later snapshot of a series."""
    hub.add("tiny/settled", sharded(13))
    (tmp_path / "a" / "manifest.json").mkdir(parents=True)  # which cannot be written then
    assert "error" in hub_client.verb("extract", "hf:tiny/settled", "-o", tmp_path / "a", "--model", "m")
    (tmp_path / "a" / "manifest.json").rmdir()
    hub.reset()
    assert extract(hub_client, "tiny/settled", tmp_path / "a")["manifest"]["status"] == "ok"
    assert not hub.asked("storage") and not hub.asked("/resolve/")
    assert_llama(tmp_path / "a", 13)
    assert left_in(tmp_path / "a") == ["digests.json", "final.safetensors", "manifest.json"]


@pytest.mark.kill
def test_what_a_killed_extraction_left_is_checked(hub: Hub, hub_client: Client, tmp_path):
    """A byte changed on the disk, a file that is too short, and another version of the model are noticed."""
    files = sharded(9)
    hub.add("tiny/left", files)
    extract(hub_client, "tiny/left", tmp_path / "whole")
    for damage in ("flipped", "cut", "other version"):
        folder = tmp_path / damage
        hub.reset()
        hub.fail(f"storage GET /{hub_server.digest_of(SHARDS[2], files[SHARDS[2]])}", TRIES * 4, status=503)
        assert extract(hub_client, "tiny/left", folder)["error"] == "TransientFault"
        (part,) = folder.glob(".*.partial.*")
        stored = bytearray(part.read_bytes())
        stored[-5] ^= 1
        part.write_bytes(stored if damage == "flipped" else stored[:-5] if damage == "cut" else part.read_bytes())
        hub.reset()
        if damage == "other version":
            hub.add("tiny/left", sharded(10))
        assert extract(hub_client, "tiny/left", folder)["manifest"]["status"] == "ok"
        assert left_in(folder) == ["digests.json", "final.safetensors", "manifest.json"]
        assert_llama(folder, 10 if damage == "other version" else 9)
        moved = sum(each.sent for each in hub.asked("storage GET"))
        layer = sum(each.nbytes for each in llama_tensors(9, **SIZES).values()) // N_LAYER
        assert moved == needed(sharded(10), 10) if damage == "other version" else moved == 3 * layer


@pytest.mark.kill
def test_the_log_counts_the_bytes_of_this_run_and_the_manifest_those_of_all(hub: Hub, tmp_path):
    files = sharded(17)
    hub.add("tiny/thrice", files)
    with client(tmp_path / "home", hub) as it:
        whole = extract(it, "tiny/thrice", tmp_path / "whole")
        served = sum(each.sent for each in hub.log if each.side == "storage" or "/resolve/" in each.path)
        assert f"final: {N_LAYER} layers stored, {served} bytes moved\n" in it.errors.read_text()
        for shard in SHARDS[1:]:  # these two runs end after two layers each
            hub.reset()
            hub.fail(f"storage GET /{hub_server.digest_of(shard, files[shard])}", TRIES * 4, status=503)
            assert extract(it, "tiny/thrice", tmp_path / "a")["error"] == "TransientFault"
        hub.reset()
        again = extract(it, "tiny/thrice", tmp_path / "a")
        log = it.errors.read_text()
    now = sum(each.sent for each in hub.asked("storage GET"))
    assert now == sum(each.nbytes for each in llama_tensors(17, **SIZES).values()) // 3
    assert f"2 layers stored, {now} bytes moved; 4 layers and {served - now} bytes in earlier runs\n" in log
    assert again["manifest"] == whole["manifest"]
    assert again["manifest"]["snapshots"]["final"]["source"]["bytes_moved_in_all_runs"] == served


@pytest.mark.kill
def test_two_processes_extract_one_model(hub: Hub, hub_client: Client, tmp_path):
    hub.add("tiny/two", sharded(11))
    hub.rate = 30_000
    folder = tmp_path / "a"
    with client(hub_client.home, hub) as it:
        processes = [it.start("extract", "hf:tiny/two", "-o", folder, "--model", "m") for _ in range(2)]
        wait_for(lambda: len(list(folder.glob(".*.partial.*"))) == 2)  # each writes a file of its own
        assert [it.wait(pid) for pid in processes] == [0, 0]
    assert_llama(folder, 11)
    assert left_in(folder) == ["digests.json", "final.safetensors", "manifest.json"]
    assert read_manifest(folder)["status"] == "ok"


@pytest.mark.faults
def test_a_full_disk_is_no_fault_of_the_model_and_costs_nothing_twice(hub: Hub, tmp_path):
    hub.add("tiny/wide", sharded(12))
    disk = tmp_path / "small"
    disk.mkdir()
    with client(tmp_path / "home", hub, small_disk(disk, 64)) as it:
        answer = extract(it, "tiny/wide", disk / "a")
        assert answer["error"] == "DiskFault" and "free disk space" in answer["text"] and "final.safetensors" in answer["text"]
        again = extract(it, "tiny/wide", disk / "a")
        assert again["error"] == "DiskFault"
