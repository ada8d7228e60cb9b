"""Corpora and their tokens: the same in every process, nothing twice, nothing in both splits, whole or not there."""

import csv
import io
import itertools
import json
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
from tokenizers import Tokenizer

from qkgeom import console
from qkgeom.errors import QkgeomError, TransientFault, UsageError
from qkgeom.training import corpora
from qkgeom.training.corpora.embedded import SHORTEST
from qkgeom.training.sequences import IGNORED, Sequences
from qkgeom.training.tokens import SPECIAL, Corpus, read_corpus, write_corpus
from qkgeom.training.vocabulary import train_tokenizer, write_tokenizer
from qkgeom.verbs import tokenizer as tokenizer_verb

NAMES = ("reference", "docstrings", "descriptions")
VOCABULARY, LONGEST = 2000, 400_000
WORKFLOW = Path(__file__).parents[1] / "workflow"


def build(folder: Path, names, **env: str) -> Path:
    """Makes embedded corpora as the pipeline does, a process for each step."""
    file = folder / "tokenizer.json"
    steps = [["tokenizer", *names, "--output", file, "--vocab-size", VOCABULARY]]
    for name in names:
        steps.append(["corpus", name, "--tokenizer", file, "--output", folder / name, "--longest", LONGEST])
    for step in steps:
        environment = os.environ | {"PYTHONPATH": str(WORKFLOW)} | env
        argv = [sys.executable, "-m", "qkgeom", *map(str, step)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def texts():
    return {name: list(corpora.documents(name).texts) for name in NAMES}


@pytest.fixture(scope="module")
def built(texts, tmp_path_factory):
    """The embedded corpora, made in this process."""
    folder = tmp_path_factory.mktemp("corpora")
    text = train_tokenizer([text for name in sorted(NAMES) for text in texts[name]], VOCABULARY)
    write_tokenizer(folder / "tokenizer.json", text, {"kind": "trained", "corpora": sorted(NAMES), "vocab_size": VOCABULARY})
    for name in NAMES:
        write_corpus(folder / name, name, texts[name], text, LONGEST, origin=corpora.documents("reference").origin)
    return folder


def lines_of(count: int, letters: str = "abcdefghij") -> list[str]:
    rng = random.Random(0)
    return sorted({" ".join("".join(rng.choices(letters, k=rng.randint(2, 6))) for _ in range(20)) for _ in range(count)})


@pytest.mark.slow
def test_other_processes_give_the_same_bytes(built, tmp_path):
    other = build(tmp_path, tuple(reversed(NAMES)), PYTHONHASHSEED="2", RAYON_NUM_THREADS="1")
    files = sorted(path.relative_to(built) for path in built.rglob("*.*"))
    assert len(files) == 2 + 3 * len(NAMES)
    assert [file for file in files if (built / file).read_bytes() != (other / file).read_bytes()] == []


def test_documents_are_whole_and_different(texts):
    for each in texts.values():
        assert len(each) > 500 and len(set(each)) == len(each)
        assert all(len(text) >= SHORTEST and text == " ".join(text.split()) for text in each)
    assert not set(texts["reference"]) & set(texts["descriptions"])


def test_what_the_corpora_are_made_of(texts):
    assert any("The standard type hierarchy" in text for text in texts["reference"])
    assert any("NumPy" in text for text in texts["descriptions"])
    assert any(text.startswith("A 2-D Fourier") or "ndarray" in text for text in texts["docstrings"])


def test_the_record_tells_digest_and_counts(built, texts):
    digests = set()
    for name in NAMES:
        record = json.loads((built / name / "corpus.json").read_text())
        corpus = read_corpus(built / name)
        assert record["train"]["documents"] + record["heldout"]["documents"] == len(texts[name])
        assert 0.06 < record["heldout"]["documents"] / len(texts[name]) < 0.14
        assert record["train"]["tokens"] == len(corpus.train) and record["heldout"]["tokens"] == len(corpus.heldout)
        assert max(corpus.train.max(), corpus.heldout.max()) < record["vocab_size"] == VOCABULARY
        digests.add(record["digest"])
    assert len(digests) == len(NAMES)


def split_documents(ids: np.ndarray) -> list[bytes]:
    ends = np.flatnonzero(ids == SPECIAL.index("[SEP]")) + 1
    return [part.tobytes() for part in np.split(ids, ends) if len(part)]


def test_no_document_is_in_both_splits(built):
    for name in NAMES:
        corpus = read_corpus(built / name)
        train, heldout = split_documents(corpus.train), split_documents(corpus.heldout)
        assert train and heldout and not set(train) & set(heldout)


def test_tokens_are_the_documents_tokens(tmp_path):
    texts = lines_of(100)
    tokenizer_json = train_tokenizer(texts, 300)
    write_corpus(tmp_path, "tiny", texts, tokenizer_json, 10**6)
    tokenizer, corpus = Tokenizer.from_str(tokenizer_json), read_corpus(tmp_path)
    found = {tokenizer.decode(ids).replace(" ##", "") for ids in (np.frombuffer(p, np.uint16) for p in parts(corpus))}
    assert found == set(texts)


def parts(corpus) -> list[bytes]:
    return split_documents(corpus.train) + split_documents(corpus.heldout)


def test_a_tokenizer_is_the_same_each_time():
    """Letters too rare for the vocabulary must not be numbered in the order in which a thread meets them."""
    rare = [chr(0x430 + k) * 3 + " " + chr(0x3B1 + k) * 2 for k in range(20)]
    texts = [*lines_of(100), *rare]
    first = train_tokenizer(texts, 300)
    assert all(train_tokenizer(order, 300) == first for order in (texts, texts[::-1], texts) for _ in range(3))
    vocabulary = json.loads(first)["model"]["vocab"]
    assert list(vocabulary)[: len(SPECIAL)] == list(SPECIAL) and len(vocabulary) == 300
    assert not any(letter in vocabulary or f"##{letter}" in vocabulary for text in rare for letter in text if letter.strip())


def test_tokens_beyond_the_longest_are_left_out(tmp_path):
    texts = lines_of(100)
    write_corpus(tmp_path, "tiny", texts, train_tokenizer(texts, 300), 50)
    corpus = read_corpus(tmp_path)
    assert len(corpus.train) == len(corpus.heldout) == 50


@pytest.mark.faults
@pytest.mark.parametrize("count", [0, 1])
def test_too_few_documents(tmp_path, count):
    texts = lines_of(100)[:count]
    with pytest.raises(QkgeomError, match=rf"too small to be split(.|\n)*found: +{count} document"):
        write_corpus(tmp_path, "tiny", texts, train_tokenizer(texts, 300), 10**6)
    assert not (tmp_path / "corpus.json").exists()


@pytest.mark.faults
@pytest.mark.parametrize(("size", "fits"), [(5, False), (25, False), (26, True)])
def test_a_vocabulary_smaller_than_the_letters(size, fits):
    """Five special tokens, and ten letters that begin or continue a word."""
    if fits:
        train_tokenizer(lines_of(100), size)
        return
    with pytest.raises(UsageError, match=r"the vocabulary is too small(.|\n)*more than 25"):
        train_tokenizer(lines_of(100), size)


@pytest.mark.faults
def test_no_such_corpus():
    with pytest.raises(UsageError, match=r"there is no such corpus(.|\n)*found: +wiki(.|\n)*reference, (.|\n)*wikipedia"):
        corpora.documents("wiki")


@pytest.mark.faults
def test_a_vocabulary_is_trained_on_texts_at_hand(tmp_path):
    with pytest.raises(UsageError, match=r"embedded corpora only(.|\n)*found: +wikipedia"):
        tokenizer_verb.command(tmp_path / "tokenizer.json", ["reference", "wikipedia"], vocab_size=VOCABULARY)
    for wrong in ({}, {"names": ["reference"]}, {"names": ["reference"], "vocab_size": 10, "pretrained": "a/b"}):
        with pytest.raises(UsageError, match="trained or fetched"):
            tokenizer_verb.command(tmp_path / "tokenizer.json", **wrong)


# streams


def tiny_tokenizer() -> str:
    return train_tokenizer(lines_of(100), 300)


def test_a_stream_without_end_is_read_until_it_suffices(tmp_path):
    read = []
    endless = (read.append(number) or f"{number} abc def" for number in itertools.count())
    write_corpus(tmp_path, "endless", endless, tiny_tokenizer(), 200_000, streamed=True)
    corpus = read_corpus(tmp_path)
    assert len(corpus.train) == 200_000 and 15_000 < len(corpus.heldout) < 30_000
    assert len(read) < 60_000  # and no more than a batch too many


def test_texts_at_hand_are_read_to_the_end_for_all_held_out_ones(tmp_path):
    for streamed in (False, True):
        write_corpus(tmp_path / str(streamed), "a", lines_of(6000), tiny_tokenizer(), 20_000, streamed=streamed)
    at_hand, streamed = (read_corpus(tmp_path / name) for name in ("False", "True"))
    assert len(at_hand.train) == len(streamed.train) == len(at_hand.heldout) == 20_000
    assert 10_000 < len(streamed.heldout) < 20_000
    counts = json.loads((tmp_path / "False" / "corpus.json").read_text())
    assert counts["train"]["documents"] + counts["heldout"]["documents"] == 6000


@pytest.mark.parametrize(("extra", "dtype"), [(0, "<u2"), (2**16, "<i4")])
def test_tokens_take_no_more_room_than_the_vocabulary_needs(tmp_path, extra, dtype):
    described = json.loads(tiny_tokenizer())
    vocabulary = described["model"]["vocab"]
    words = [f"word{number}" for number in range(extra)]
    vocabulary |= {word: 300 + number for number, word in enumerate(words)}
    text, texts = json.dumps(described), [*lines_of(50), *words[-100:]]
    write_corpus(tmp_path, "wide", texts, text, 10**6)
    corpus, tokenizer = read_corpus(tmp_path), Tokenizer.from_str(text)
    assert corpus.train.dtype == np.dtype(dtype) and corpus.vocab_size == 300 + extra
    found = [tokenizer.decode(ids).replace(" ##", "") for ids in documents_of(corpus)]
    assert sorted(found) == sorted(texts)


def documents_of(corpus: Corpus) -> list[np.ndarray]:
    """The tokens of each document, without [SEP]."""
    both = (corpus.train, corpus.heldout)
    cut = [part for ids in both for part in np.split(ids, np.flatnonzero(ids == corpus.special["[SEP]"]) + 1)]
    return [part[:-1] for part in cut if len(part)]


@pytest.mark.faults
def test_a_stream_that_breaks_off_leaves_nothing(tmp_path):
    write_corpus(tmp_path, "old", lines_of(100), tiny_tokenizer(), 10**6)

    def broken():
        yield from lines_of(5000)
        raise TransientFault("the hub cannot be reached")

    with pytest.raises(TransientFault, match="cannot be reached"):
        write_corpus(tmp_path, "new", broken(), tiny_tokenizer(), 10**6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heldout.bin", "train.bin"]
    with pytest.raises(QkgeomError, match=r"a corpus cannot be read(.|\n)*corpus.json"):
        read_corpus(tmp_path)


def test_progress_of_a_stream(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(console, "QUIET_INTERVAL", 0.0)
    write_corpus(tmp_path, "long", lines_of(6000), tiny_tokenizer(), 10**6)
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("tokens of long: ")]
    assert len(told) > 1 and all(" of at most 1000000, " in line and line.endswith("/s") for line in told)


def test_progress_of_a_stream_on_a_terminal(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    write_corpus(tmp_path, "long", lines_of(100), tiny_tokenizer(), 10**6)
    assert "tokens of long" in terminal.getvalue()


# special tokens


def test_special_tokens_are_known_by_name_not_by_place():
    """With BERT's ids: unpredicted, never taken as a random token, and the masked ones have that of [MASK]."""
    special = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    train = np.random.default_rng(0).integers(0, 120, 64_000).astype(np.uint16)
    sequences = Sequences(Corpus("made up", train, train, 120, "digest", special), 64, True, 0)
    batches = [sequences.train_batch(range(first, first + 50)) for first in range(0, 1000, 50)]
    inputs, labels = (np.concatenate([each[key].numpy().ravel() for each in batches]) for key in ("input_ids", "labels"))
    predicted = labels != IGNORED
    ids = np.array(list(special.values()))
    assert not np.isin(labels[predicted], ids).any()
    assert set(np.unique(labels[predicted])) == set(range(120)) - set(ids)
    masked = predicted & (inputs == special["[MASK]"])
    assert 0.78 < masked.sum() / predicted.sum() < 0.82
    changed = inputs[predicted & ~masked & (inputs != labels)]
    assert set(np.unique(changed)) == set(range(120)) - set(ids)


# Jigsaw


COMMENTS = ['Hello,\nthis is "quoted" and long', "Schöne Grüße", *(f"comment {number}" for number in range(30))]


def train_csv(header=("id", "comment_text", "toxic"), comments=COMMENTS) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([header, *([str(i), each, "0"] for i, each in enumerate(comments))])
    return text.getvalue().encode()


def zipped(**files: bytes) -> bytes:
    """A zip of files, whose names have __ for a dot and ___ for a slash."""
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("___", "/").replace("__", "."), content)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        zipped(test__csv=b"x", train__csv=train_csv()),
        zipped(sample_submission__csv__zip=b"x", train__csv__zip=zipped(train__csv=train_csv())),
        zipped(jigsaw___train__csv__zip=zipped(data___train__csv=train_csv())),
    ],
)
def test_jigsaw_is_the_comments_of_the_users_zip(tmp_path, content):
    path = tmp_path / "jigsaw.zip"
    path.write_bytes(content)
    documents = corpora.documents("jigsaw", path)
    assert list(documents.texts) == COMMENTS and not documents.streamed
    assert documents.origin["file"] == "jigsaw.zip" and len(documents.origin["sha256"]) == 64


@pytest.mark.faults
def test_jigsaw_without_the_users_zip(tmp_path):
    for path in (tmp_path / "data" / "jigsaw.zip", tmp_path):
        with pytest.raises(UsageError, match=rf"where: +{path}\n(.|\n)*kaggle.com/c/jigsaw-toxic(.|\n)*jigsaw_zip"):
            corpora.documents("jigsaw", path)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>log in</html>", "BadZipFile"),
        (b"", "BadZipFile"),
        (zipped(train__csv=train_csv())[:-100], "BadZipFile"),
        (zipped(test__csv=train_csv()), "found: +test.csv"),
        (zipped(), "found: +no files"),
        (zipped(train__csv__zip=zipped(test__csv=train_csv())), "found: +test.csv"),
        (zipped(train__csv__zip=b"no zip"), "BadZipFile"),
        (zipped(train__csv=train_csv(("id", "text", "toxic"))), "columns id, text, toxic\n.*expected: +a column comment_text"),
        (zipped(train__csv=b""), r"columns \(none\)"),
    ],
)
def test_a_zip_that_is_not_jigsaws(tmp_path, content, said):
    path = tmp_path / "jigsaw.zip"
    path.write_bytes(content)
    with pytest.raises(QkgeomError, match=rf"not the zip of Kaggle's(.|\n)*jigsaw.zip(.|\n)*{said}(.|\n)*kaggle.com"):
        corpora.documents("jigsaw", path)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (zipped(train__csv=train_csv() + b'"99","lost"\n'), "2 cells and not 3"),
        (zipped(train__csv=train_csv() + b'"99","\xff","0"\n'), "UnicodeDecodeError"),
        (zipped(train__csv=train_csv()[:-4]), "unexpected end of data"),
        (zipped(train__csv=train_csv())[:100] + bytes(20) + zipped(train__csv=train_csv())[120:], "zlib|CRC|Bad"),
    ],
)
def test_a_damaged_zip(tmp_path, content, said):
    path = tmp_path / "jigsaw.zip"
    path.write_bytes(content)
    with pytest.raises(QkgeomError, match=rf"not the zip of Kaggle's(.|\n)*({said})"):
        list(corpora.documents("jigsaw", path).texts)
