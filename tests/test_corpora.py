"""The embedded corpora and their tokens: the same in every process, nothing twice, nothing in both splits."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from qkgeom.errors import QkgeomError, UsageError
from qkgeom.training.corpora import SHORTEST, documents
from qkgeom.training.tokens import SPECIAL, read_corpus, train_tokenizer, write_corpus

NAMES = ("reference", "docstrings", "descriptions")
VOCABULARY, LONGEST = 2000, 400_000
WORKFLOW = Path(__file__).parents[1] / "workflow"


def build(folder: Path, names, **env: str) -> Path:
    sizes = ["--vocab-size", str(VOCABULARY), "--longest", str(LONGEST)]
    argv = [sys.executable, "-m", "qkgeom", "corpus", *names, "--output", str(folder), *sizes]
    environment = os.environ | {"PYTHONPATH": str(WORKFLOW)} | env
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return build(tmp_path_factory.mktemp("corpora"), NAMES, PYTHONHASHSEED="1")


@pytest.fixture(scope="module")
def texts():
    return {name: documents(name) for name in NAMES}


def lines_of(count: int, letters: str = "abcdefghij") -> list[str]:
    rng = random.Random(0)
    return sorted({" ".join("".join(rng.choices(letters, k=rng.randint(2, 6))) for _ in range(20)) for _ in range(count)})


@pytest.mark.slow
def test_another_process_gives_the_same_bytes(corpora, tmp_path):
    other = build(tmp_path, reversed(NAMES), PYTHONHASHSEED="2", RAYON_NUM_THREADS="1")
    files = sorted(path.relative_to(corpora) for path in corpora.rglob("*.*"))
    assert len(files) == 4 * len(NAMES)
    assert [file for file in files if (corpora / file).read_bytes() != (other / file).read_bytes()] == []


def test_documents_are_whole_and_different(texts):
    for each in texts.values():
        assert len(each) > 500 and len(set(each)) == len(each)
        assert all(len(text) >= SHORTEST and text == " ".join(text.split()) for text in each)
    assert not set(texts["reference"]) & set(texts["descriptions"])


def test_what_the_corpora_are_made_of(texts):
    assert any("The standard type hierarchy" in text for text in texts["reference"])
    assert any("NumPy" in text for text in texts["descriptions"])
    assert any(text.startswith("A 2-D Fourier") or "ndarray" in text for text in texts["docstrings"])


def test_the_record_tells_digest_and_counts(corpora, texts):
    digests = set()
    for name in NAMES:
        record = json.loads((corpora / name / "corpus.json").read_text())
        corpus = read_corpus(corpora / name)
        assert record["train"]["documents"] + record["heldout"]["documents"] == len(texts[name])
        assert 0.06 < record["heldout"]["documents"] / len(texts[name]) < 0.14
        assert record["train"]["tokens"] == len(corpus.train) and record["heldout"]["tokens"] == len(corpus.heldout)
        assert max(corpus.train.max(), corpus.heldout.max()) < record["vocab_size"] == VOCABULARY
        digests.add(record["digest"])
    assert len(digests) == len(NAMES)


def split_documents(ids: np.ndarray) -> list[bytes]:
    ends = np.flatnonzero(ids == SPECIAL.index("[SEP]")) + 1
    return [part.tobytes() for part in np.split(ids, ends) if len(part)]


def test_no_document_is_in_both_splits(corpora):
    for name in NAMES:
        corpus = read_corpus(corpora / name)
        train, heldout = split_documents(corpus.train), split_documents(corpus.heldout)
        assert train and heldout and not set(train) & set(heldout)


def test_tokens_are_the_documents_tokens(tmp_path):
    texts = lines_of(100)
    tokenizer_json = train_tokenizer(texts, 300)
    write_corpus(tmp_path, "tiny", texts, tokenizer_json, 10**6)
    tokenizer, corpus = Tokenizer.from_str(tokenizer_json), read_corpus(tmp_path)
    found = {tokenizer.decode(ids).replace(" ##", "") for ids in (np.frombuffer(p, np.int32) for p in parts(corpus))}
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
    with pytest.raises(UsageError, match=r"there is no such corpus(.|\n)*found: +wikipedia(.|\n)*reference, docstrings"):
        documents("wikipedia")
