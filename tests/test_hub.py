"""The model hub: the real client against a hub on the loopback interface, as it should be and with every fault."""

from __future__ import annotations

import email.utils
import hashlib
import json
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import hub_server
from hub_server import Client, Hub, client, closed_port, small_disk
from qkgeom.artifacts import read_layer, read_manifest

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client

CONFIG = json.dumps({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}).encode()
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
WRONG_IDS = [
    "../x",
    "a/../b",
    "a/b/c",
    "o/n;x",
    "o/$(id)",
    "a b",
    "é/x",
    "o" * 5000,
    "@main",
    "o/n@",
    "o/n@-x",
    "o/n@a b",
    "o/n@..",
]
TRIES = 4  # what hub_client.py says


def weights(seed: int, size: int = 500) -> bytes:
    """A safetensors file."""
    return save({f"encoder.layer.{seed}.query": np.random.default_rng(seed).standard_normal(size).astype(np.float32)})


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def whole(seed: int, name: str = "") -> dict[str, bytes]:
    """The files of a repository with one weight file; with a name they are like no other's, so that no cache has them."""
    if not name:
        return {"config.json": CONFIG, "model.safetensors": weights(seed)}
    tensors = {f"{name}.query": np.random.default_rng(seed).standard_normal(500).astype(np.float32)}
    return {"config.json": json.dumps({"model_type": "bert", "name": name}).encode(), "model.safetensors": save(tensors)}


def own_repo(request: pytest.FixtureRequest) -> str:
    """A repository name for a test alone."""
    return f"tiny/own-{hashlib.md5(request.node.name.encode()).hexdigest()}"


def sharded(seed: int) -> dict[str, bytes]:
    """The files of a repository with two shards, and one that is left from another sharding."""
    shards = {name: weights(seed + i) for i, name in enumerate([*SHARDS, "model-00003-of-00003.safetensors"])}
    listed = {f"encoder.layer.{seed + i}.query": name for i, name in enumerate(SHARDS)}
    return {"config.json": CONFIG, INDEX: json.dumps({"weight_map": listed}).encode(), **shards}


def content(answer: dict) -> list[str]:
    """The sha256 of each weight file of an answer, as it was read."""
    assert "error" not in answer, answer["text"]
    return list(answer["weights"].values())


def requests(hub: Hub) -> list[str]:
    """The log, without the registry that every client asks for."""
    return [f"{each.side} {each.method} {each.status}" for each in hub.log if "agent-harnesses" not in each.path]


def expect(answer: dict, error: str, *said: str) -> None:
    """Asserts the kind of an error and what its message holds."""
    assert answer.get("error") == error, answer
    for each in said:
        assert each in answer["text"], answer["text"]


def test_a_checkpoint_is_opened_with_few_requests(hub: Hub, hub_client: Client):
    files = whole(0) | {"original/consolidated.00.pth": b"x", "tf_model.h5": b"x", "README.md": b"x", "onnx/model.onnx": b"x"}
    commit = hub.add("tiny/once", files)
    first = hub_client.fetch("tiny/once")
    assert content(first) == [sha256(files["model.safetensors"])]
    assert Path(first["config"]).read_bytes() == CONFIG
    assert first["origin"] == {
        "kind": "hub",
        "repo": "tiny/once",
        "revision": "main",
        "commit": commit,
        "files": {name: {"bytes": len(files[name]), "etag": hub_server.digest_of(name, files[name])} for name in whole(0)},
    }
    assert first["moved"] == sum(each.sent for each in hub.log if "/resolve/" in each.path or each.side == "storage")
    header = 8 + int.from_bytes(files["model.safetensors"][:8], "little")
    assert first["opened"] == len(CONFIG) + header
    assert [each[1:] for each in hub.ranges()] == [(0, 8), (0, len(files["model.safetensors"])), (8, header)]
    # the commit, config.json, where the weights are, and their ranges
    assert requests(hub) == ["hub GET 200", "hub GET 200", "hub HEAD 302", *["storage GET 206"] * 3]
    assert not first["torch"]
    hub.reset()
    second = hub_client.fetch(f"hf:tiny/once@{commit}", sha256(files["model.safetensors"]))
    assert (second["weights"], second["moved"]) == (first["weights"], first["moved"])
    assert requests(hub) == ["hub GET 200", "hub HEAD 302", "storage GET 206"]  # config and header are kept


def test_a_branch_is_pinned_to_the_commit_it_was(hub: Hub, hub_client: Client):
    before, after = whole(1, "moving"), whole(2, "moving")
    old = hub.add("tiny/moving", before)
    assert hub_client.fetch("tiny/moving@main")["origin"]["commit"] == old
    new = hub.add("tiny/moving", after)
    assert content(hub_client.fetch(f"tiny/moving@{old}")) == [sha256(before["model.safetensors"])]
    moved = hub_client.fetch("tiny/moving@main")
    assert (moved["origin"]["commit"], content(moved)) == (new, [sha256(after["model.safetensors"])])
    assert len(hub.asked("GET .*config.json")) == 1  # the same blob
    assert {each.path.split("/resolve/")[1].split("/")[0] for each in hub.asked("/resolve/")} == {old, new}


@pytest.mark.parametrize(
    ("repo", "revision"), [("gpt0", "main"), ("tiny/tags", "v1.0"), ("tiny/refs", "refs/pr/1"), ("a.b-c_d/e", "b")]
)
def test_ids_and_revisions(hub: Hub, hub_client: Client, repo, revision):
    commit = hub.add(repo, whole(3), revision)
    answer = hub_client.fetch(f"hf:{repo}@{revision}")
    assert content(answer) == [sha256(weights(3))]
    assert (answer["origin"]["revision"], answer["origin"]["commit"]) == (revision, commit)


def test_of_a_sharded_checkpoint_the_listed_shards_are_fetched(hub: Hub, hub_client: Client):
    hub.add("tiny/sharded", sharded(10))
    answer = hub_client.fetch("tiny/sharded")
    assert content(answer) == [sha256(weights(10)), sha256(weights(11))]
    assert not hub.asked("00003-of-00003")


def test_a_pinned_sha256_is_checked_before_anything_large_is_moved(hub: Hub, hub_client: Client):
    hub.add("tiny/pinned", whole(4))
    hub.add("tiny/several", sharded(20))
    expect(hub_client.fetch("tiny/pinned", "0" * 64), "ModelFault", sha256(weights(4)), "not the one that was pinned")
    expect(hub_client.fetch("tiny/several", "0" * 64), "ModelFault", "2 files")
    assert not hub.asked("storage")
    assert content(hub_client.fetch("tiny/pinned", sha256(weights(4)).upper())) == [sha256(weights(4))]


def test_from_the_hub_to_an_artifact(hub: Hub, tmp_path):
    """The command line: a fault of the model is recorded, one of the hub is not."""
    names = [f"encoder.layer.0.attention.self.{which}.weight" for which in ("query", "key")]
    query, key = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    commit = hub.add(
        "tiny/bert", {"config.json": CONFIG, "model.safetensors": save(dict(zip(names, (query, key), strict=True)))}
    )
    hub.add("tiny/closed", whole(60), gated=True)
    with client(tmp_path, hub) as it:
        done = it.command("extract", "hf:tiny/bert@main", "-o", str(tmp_path / "bert"))
        gated = it.command("extract", "hf:tiny/closed@main", "-o", str(tmp_path / "closed"))
        hub.fail("api/models/tiny/bert", status=200, body=b"<html>log in</html>")
        down = it.command("extract", "hf:tiny/bert@v2", "-o", str(tmp_path / "down"))
    assert (done.returncode, gated.returncode, down.returncode) == (0, 0, 1), done.stderr + gated.stderr + down.stderr
    manifest = read_manifest(tmp_path / "bert")
    source = manifest["snapshots"]["final"]["source"]
    assert (manifest["status"], source["commit"], source["repo"]) == ("ok", commit, "tiny/bert")
    W_q, W_k = read_layer(tmp_path / "bert", "final.safetensors", 0)
    assert np.array_equal(W_q.reshape(8, 8), query.T) and np.array_equal(W_k.reshape(8, 8), key.T)
    failed = read_manifest(tmp_path / "closed")
    assert failed["status"] == "failed" and "accept the licence" in failed["reason"]
    assert "Traceback" not in down.stderr and not (tmp_path / "down").exists()


@pytest.mark.faults
@pytest.mark.parametrize("id_", WRONG_IDS)
def test_a_wrong_id_is_never_asked_for(hub: Hub, hub_client: Client, id_):
    before = sorted(hub_client.home.rglob("*"))
    expect(hub_client.fetch(f"hf:{id_}"), "UsageError", "org/name@revision")
    assert not requests(hub)
    assert sorted(hub_client.home.rglob("*")) == before


@pytest.mark.faults
def test_what_the_hub_does_not_have(hub: Hub, hub_client: Client):
    hub.add("tiny/bare", {"README.md": b"x"})
    hub.add("tiny/partial", {name: body for name, body in sharded(30).items() if name != SHARDS[1]})
    hub.add("tiny/gone", whole(5, "gone"))
    hub.fail(r"/tiny/gone/resolve/.*config.json", status=404, headers={"X-Error-Code": "EntryNotFound"})
    expect(hub_client.fetch("tiny/nothing"), "ModelFault", "no such repository", f"{hub.url()}/tiny/nothing", "HF_TOKEN", "401")
    expect(hub_client.fetch("tiny/gone@v9"), "ModelFault", "not this revision", "v9")
    expect(hub_client.fetch(f"tiny/gone@{'0' * 40}"), "ModelFault", "not this revision")
    expect(hub_client.fetch("tiny/gone"), "ModelFault", "a file is missing", "config.json")
    expect(hub_client.fetch("tiny/bare"), "ModelFault", "no weights here", "README.md")
    expect(hub_client.fetch("tiny/partial"), "ModelFault", "incomplete", SHARDS[1])
    assert not hub.asked("storage")
    assert [each.status for each in hub.asked("api/models/tiny/nothing")] == [401]  # asked once


@pytest.mark.faults
def test_who_may_not_read_a_model_is_told_what_to_do(hub: Hub, hub_client: Client, tmp_path):
    hub.add("tiny/gated", whole(6), gated=True)
    hub.add("tiny/private", whole(7), private=True)
    licence = f"accept the licence at {hub.url()}/tiny/gated"
    expect(hub_client.fetch("tiny/gated"), "AccessRefused", licence, "HF_TOKEN", "HTTP 401", "Access is restricted")
    expect(hub_client.fetch("tiny/private"), "ModelFault", "or it is private", "HF_TOKEN")
    with client(tmp_path / "stranger", hub, HF_TOKEN="hf_wrong") as stranger:
        expect(stranger.fetch("tiny/gated"), "AccessRefused", licence, "HF_TOKEN", "HTTP 403")
        expect(stranger.fetch("tiny/private"), "ModelFault", "no such repository, or it is private", "HTTP 404")
        hub.fail("api/models", status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
        expect(stranger.fetch("tiny/gated"), "AccessRefused", "the token is wrong", "Invalid credentials")
    assert not hub.asked("storage")
    assert len(hub.asked("/resolve/")) == 2  # a refusal is not asked again
    hub.reset()
    with client(tmp_path / "friend", hub, HF_TOKEN=hub.token) as friend:
        assert content(friend.fetch("tiny/gated")) == [sha256(weights(6))]
        assert content(friend.fetch("tiny/private")) == [sha256(weights(7))]
        expect(friend.fetch("tiny/nothing"), "ModelFault", "no such repository", "HTTP 404")
    assert all("Authorization" in each.headers for each in hub.asked("hub .*tiny"))
    assert len(hub.asked("storage")) == 6
    assert not any("Authorization" in each.headers for each in hub.asked("storage"))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 6
    assert not any(hub.token.encode() in path.read_bytes() for path in written)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({}, 1, 2),
        ({"Retry-After": "7"}, 7, 8),
        ({"RateLimit": '"api";r=0;t=55', "Retry-After": "7"}, 55, 56),
        ({"RateLimit": '"api";r=9;t=55'}, 1, 2),
        ({"Retry-After": "{date}"}, 28, 31),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_hub_is_asked_again_when_it_says(hub: Hub, hub_client: Client, headers, least, most, status):
    headers = {
        name: value.format(date=email.utils.formatdate(time.time() + 30, usegmt=True)) for name, value in headers.items()
    }
    hub.add("tiny/busy", whole(8))
    hub.fail("api/models", 1, status=status, headers=headers)
    answer = hub_client.fetch("tiny/busy")
    assert content(answer) == [sha256(weights(8))]
    assert [each.status for each in hub.asked("api/models")] == [status, 200]
    (wait,) = answer["waits"]
    assert least <= wait <= most


@pytest.mark.faults
@pytest.mark.parametrize(
    ("fault", "tries", "said"),
    [
        ({"status": 503}, TRIES, ["out of order", "HTTP 503"]),
        ({"status": 500}, TRIES, ["out of order", "HTTP 500"]),
        ({"status": 429}, TRIES, ["slow down", "HF_TOKEN"]),
        ({"status": 429, "headers": {"RateLimit": '"api";r=0;t=3000'}}, 1, ["slow down"]),
        ({"status": 200, "body": b"<html>log in</html>"}, 1, ["not as a hub"]),
        ({"status": 200, "body": b"[]"}, 1, ["not as a hub"]),
        ({"status": 200, "body": b'{"id": "x"}'}, 1, ["which commit"]),
        ({"keep": 0}, TRIES, ["cannot be reached"]),
    ],
)
def test_a_hub_that_stays_out_of_order(hub: Hub, hub_client: Client, fault, tries, said):
    hub.add("tiny/down", whole(19))
    hub.fail("api/models", **fault)
    answer = hub_client.fetch("tiny/down")
    expect(answer, "TransientFault", "tiny/down@main", *said)
    assert len(hub.asked("api/models")) == tries
    assert len(answer["waits"]) == tries - 1
    assert all(2**i <= wait <= 2**i + 1 for i, wait in enumerate(answer["waits"]))
    if tries == TRIES:
        assert hub.url() in answer["text"]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("match", "fault", "tries"),
    [
        ("HEAD .*safetensors", {"status": 503}, TRIES),
        ("HEAD .*safetensors", {"status": 429}, TRIES),
        ("storage GET", {"status": 408}, TRIES),
        ("storage GET", {"status": 429}, TRIES),
        ("storage GET", {"status": 500}, TRIES),
        ("storage GET", {"status": 403}, TRIES),  # as when a signed address has expired
        ("storage GET", {"keep": 0}, TRIES),
        ("storage GET", {"keep": 5}, TRIES),
        ("storage GET", {"cut": 3}, TRIES),
        ("storage GET", {"stated": {"Content-Range": "bytes 1-8/4096"}}, TRIES),
        ("storage GET", {"stated": {"Content-Range": "bytes */4096"}}, TRIES),
        ("HEAD .*safetensors", {"status": 200}, 1),  # no X-Repo-Commit: not a hub
        ("GET .*config.json", {"status": 200, "body": b"<html>log in</html>"}, 1),
        ("GET .*config.json", {"status": 503}, TRIES),
        ("GET .*config.json", {"keep": 5}, TRIES),
    ],
)
def test_a_download_that_never_works(hub: Hub, hub_client: Client, request, match, fault, tries):
    repo = own_repo(request)
    hub.add(repo, whole(9, repo))
    hub.fail(match, **fault)
    answer = hub_client.fetch(repo)
    expect(answer, "TransientFault", "config.json" if "config" in match else "model.safetensors", hub.url(), "again")
    assert len(hub.asked(match)) == tries
    assert "signed" not in answer["text"]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("match", "times", "fault"),
    [
        ("HEAD", 2, {"status": 503}),
        ("HEAD", 1, {"status": 429, "headers": {"RateLimit": '"resolvers";r=0;t=55'}}),
        ("storage GET", 2, {"status": 500}),
        ("storage GET", 3, {"status": 503}),
        ("storage GET", 1, {"status": 403}),
        ("storage GET", 1, {"status": 429, "headers": {"Retry-After": "3"}}),
        ("storage GET", 2, {"cut": 3}),
        ("storage GET", 2, {"keep": 5}),
        ("storage GET", 1, {"keep": 0}),
        ("storage GET", 1, {"stated": {"Content-Range": "bytes 0-7/9"}}),
        ("storage GET", 1, {"flip": 99}),  # of the header, which is then no JSON
        ("hub GET .*config.json", 1, {"flip": 9}),
        ("hub GET .*config.json", 1, {"keep": 9}),
        ("hub GET .*config.json", 1, {"status": 429, "headers": {"Retry-After": "3"}}),
    ],
)
def test_a_download_that_works_in_the_end(hub: Hub, hub_client: Client, request, match, times, fault):
    repo = own_repo(request)
    hub.add(repo, whole(12, repo))
    hub.fail(match, times, **fault)
    answer = hub_client.fetch(repo)
    assert content(answer) == [sha256(whole(12, repo)["model.safetensors"])]
    assert Path(answer["config"]).read_bytes() == whole(12, repo)["config.json"]
    assert len(hub.asked(match)) > times
    if "status" in fault:
        assert [each.status for each in hub.asked(match)][: times + 1].count(fault["status"]) == times
    if "headers" in fault:
        (asked,) = answer["waits"]
        assert asked >= (55 if "RateLimit" in fault["headers"] else 3)


@pytest.mark.faults
def test_a_small_file_that_is_always_damaged_is_refused_and_not_kept(hub: Hub, hub_client: Client):
    files = whole(13, "mangled")
    hub.add("tiny/mangled", files)
    hub.fail("GET .*config.json", flip=30)
    wanted = hub_server.digest_of("config.json", files["config.json"])
    expect(hub_client.fetch("tiny/mangled"), "ModelFault", "config.json", wanted, "proxy")
    hub.reset()
    assert content(hub_client.fetch("tiny/mangled")) == [sha256(files["model.safetensors"])]


@pytest.mark.faults
@pytest.mark.parametrize("damage", [None, "flipped", "truncated", "longer"])
def test_a_whole_file_in_the_hubs_cache_is_used_unless_it_is_damaged(hub: Hub, hub_client: Client, request, damage):
    repo = own_repo(request)
    files = whole(14, repo)
    commit = hub.add(repo, files)
    path, config = hub_client.keep(repo, commit, "model.safetensors", "config.json")
    right = path.read_bytes()
    broken = {None: right, "flipped": bytes([*right[:-1], right[-1] ^ 1]), "truncated": right[:-4], "longer": right + b"x"}
    path.resolve().write_bytes(broken[damage])
    hub.reset()
    answer = hub_client.fetch(repo)
    assert content(answer) == [sha256(right)]
    assert answer["config"] == str(config)
    if damage is None:
        assert requests(hub) == ["hub GET 200"] and answer["moved"] == 0
        hub.reset()
        assert content(hub_client.fetch(f"{repo}@{commit}")) == [sha256(right)]
        assert not requests(hub)  # a commit never moves
    else:
        assert requests(hub) == ["hub GET 200", "hub HEAD 302", *["storage GET 206"] * 3]
        assert path.resolve().read_bytes() == broken[damage]  # other programs use this cache too


def test_without_a_network_the_cache_is_used(hub: Hub, hub_client: Client):
    commit = hub.add("tiny/cached", sharded(40))
    kept = hub_client.keep("tiny/cached", "main", "config.json", INDEX, *SHARDS)
    online = hub_client.fetch("tiny/cached@main")
    hub.add("tiny/partly", sharded(50))
    hub_client.keep("tiny/partly", "main", "config.json", INDEX, SHARDS[0])
    hub.reset()
    home = hub_client.home
    with client(home, hub, HF_HUB_OFFLINE="1") as offline:
        for revision in ("main", commit):
            answer = offline.fetch(f"tiny/cached@{revision}")
            assert answer["weights"] == online["weights"]
            assert answer["origin"] == online["origin"] | {"revision": revision}
            assert answer["moved"] == 0
        for missing in ("tiny/cached@v2", "tiny/unknown", "tiny/partly", f"tiny/cached@{'0' * 40}"):
            expect(offline.fetch(missing), "TransientFault", "HF_HUB_OFFLINE", "unset")
        path = kept[2]
        right = path.read_bytes()
        path.resolve().write_bytes(right[:-4])
        expect(offline.fetch("tiny/cached"), "TransientFault", "unset HF_HUB_OFFLINE", path.name)
        path.resolve().write_bytes(right)
    assert not requests(hub)
    with client(home, HF_ENDPOINT=f"http://127.0.0.1:{closed_port()}") as unplugged:
        assert unplugged.fetch("tiny/cached@main")["weights"] == online["weights"]
    assert commit in (home / "stderr.txt").read_text()  # the log says that it is the cache's


@pytest.mark.faults
def test_an_unreachable_hub(tmp_path):
    port = closed_port()
    with client(tmp_path, HF_ENDPOINT=f"http://somebody:secretword@127.0.0.1:{port}") as it:
        answer = it.fetch("tiny/model")
        expect(answer, "TransientFault", f"http://127.0.0.1:{port}", "cannot be reached", "HF_ENDPOINT", "HF_HUB_OFFLINE=1")
        assert "secretword" not in answer["text"] + it.errors.read_text()
        assert len(answer["waits"]) == TRIES - 1 and sum(answer["waits"]) < 12


@pytest.mark.faults
@pytest.mark.parametrize("endpoint", ["hub.example", "ftp://hub.example", "http://", "http://hub:port"])
def test_an_endpoint_that_is_none(tmp_path, endpoint):
    with client(tmp_path, HF_ENDPOINT=endpoint) as it:
        expect(it.fetch("tiny/model"), "UsageError", "HF_ENDPOINT", endpoint.rstrip("/"))


@pytest.mark.faults
def test_a_hub_that_does_not_answer_is_not_waited_for(hub: Hub, tmp_path):
    hub.add("tiny/stalled", whole(15))
    hub.fail("api/models", 1, stall=4)
    with client(tmp_path, hub, HF_HUB_ETAG_TIMEOUT="1") as it:
        it.fetch("hf:..")  # so that start-up is not in the time
        started = time.monotonic()
        assert content(it.fetch("tiny/stalled")) == [sha256(weights(15))]
        assert time.monotonic() - started < 3.5


@pytest.mark.faults
def test_a_full_disk_is_no_fault_of_the_model(hub: Hub, tmp_path):
    hub.add("tiny/large", {"config.json": CONFIG, "model.safetensors": weights(16, 200_000)})
    disk = tmp_path / "small"
    disk.mkdir()
    hub.fail("storage GET", ignore_range=True)  # so that the file is fetched whole
    with client(tmp_path, hub, small_disk(disk, 300), HF_HUB_CACHE=str(disk)) as it:
        expect(it.fetch("tiny/large"), "DiskFault", "cannot be stored", "No space left", "HF_HOME", "model.safetensors")


def test_no_progress_bars_where_nobody_watches(hub: Hub, tmp_path):
    hub.add("tiny/quiet", whole(17))
    with client(tmp_path, hub) as it:
        assert content(it.fetch("tiny/quiet")) == [sha256(weights(17))]
        assert it.errors.read_text() == ""


def test_the_loopback_hub_serves_ranges(hub: Hub):
    """What ranged reads rely on; the real hub behaves so."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    body = weights(18)
    hub.add("tiny/ranges", {"model.safetensors": body})
    url = f"{hub.url()}/tiny/ranges/resolve/main/model.safetensors"
    for wanted, part in {"0-9": body[:10], "10-": body[10:], "-7": body[-7:], f"5-{10**9}": body[5:]}.items():
        with urlopen(Request(url, headers={"Range": f"bytes={wanted}"})) as answer:
            assert (answer.status, answer.read()) == (206, part)
            start = body.index(part)
            assert answer.headers["Content-Range"] == f"bytes {start}-{start + len(part) - 1}/{len(body)}"
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(url, headers={"Range": f"bytes={len(body)}-"}))
    assert (caught.value.code, caught.value.headers["Content-Range"]) == (416, f"bytes */{len(body)}")
    hub.fail("storage GET", 1, ignore_range=True)
    with urlopen(Request(url, headers={"Range": "bytes=0-9"})) as answer:
        assert (answer.status, answer.read()) == (200, body)
