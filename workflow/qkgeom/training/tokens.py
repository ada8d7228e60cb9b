"""An embedded corpus as tokens: one WordPiece for all three corpora, documents split into train and held-out.

A token file is one long row of ids, every document ended by [SEP]; sequences are cut from it (packed, no padding).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import whole_file, write_json, write_text

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
RARE = 20  # letters seen less often are unknown to the tokenizer
HELD_OUT = 10  # one document in so many
SPLITS = ("train", "heldout")


@dataclass(frozen=True)
class Corpus:
    """A tokenised corpus.

    Attributes:
        name: of the corpus.
        train: int32 ids [n].
        heldout: int32 ids [n].
        vocab_size: number of ids.
        digest: of the tokens and the vocabulary, for the run's record.
    """

    name: str
    train: np.ndarray
    heldout: np.ndarray
    vocab_size: int
    digest: str


def train_tokenizer(texts: list[str], vocab_size: int) -> str:
    """A lower-case WordPiece (BERT's) trained on `texts`, as the JSON of the tokenizers library.

    Raises:
        UsageError: the vocabulary has no room beside the special tokens and the letters.
    """
    from tokenizers import trainers

    tokenizer = _word_piece(None)
    counts = Counter(letter for text in texts for letter in tokenizer.normalizer.normalize_str(text) if letter.strip())
    letters = sorted(letter for letter, count in counts.items() if count >= RARE)
    # The trainer numbers continued letters as it meets them, in an order that varies from run to run, and breaks ties
    # between merges by number: all that it may use, given beforehand as special tokens, make the vocabulary reproducible.
    first = [*SPECIAL, *letters, *("##" + letter for letter in letters)]
    if vocab_size <= len(first):
        raise UsageError(
            "the vocabulary is too small",
            found=vocab_size,
            expected=f"more than {len(first)}: {len(SPECIAL)} special tokens and the letters of the corpus",
            fix="raise vocab_size in the preset",
        )
    alphabet = {"initial_alphabet": letters, "limit_alphabet": len(letters)}
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=first, show_progress=False, **alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    plain = _word_piece(tokenizer.get_vocab())
    plain.add_special_tokens(list(SPECIAL))
    return plain.to_str()


def _word_piece(vocab: dict[str, int] | None) -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def write_corpus(folder: Path, name: str, texts: list[str], tokenizer_json: str, longest: int) -> None:
    """Tokenises documents and writes `tokenizer.json`, `train.npy`, `heldout.npy` and, last, `corpus.json`.

    Args:
        folder: of this corpus.
        name: of the corpus.
        texts: its documents.
        tokenizer_json: see `train_tokenizer`.
        longest: tokens kept of each split at most.

    Raises:
        QkgeomError: there are too few documents to hold any out.
    """
    import numpy as np
    from tokenizers import Tokenizer

    held_out = [int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT == 0 for text in texts]
    if not any(held_out) or all(held_out):
        raise QkgeomError(
            "a corpus is too small to be split into train and held-out documents",
            where=name,
            found=f"{len(texts)} document(s)",
            expected=f"at least about {2 * HELD_OUT}",
        )
    tokenizer = Tokenizer.from_str(tokenizer_json)
    separator = tokenizer.token_to_id("[SEP]")
    digest = hashlib.sha256(tokenizer_json.encode())
    write_text(folder / "tokenizer.json", tokenizer_json)
    counts = {}
    for split, wanted in zip(SPLITS, (False, True), strict=True):
        chosen = [text for text, held in zip(texts, held_out, strict=True) if held == wanted]
        encoded = tokenizer.encode_batch(chosen, add_special_tokens=False)
        ids = np.fromiter((i for each in encoded for i in (*each.ids, separator)), np.int32)[:longest]
        digest.update(ids.tobytes())
        counts[split] = {"documents": len(chosen), "tokens": len(ids)}
        with whole_file(folder / f"{split}.npy") as temporary:
            np.save(temporary, ids)
    record = {"name": name, "vocab_size": tokenizer.get_vocab_size(), "digest": digest.hexdigest(), **counts}
    write_json(folder / "corpus.json", record)


def read_corpus(folder: Path) -> Corpus:
    """Reads what `write_corpus` wrote; the tokens stay on disk until they are used.

    Raises:
        QkgeomError: there is no corpus, or its files do not belong together.
    """
    import numpy as np

    try:
        record = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        ids = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in SPLITS}
        wrong = [split for split in SPLITS if len(ids[split]) != record[split]["tokens"]]
        corpus = Corpus(record["name"], ids["train"], ids["heldout"], record["vocab_size"], record["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_corpus(folder, error) from error
    if wrong:
        raise _no_corpus(folder, f"another number of tokens in {' and '.join(wrong)} than corpus.json says")
    return corpus


def _no_corpus(folder: Path, found: object) -> QkgeomError:
    return QkgeomError("a corpus cannot be read", where=folder, found=found, fix="make it (again) with `corpus`")
