"""A corpus as tokens, written while its documents come in, which are split into train and held-out.

A token file is one long row of ids, every document ended by [SEP]; sequences are cut from it (packed, no padding). It is
raw: corpus.json says what its numbers are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from qkgeom.console import progress
from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import whole_file, write_json

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
HELD_OUT = 10  # one document in so many
SPLITS = ("train", "heldout")
RECORD = "corpus.json"
BATCH = 2**18  # characters tokenised at a time
CHUNK = 2**20  # tokens read back at a time


@dataclass(frozen=True)
class Corpus:
    """A tokenised corpus.

    Attributes:
        name: of the corpus.
        train: ids [n].
        heldout: ids [n].
        vocab_size: number of ids.
        digest: of the tokens and the vocabulary, for the run's record.
        special: token -> id, of those that do not stand for text, `SPECIAL` at least.
    """

    name: str
    train: np.ndarray
    heldout: np.ndarray
    vocab_size: int
    digest: str
    special: Mapping[str, int]

    @cached_property
    def ordinary(self) -> np.ndarray:
        """The ids that stand for text, ascending."""
        import numpy as np

        return np.setdiff1d(np.arange(self.vocab_size), list(self.special.values()))


def read_tokenizer(text: str) -> tuple[Tokenizer, dict[str, int]]:
    """A tokenizer that cuts and pads nothing, and the ids of its special tokens.

    Args:
        text: JSON of the tokenizers library.

    Raises:
        UsageError: it is not such JSON, or lacks one of BERT's special tokens.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise UsageError("this is not a tokenizer of the tokenizers library", found=error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if missing:
        raise UsageError(f"a tokenizer has no {', '.join(missing)}", expected=", ".join(SPECIAL))
    declared = {str(token): index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return tokenizer, declared | {token: tokenizer.token_to_id(token) for token in SPECIAL}


def write_corpus(
    folder: Path,
    name: str,
    texts: Iterable[str],
    tokenizer_json: str,
    longest: int,
    *,
    streamed: bool = False,
    origin: Mapping[str, object] | None = None,
) -> None:
    """Tokenises documents as they come, and writes `train.bin`, `heldout.bin` and, last, `corpus.json`.

    Args:
        folder: of this corpus.
        name: of the corpus.
        texts: its documents, of which a few are held in memory at a time.
        tokenizer_json: see `read_tokenizer`.
        longest: tokens kept of each split at most.
        streamed: whether to stop at `longest` training tokens, and not to read on for more held-out ones.
        origin: where the documents come from, for the record.

    Raises:
        UsageError: the tokenizer cannot be used.
        QkgeomError: there are too few documents to hold any out.
        TransientFault: the disk refuses the write.
    """
    import numpy as np

    tokenizer, special = read_tokenizer(tokenizer_json)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<i4")
    digest = hashlib.sha256(tokenizer_json.encode())
    (folder / RECORD).unlink(missing_ok=True)  # it would be that of other token files
    with ExitStack() as stack:
        paths = {split: stack.enter_context(whole_file(folder / f"{split}.bin")) for split in SPLITS}
        files = {split: stack.enter_context(path.open("w+b")) for split, path in paths.items()}
        train, heldout = (_Split(files[split], dtype, longest) for split in SPLITS)
        with progress(longest, f"tokens of {name}") as tell:
            for batch in _batches(texts):
                for split, wanted in ((train, False), (heldout, True)):
                    ids = split.add([text for text in batch if _held_out(text) == wanted], tokenizer, special["[SEP]"])
                    if split is train:
                        digest.update(ids.astype("<i4").tobytes())
                tell(train.tokens)
                if streamed and train.tokens == longest and heldout.tokens:
                    break
        if not train.documents or not heldout.documents:
            raise QkgeomError(
                "a corpus is too small to be split into train and held-out documents",
                where=name,
                found=f"{train.documents + heldout.documents} document(s)",
                expected=f"at least about {2 * HELD_OUT}",
            )
        for ids in heldout.written():
            digest.update(ids.astype("<i4").tobytes())
    record = {"name": name, "vocab_size": vocab_size, "digest": digest.hexdigest()}
    record |= {"train": train.counts, "heldout": heldout.counts}
    write_json(folder / RECORD, record | {"dtype": dtype.str, "special": special, "origin": origin or {}})


@dataclass
class _Split:
    """A token file while it is written."""

    file: IO[bytes]
    dtype: np.dtype
    longest: int
    documents: int = 0
    tokens: int = 0

    def add(self, texts: list[str], tokenizer: Tokenizer, separator: int) -> np.ndarray:
        """Writes the tokens of some documents, and gives those for which there was room."""
        import numpy as np

        self.documents += len(texts)
        room = self.longest - self.tokens
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False) if room else ()
        ids = np.fromiter((i for each in encoded for i in (*each.ids, separator)), self.dtype)[:room]
        self.file.write(ids.data)
        self.tokens += len(ids)
        return ids

    @property
    def counts(self) -> dict[str, int]:
        """Documents that were read, and tokens that were written."""
        return {"documents": self.documents, "tokens": self.tokens}

    def written(self) -> Iterator[np.ndarray]:
        """All tokens, read back."""
        import numpy as np

        self.file.seek(0)
        while block := self.file.read(CHUNK * self.dtype.itemsize):
            yield np.frombuffer(block, self.dtype)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The documents in lists of about `BATCH` characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _held_out(text: str) -> bool:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % HELD_OUT == 0


def read_corpus(folder: Path) -> Corpus:
    """Reads what `write_corpus` wrote; the tokens stay on disk until they are used.

    Raises:
        QkgeomError: there is no corpus, or its files do not belong together.
    """
    import numpy as np

    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        ids = {split: np.memmap(folder / f"{split}.bin", record["dtype"], mode="r") for split in SPLITS}
        wrong = [split for split in SPLITS if len(ids[split]) != record[split]["tokens"]]
        told = {key: record[key] for key in ("name", "vocab_size", "digest", "special")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_corpus(folder, error) from error
    if wrong:
        raise _no_corpus(folder, f"another number of tokens in {' and '.join(wrong)} than corpus.json says")
    return Corpus(train=ids["train"], heldout=ids["heldout"], **told)


def _no_corpus(folder: Path, found: object) -> QkgeomError:
    return QkgeomError("a corpus cannot be read", where=folder, found=found, fix="make it (again) with `corpus`")
