"""`timm:` and `whisper:` URIs: the tables of names, and the real client that fetches what they name."""

from __future__ import annotations

import csv
import hashlib
import json
import runpy
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hub_server
from contract import build, save
from hub_server import Client, Hub, client, closed_port, small_disk
from qkgeom.artifacts import read_layer, read_manifest
from qkgeom.errors import ModelFault
from qkgeom.layouts import layout_named
from qkgeom.layouts.base import Case
from qkgeom.sources import split_uri, timm, whisper

served_hub, hub = hub_server.served_hub, hub_server.hub

TIMM_CASE = Case("vit_tiny_patch16_224", {"img_size": 32, "depth": 2}, "timm", "pixels")
WHISPER_CASE = layout_named("whisper_openai_encoder").cases[1]
TRIES = 4  # what hub_client.py says


def rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize("source", [timm, whisper])
def test_the_tables_are_those_of_the_installed_packages(source):
    tool = runpy.run_path(str(Path(__file__).parents[1] / "tools/name_tables.py"))
    assert rows(source.TABLE) == list(tool[f"{source.TABLE.stem}_names"]())


def test_whispers_table_has_what_the_package_checks():
    import whisper as package

    table = {row["name"]: row for row in rows(whisper.TABLE)}
    assert set(table) == set(package.available_models())
    assert all(len(row["sha256"]) == 64 and row["url"].endswith(".pt") for row in table.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_base_patch16_224", "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
        ("vit_base_patch16_224.mae", "timm/vit_base_patch16_224.mae"),
        ("vit_base_patch16_224@" + "a" * 40, "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k@" + "a" * 40),
        ("vit_base_patch16_clip_quickgelu_224.openai", "timm/vit_base_patch16_clip_224.openai"),
        ("vit_base_mci_224.apple_mclip", "apple/mobileclip_b_timm"),
    ],
)
def test_timm_names_are_repositories(name, expected):
    assert split_uri(f"timm:{name}") == ("timm", name)
    assert timm.hub_address(name) == expected


def test_the_default_of_an_architecture_is_timms():
    from timm.models import get_pretrained_cfg

    for architecture in ("beit_base_patch16_224", "deit3_small_patch16_224", "vit_large_patch14_reg4_dinov2"):
        assert timm.hub_address(architecture) == get_pretrained_cfg(architecture).hf_hub_id


@pytest.mark.faults
@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        (timm, "vit_base_patch16_224.auggreg_in1k", "vit_base_patch16_224.augreg_in1k"),
        (timm, "vit_bass_patch16_224", "vit_base_patch16_224"),
        (timm, "nosuch", "nearest are (?!beit_base)"),
        (timm, "", "hf:org/name"),
        (timm, "vit_huge_patch14_gap_224.in1k_ijepa", "not on the model hub"),
        (whisper, "large-v4", "large-v3"),
        (whisper, "tiny.de", "tiny.en"),
        (whisper, "../tiny", "tiny"),
    ],
)
def test_an_unknown_name_is_a_fault_that_has_the_nearest_ones(source, name, said):
    with pytest.raises(ModelFault, match=said) as caught, source.fetch(name):
        pass
    assert f"found:    {name}" in str(caught.value) or "not on the model hub" in said


def test_a_timm_name_goes_the_hubs_way(hub: Hub, tmp_path):
    """Only the rows of Q and K move, the layout is that of the repository's config, and nobody imports timm."""
    model = build(TIMM_CASE)
    folder = save(model, TIMM_CASE, tmp_path / "saved")
    commit = hub.add("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", folder)
    with client(tmp_path / "home", hub) as it:
        answer = it.verb("extract", "timm:vit_tiny_patch16_224", "-o", tmp_path / "vit")
    assert "error" not in answer, answer
    assert (answer["torch"], answer["libraries"]) == (False, [])
    manifest = read_manifest(tmp_path / "vit")
    source = manifest["snapshots"]["final"]["source"]
    assert (manifest["layout"], manifest["n_layer"]) == ("timm_vit", 2)
    assert (source["commit"], source["repo"]) == (commit, "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    for layer, block in enumerate(model.blocks):
        W_q, W_k = read_layer(tmp_path / "vit", "final.safetensors", layer)
        qkv = block.attn.qkv.weight.detach().numpy()
        assert W_q.shape == (192, 3, 64)
        assert np.array_equal(W_q.reshape(192, 192), qkv[:192].T)
        assert np.array_equal(W_k.reshape(192, 192), qkv[192:384].T)
    wanted = 2 * 2 * 192 * 192 * 4
    assert wanted < sum(each.sent for each in hub.asked("storage GET")) < wanted + 20_000


@pytest.fixture(scope="module")
def official(served_hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Whisper's file, saved as its package does, at the address that the table beside it gives for `tiny`."""
    folder = tmp_path_factory.mktemp("whisper")
    file = save(build(WHISPER_CASE), WHISPER_CASE, folder) / "model.pt"
    served_hub.add("whisper/files", {"tiny.pt": file.read_bytes()})
    write_table(folder, served_hub, sha256(file.read_bytes()))
    return file


def write_table(folder: Path, hub: Hub, digest: str) -> Path:
    url = f"{hub.url()}/whisper/files/resolve/main/tiny.pt"
    table = folder / "whisper.tsv"
    table.write_text(f"name\turl\tsha256\ntiny\t{url}\t{digest}\n")
    return table


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def reader(hub: Hub, official: Path, tmp_path: Path) -> Iterator[Client]:
    """A client with an empty cache."""
    with client(tmp_path / "home", hub, HF_TOKEN=hub.token) as it:
        it.use_table("whisper", official.with_name("whisper.tsv"))
        yield it


def cache(it: Client) -> Path:
    return it.home / "qkgeom" / "whisper"


def starts(hub: Hub) -> list[int]:
    """The first byte of each request."""
    return [int(each.headers["Range"].removeprefix("bytes=").removesuffix("-")) for each in hub.asked("storage GET")]


def served(hub: Hub) -> int:
    return sum(each.sent for each in hub.asked("storage GET"))


def require_whole(answer: dict, it: Client, official: Path) -> None:
    """Asserts that the file was given, and is all that the cache holds."""
    assert "error" not in answer, answer
    assert answer["weights"] == {"tiny.pt": sha256(official.read_bytes())}
    assert sorted(path.name for path in cache(it).iterdir()) == [".tiny.pt.lock", "tiny.pt"]
    assert (cache(it) / "tiny.pt").read_bytes() == official.read_bytes()


def test_a_whisper_file_is_fetched_once(hub: Hub, reader: Client, official: Path):
    size = official.stat().st_size
    answer = reader.fetch("whisper:tiny")
    require_whole(answer, reader, official)
    assert answer["moved"] == served(hub) == size
    assert answer["origin"] == {
        "kind": "whisper",
        "url": f"{hub.url()}/whisper/files/resolve/main/tiny.pt",
        "sha256": sha256(official.read_bytes()),
        "files": {"tiny.pt": {"bytes": size}},
    }
    assert (answer["torch"], answer["libraries"]) == (False, [])
    assert not any("Authorization" in each.headers for each in hub.log)
    hub.reset()
    assert reader.fetch("whisper:tiny", sha256(official.read_bytes()).upper())["moved"] == 0
    assert not hub.log


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_both_parts_of_whisper(reader: Client, official: Path, tmp_path, part):
    answer = reader.verb("extract", "whisper:tiny", "--part", part, "-o", tmp_path / part)
    assert "error" not in answer, answer
    assert answer["libraries"] == []
    manifest = read_manifest(tmp_path / part)
    dims = WHISPER_CASE.config
    tower = {"encoder": "audio", "decoder": "text"}[part]
    assert (manifest["layout"], manifest["part"]) == (f"whisper_openai_{part}", part)
    assert manifest["n_layer"] == dims[f"n_{tower}_layer"]
    assert manifest["snapshots"]["final"]["source"]["bytes_moved_in_all_runs"] == official.stat().st_size
    state = torch.load(official, weights_only=True)["model_state_dict"]
    n_head = dims[f"n_{tower}_head"]
    for layer in range(manifest["n_layer"]):
        for stored, name in zip(read_layer(tmp_path / part, "final.safetensors", layer), ("query", "key"), strict=True):
            right = state[f"{part}.blocks.{layer}.attn.{name}.weight"].numpy()
            assert np.array_equal(stored, right.T.reshape(24, n_head, 24 // n_head))


@pytest.mark.faults
def test_a_part_has_to_be_chosen(reader: Client, tmp_path):
    answer = reader.verb("extract", "whisper:tiny", "-o", tmp_path / "x")
    assert answer["error"] == "UsageError" and "--part" in answer["text"]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("match", "times", "fault", "first_bytes"),
    [
        ("storage GET", 2, {"status": 503}, [0, 0, 0]),
        ("hub GET", 1, {"status": 503}, [0]),
        ("storage GET", 1, {"status": 429, "headers": {"Retry-After": "7"}}, [0, 0]),
        ("storage GET", 1, {"keep": 0}, [0, 0]),
        ("storage GET", 1, {"keep": 5000}, [0, 5000]),
        ("storage GET", 3, {"keep": 5000}, [0, 5000, 10000, 15000]),
        ("storage GET", 1, {"stated": {"Content-Range": "bytes 1-9/10"}}, [0, 0]),
        ("storage GET", 1, {"ignore_range": True}, [0]),
        ("storage GET", 1, {"flip": 9000}, [0, 0]),
    ],
)
def test_a_download_that_works_in_the_end(hub: Hub, reader: Client, official: Path, match, times, fault, first_bytes):
    hub.fail(match, times, **fault)
    answer = reader.fetch("whisper:tiny")
    require_whole(answer, reader, official)
    assert answer["moved"] == official.stat().st_size
    assert starts(hub) == first_bytes
    if "keep" in fault:
        assert served(hub) == official.stat().st_size  # no byte twice
    if "headers" in fault:
        assert 7 <= answer["waits"][0] <= 8


@pytest.mark.faults
def test_a_body_that_ends_early_without_a_word(hub: Hub, reader: Client, official: Path):
    hub.fail("storage GET", 1, cut=1000)
    require_whole(reader.fetch("whisper:tiny"), reader, official)
    assert starts(hub) == [0, official.stat().st_size - 1000]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "error", "tries", "said"),
    [
        ({"status": 503}, "TransientFault", TRIES, "HTTP 503"),
        ({"status": 429}, "TransientFault", TRIES, "HTTP 429"),
        ({"keep": 0}, "TransientFault", TRIES, "cannot be reached"),
        ({"status": 404}, "ModelFault", 1, "HTTP 404"),
        ({"status": 403}, "ModelFault", 1, "HTTP 403"),
        ({"status": 416}, "ModelFault", 1, "HTTP 416"),
        ({"status": 204}, "TransientFault", TRIES, "HTTP 204"),
    ],
)
def test_a_download_that_never_works(hub: Hub, reader: Client, fault, error, tries, said):
    hub.fail("storage GET", **fault)
    answer = reader.fetch("whisper:tiny")
    assert answer["error"] == error, answer
    assert said in answer["text"] and "tiny.pt" in answer["text"] and "signed" not in answer["text"]
    assert len(hub.asked("storage GET")) == tries
    assert not (cache(reader) / "tiny.pt").exists()


@pytest.mark.faults
def test_a_later_run_goes_on_where_one_stopped(hub: Hub, reader: Client, official: Path):
    hub.fail("storage GET", TRIES, keep=2000)
    assert reader.fetch("whisper:tiny")["error"] == "TransientFault"
    hub.log.clear()
    answer = reader.fetch("whisper:tiny")
    require_whole(answer, reader, official)
    assert starts(hub) == [TRIES * 2000]
    assert served(hub) == official.stat().st_size - TRIES * 2000
    assert answer["moved"] == official.stat().st_size


@pytest.mark.faults
@pytest.mark.parametrize(
    ("left", "first_bytes"),
    [
        ("all of it", [None]),  # killed before the file got its name
        ("more than all", [None, 0]),
        ("another file's beginning", [5000, 0]),
        ("all of another file", [None, 0]),
    ],
)
def test_what_a_killed_run_left_is_checked(hub: Hub, reader: Client, official: Path, left, first_bytes):
    right = official.read_bytes()
    content = {
        "all of it": right,
        "more than all": right + b"x",
        "another file's beginning": bytes(5000),
        "all of another file": bytes(len(right)),
    }
    cache(reader).mkdir(parents=True)
    (cache(reader) / ".tiny.pt.partial").write_bytes(content[left])
    require_whole(reader.fetch("whisper:tiny"), reader, official)
    assert starts(hub) == [len(content[left]) if first is None else first for first in first_bytes]


@pytest.mark.faults
def test_a_server_that_ignores_ranges_sends_the_whole_file_again(hub: Hub, reader: Client, official: Path):
    hub.fail("storage GET", 1, keep=5000)
    hub.fail("storage GET", 1, ignore_range=True)
    require_whole(reader.fetch("whisper:tiny"), reader, official)
    assert starts(hub) == [0, 5000]
    assert served(hub) == 5000 + official.stat().st_size


@pytest.mark.kill
def test_a_killed_download_is_gone_on_with(hub: Hub, reader: Client, official: Path, tmp_path):
    """SIGKILL at several moments; in the end no byte but those under way has moved twice."""
    hub.rate = 200_000.0
    partial, table = cache(reader) / ".tiny.pt.partial", official.with_name("whisper.tsv")
    size = official.stat().st_size
    for kept in (1, size // 3):
        with client(tmp_path / "home", hub) as doomed:
            doomed.use_table("whisper", table)
            doomed.process.stdin.write(json.dumps(["fetch", ["whisper:tiny", None]]) + "\n")
            doomed.process.stdin.flush()
            while not (partial.exists() and partial.stat().st_size >= kept):
                assert doomed.process.poll() is None
                time.sleep(0.005)
            doomed.process.kill()
            doomed.process.wait()
    left = partial.stat().st_size
    assert size // 3 <= left < size
    hub.reset()
    require_whole(reader.fetch("whisper:tiny"), reader, official)
    assert starts(hub) == [left]


@pytest.mark.faults
def test_a_wrong_sha256_is_refused_and_removed(hub: Hub, reader: Client, official: Path, tmp_path):
    reader.use_table("whisper", write_table(tmp_path, hub, "0" * 64))
    answer = reader.fetch("whisper:tiny")
    assert answer["error"] == "ModelFault"
    assert "0" * 64 in answer["text"] and sha256(official.read_bytes()) in answer["text"]
    assert starts(hub) == [0, 0]
    assert [path.name for path in cache(reader).iterdir()] == [".tiny.pt.lock"]


@pytest.mark.faults
def test_a_pinned_sha256_that_is_not_the_official_one_moves_nothing(hub: Hub, reader: Client):
    answer = reader.fetch("whisper:tiny", "0" * 64)
    assert answer["error"] == "ModelFault" and "not the one that was pinned" in answer["text"]
    assert not hub.log


@pytest.mark.faults
@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_a_damaged_file_in_the_cache_is_fetched_again(hub: Hub, reader: Client, official: Path, damage):
    right = official.read_bytes()
    cache(reader).mkdir(parents=True)
    broken = {"flipped": right[:-1] + bytes([right[-1] ^ 1]), "truncated": right[:-10]}
    (cache(reader) / "tiny.pt").write_bytes(broken[damage])
    answer = reader.fetch("whisper:tiny")
    require_whole(answer, reader, official)
    assert answer["moved"] == served(hub) == len(right)


def test_two_processes_fetch_a_file_once(hub: Hub, reader: Client, official: Path, tmp_path):
    """As the encoder and the decoder of one file do in a run."""
    hub.rate = 500_000.0
    with client(tmp_path / "home", hub) as other:
        other.use_table("whisper", official.with_name("whisper.tsv"))
        answers = {}
        fetches = [
            threading.Thread(target=lambda it=it: answers.update({it: it.fetch("whisper:tiny")})) for it in (reader, other)
        ]
        for thread in fetches:
            thread.start()
        for thread in fetches:
            thread.join()
        for it, answer in answers.items():
            require_whole(answer, it, official)
    assert sorted(answer["moved"] for answer in answers.values()) == [0, official.stat().st_size]
    assert starts(hub) == [0]


@pytest.mark.faults
def test_without_a_network_the_cache_is_used(hub: Hub, reader: Client, official: Path, tmp_path):
    table = official.with_name("whisper.tsv")
    with client(tmp_path / "home", hub, HF_HUB_OFFLINE="1") as offline:
        offline.use_table("whisper", table)
        refused = offline.fetch("whisper:tiny")
        assert refused["error"] == "TransientFault" and "do:       unset HF_HUB_OFFLINE" in refused["text"]
        assert "network" not in refused["text"]
        named = offline.fetch("timm:vit_base_patch16_224.mae")
        assert named["error"] == "TransientFault" and "do:       unset HF_HUB_OFFLINE" in named["text"]
        assert not hub.log
        require_whole(reader.fetch("whisper:tiny"), reader, official)
        require_whole(offline.fetch("whisper:tiny"), offline, official)


@pytest.mark.faults
def test_an_unreachable_server(tmp_path):
    table = tmp_path / "whisper.tsv"
    table.write_text(f"name\turl\tsha256\ntiny\thttp://127.0.0.1:{closed_port()}/tiny.pt\t{'0' * 64}\n")
    with client(tmp_path / "home") as it:
        it.use_table("whisper", table)
        answer = it.fetch("whisper:tiny")
    assert answer["error"] == "TransientFault" and "cannot be reached" in answer["text"]
    assert len(answer["waits"]) == TRIES - 1


@pytest.mark.faults
def test_an_endpoint_that_is_none_is_named(official: Path, tmp_path):
    with client(tmp_path / "home", HF_ENDPOINT="http://hub:port") as it:
        it.use_table("whisper", official.with_name("whisper.tsv"))
        answer = it.fetch("whisper:tiny")
    assert answer["error"] == "UsageError" and "HF_ENDPOINT" in answer["text"]


@pytest.mark.faults
def test_a_full_disk_is_no_fault_of_the_model(hub: Hub, official: Path, tmp_path):
    disk = tmp_path / "small"
    disk.mkdir()
    assert official.stat().st_size > 40_000
    with client(tmp_path / "home", hub, small_disk(disk, 40), QKGEOM_CACHE=str(disk)) as it:
        it.use_table("whisper", official.with_name("whisper.tsv"))
        answer = it.fetch("whisper:tiny")
    assert answer["error"] == "DiskFault"
    assert "No space left" in answer["text"] and "QKGEOM_CACHE" in answer["text"]
