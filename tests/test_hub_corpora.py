"""Corpora and tokenizers of the model hub: the real clients (`datasets`, too) against a hub on the loopback interface."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import hub_server
from hub_server import Client, Hub, client, closed_port
from qkgeom.training.corpora.hub import CORPORA, PAUSES
from qkgeom.training.tokens import SPECIAL, read_corpus, write_corpus
from qkgeom.training.vocabulary import train_tokenizer

served_hub, hub, hub_client = hub_server.served_hub, hub_server.hub, hub_server.hub_client

CLIENT_TRIES = 6  # what huggingface_hub does itself for a range of a file
CONFIG = CORPORA["wikipedia"].config
README = f"""---
configs:
- config_name: {CONFIG}
  data_files: [{{split: train, path: {CONFIG}/*}}]
- config_name: 20231101.fr
  data_files: [{{split: train, path: 20231101.fr/*}}]
---
"""


def lines_of(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(20)) for _ in range(count)]


TOKENIZER = train_tokenizer(lines_of(200), 300)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(TOKENIZER)
    return path


def parquet(texts: list[str], column: str = "text") -> bytes:
    """A file in row groups of ten."""
    file = io.BytesIO()
    table = pyarrow.table({"id": [str(row) for row in range(len(texts))], column: texts, "url": ["http://x" * 40] * len(texts)})
    pyarrow.parquet.write_table(table, file, row_group_size=10)
    return file.getvalue()


def name_of(shard: int) -> str:
    return f"{CONFIG}/train-{shard:05d}-of-00003.parquet"


def wikipedia(seed: int, column: str = "text") -> dict[str, bytes]:
    """Three files of 100 texts each, and another language."""
    texts = lines_of(300, seed)
    shards = {name_of(shard): parquet(texts[100 * shard : 100 * (shard + 1)], column) for shard in range(3)}
    return {"README.md": README.encode(), **shards, "20231101.fr/train-00000-of-00001.parquet": parquet(["non"] * 50)}


def corpus(client: Client, folder: Path, tokenizer: Path, name: str = "wikipedia", longest: int = 10**6) -> dict:
    return client.verb("corpus", name, "--tokenizer", tokenizer, "--longest", longest, "--output", folder)


def digest(folder: Path, seed: int) -> str:
    """That of the same texts at hand."""
    write_corpus(folder, "wikipedia", lines_of(300, seed), TOKENIZER, 10**6)
    return read_corpus(folder).digest


def expect(answer: dict, error: str, *said: str) -> None:
    assert answer.get("error") == error, answer
    for each in said:
        assert each in answer["text"], answer["text"]


def test_a_streamed_corpus_is_that_of_its_texts(hub: Hub, hub_client: Client, tokenizer, tmp_path):
    commit = hub.add("datasets/wikimedia/wikipedia", wikipedia(1))
    answer = corpus(hub_client, tmp_path / "streamed", tokenizer)
    assert "error" not in answer, answer["text"]
    streamed = read_corpus(tmp_path / "streamed")
    assert streamed.digest == digest(tmp_path / "at hand", 1)
    assert json.loads((tmp_path / "streamed/corpus.json").read_text())["origin"] == {
        "kind": "hub",
        "repo": "wikimedia/wikipedia",
        "config": CONFIG,
        "split": "train",
        "commit": commit,
    }
    assert not hub.asked("resolve/(?!" + commit + ")")  # nothing but the files of this commit
    assert not hub.asked("resolve/.*20231101.fr")


def test_no_more_is_read_than_is_needed(hub: Hub, hub_client: Client, tokenizer, tmp_path):
    files = wikipedia(2)
    files |= {name_of(shard): parquet(lines_of(4000, shard)) for shard in range(3)}  # more than a batch in each
    hub.add("datasets/wikimedia/wikipedia", files)
    assert "error" not in corpus(hub_client, tmp_path, tokenizer, longest=1000)
    counts = json.loads((tmp_path / "corpus.json").read_text())
    assert counts["train"]["tokens"] == 1000 and 0 < counts["heldout"]["tokens"] <= 1000
    asked = [bool(hub.asked(hub_server.digest_of(name_of(shard), files[name_of(shard)]))) for shard in range(3)]
    assert asked == [True, False, False]


def test_a_stopped_stream_ends_the_process_well(hub: Hub, hub_client: Client, tokenizer, tmp_path):
    """Arrow's threads are at work when enough has been read."""
    hub.add("datasets/wikimedia/wikipedia", wikipedia(3))
    arguments = ("--tokenizer", str(tokenizer), "--longest", "100", "--output", str(tmp_path))
    done = hub_client.command("corpus", "wikipedia", *arguments)
    assert done.returncode == 0, done.stderr
    assert len(read_corpus(tmp_path).train) == 100


def test_red_pajama_is_the_training_split(hub: Hub, hub_client: Client, tokenizer, tmp_path):
    texts = lines_of(100, 4)
    files = {f"data/train-0000{shard}-of-00002-0f.parquet": parquet(texts[50 * shard :][:50]) for shard in (0, 1)}
    files |= {f"data/{split}-00000-of-00001-2d.parquet": parquet(lines_of(20, 5)) for split in ("validation", "test")}
    hub.add("datasets/DKYoon/SlimPajama-6B", files)
    assert "error" not in corpus(hub_client, tmp_path / "streamed", tokenizer, "red_pajama")
    write_corpus(tmp_path / "at hand", "red_pajama", texts, TOKENIZER, 10**6)
    assert read_corpus(tmp_path / "streamed").digest == read_corpus(tmp_path / "at hand").digest


@pytest.mark.faults
@pytest.mark.parametrize(
    ("match", "times", "fault"),
    [
        ("GET /api/datasets/[^/]+/[^/]+$", 2, {"status": 503}),
        ("hub GET .*/train-00001", 2, {"status": 503}),
        ("storage GET", 2, {"keep": 1000}),
        ("storage GET", 1, {"status": 429, "headers": {"Retry-After": "1"}}),
    ],
)
def test_a_fault_that_passes_changes_nothing(hub: Hub, hub_client: Client, tokenizer, tmp_path, match, times, fault):
    seed = len(match) + times
    hub.add("datasets/wikimedia/wikipedia", wikipedia(seed))
    hub.fail(match, times, **fault)
    answer = corpus(hub_client, tmp_path / "streamed", tokenizer)
    assert "error" not in answer, answer["text"]
    assert answer["waits"] and hub.faults[0].times == 0
    assert read_corpus(tmp_path / "streamed").digest == digest(tmp_path / "at hand", seed)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("match", "times"), [("hub GET .*/train-00001", CLIENT_TRIES + 1), ("hub GET .*/tree/", 2 * CLIENT_TRIES)]
)
def test_a_stream_is_taken_up_where_it_broke_off(hub: Hub, hub_client: Client, tokenizer, tmp_path, match, times):
    seed = 500 + times
    hub.add("datasets/wikimedia/wikipedia", wikipedia(seed))
    hub.fail(match, times, status=503)
    answer = corpus(hub_client, tmp_path / "streamed", tokenizer)
    assert "error" not in answer, answer["text"]
    assert PAUSES[0] in answer["waits"] and hub.faults[0].times == 0
    assert read_corpus(tmp_path / "streamed").digest == digest(tmp_path / "at hand", seed)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("match", "fault", "said"),
    [
        ("GET /api/datasets/", {"status": 503}, "out of order"),
        ("GET /api/datasets/", {"status": 200, "body": b"<html>log in"}, "HF_ENDPOINT"),
        ("hub .*/train-00001", {"status": 503}, "HTTP 503"),
        ("hub .*/train-00002", {"status": 429}, "slow down"),
        ("storage GET", {"status": 403}, "HTTP 403"),
        ("storage GET", {"keep": 1000}, "cannot be reached, or a download broke off"),
    ],
)
def test_a_fault_that_lasts(hub: Hub, hub_client: Client, tokenizer, tmp_path, match, fault, said):
    hub.add("datasets/wikimedia/wikipedia", wikipedia(len(match + said)))
    hub.fail(match, **fault)
    expect(corpus(hub_client, tmp_path, tokenizer), "TransientFault", said, "do:", hub.url(), "datasets/wikimedia/wikipedia")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.faults
def test_without_a_hub(hub: Hub, tokenizer, tmp_path):
    for environment, said in (
        ({"HF_ENDPOINT": f"http://127.0.0.1:{closed_port()}"}, "cannot be reached"),
        ({"HF_ENDPOINT": hub.url(), "HF_HUB_OFFLINE": "1"}, "unset HF_HUB_OFFLINE"),
    ):
        with client(tmp_path / "home", **environment) as it:
            expect(corpus(it, tmp_path / "corpus", tokenizer), "TransientFault", said)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.faults
def test_a_data_set_that_is_not_there(hub: Hub, hub_client: Client, tokenizer, tmp_path):
    hub.repos.pop("datasets/wikimedia/wikipedia", None)
    expect(corpus(hub_client, tmp_path, tokenizer), "ModelFault", "no such repository", "/datasets/wikimedia/wikipedia")


@pytest.mark.faults
@pytest.mark.parametrize("wrong", ["column", "config", "files", "content"])
def test_a_data_set_that_is_another(hub: Hub, hub_client: Client, tokenizer, tmp_path, wrong):
    files = wikipedia(6)
    if wrong == "column":
        files = wikipedia(6, "body")
    if wrong == "config":
        files["README.md"] = README.replace("20231101.en", "20240101.en").encode()
    if wrong == "files":
        files = {name: files[name] for name in files if CONFIG not in name}
    if wrong == "content":
        files[name_of(0)] = b"PAR1" + b"x" * 3000 + b"PAR1"
    hub.add("datasets/wikimedia/wikipedia", files)
    expect(corpus(hub_client, tmp_path, tokenizer), "ModelFault", "not what it is taken for", "column `text`", hub.url())
    assert list(tmp_path.iterdir()) == []


# the tokenizer


def berts() -> str:
    """A tokenizer whose special tokens have the ids of BERT's, and which would cut what is long."""
    vocabulary = json.loads(TOKENIZER)["model"]["vocab"]
    words = [token for token in vocabulary if token not in SPECIAL]
    first = ["[PAD]", *(f"[unused{number}]" for number in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    described = json.loads(TOKENIZER)
    described["model"]["vocab"] = {token: index for index, token in enumerate([*first, *words])}
    for token in described["added_tokens"]:
        token["id"] = described["model"]["vocab"][token["content"]]
    described["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    return json.dumps(described)


def test_a_published_tokenizer(hub: Hub, hub_client: Client, tmp_path):
    commit = hub.add("google-bert/bert-base-uncased", {"tokenizer.json": berts().encode(), "model.safetensors": b"x" * 10**6})
    target = tmp_path / "tokenizer.json"
    answer = hub_client.verb("tokenizer", "--pretrained", "google-bert/bert-base-uncased", "--output", target)
    assert "error" not in answer, answer["text"]
    assert target.read_text() == berts() and not hub.asked("model.safetensors")
    origin = {"kind": "hub", "repo": "google-bert/bert-base-uncased", "revision": "main", "commit": commit}
    assert json.loads((tmp_path / "tokenizer_origin.json").read_text()) == origin
    write_corpus(tmp_path, "tiny", lines_of(100), target.read_text(), 10**6)
    found = read_corpus(tmp_path)
    assert found.special == {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    assert (found.train == 102).sum() + (found.heldout == 102).sum() == 100
    assert len(found.train) > 20 * 80  # each of 20 words or more: nothing was cut
    with client(hub_client.home, HF_ENDPOINT=hub.url(), HF_HUB_OFFLINE="1") as offline:
        again = offline.verb("tokenizer", "--pretrained", "google-bert/bert-base-uncased", "--output", tmp_path / "again.json")
        assert "error" not in again and (tmp_path / "again.json").read_text() == berts()


@pytest.mark.faults
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"vocab.txt": b"a"}, "no such file"),
        ({"tokenizer.json": b"{}"}, "not a tokenizer"),
        ({"tokenizer.json": berts().replace("[MASK]", "<mask>").encode()}, "no [MASK]"),
    ],
)
def test_a_tokenizer_that_cannot_be_used(hub: Hub, hub_client: Client, tmp_path, files, said):
    hub.add("tiny/tokenizer", files)
    answer = hub_client.verb("tokenizer", "--pretrained", "tiny/tokenizer", "--output", tmp_path / "tokenizer.json")
    expect(answer, "ModelFault", said, "tiny/tokenizer@main")
    assert list(tmp_path.iterdir()) == []
