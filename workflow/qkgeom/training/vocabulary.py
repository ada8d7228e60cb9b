"""The tokenizer that the corpora of a preset share: a WordPiece trained on their texts, or a published one.

It is kept as the JSON of the tokenizers library, with a file beside it that says what it was made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.errors import ModelFault, UsageError
from qkgeom.files import write_json, write_text
from qkgeom.training.tokens import SPECIAL, read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RARE = 20  # letters seen less often are unknown to the tokenizer


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
            fix="raise vocab_size",
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


def pretrained_tokenizer(address: str) -> tuple[str, dict[str, object]]:
    """The tokenizer.json of a repository on the model hub, and which commit it is of.

    Raises:
        UsageError: the address is not of the form org/name@revision.
        ModelFault: there is none, access is refused, or it is not a tokenizer with BERT's special tokens.
        TransientFault: the hub cannot be reached, and its cache does not hold it.
    """
    from qkgeom.sources.hub import fetch_file

    path, listing = fetch_file(address, "tokenizer.json")
    text = path.read_text(encoding="utf-8")
    try:
        read_tokenizer(text)
    except UsageError as error:
        raise ModelFault(
            "a repository's tokenizer.json cannot be used",
            where=listing,
            found=error.what,
            expected=f"a tokenizer with {', '.join(SPECIAL)}",
            fix="name another tokenizer in the preset",
        ) from error
    return text, {"kind": "hub", "repo": listing.repo, "revision": listing.revision, "commit": listing.commit}


def write_tokenizer(target: Path, text: str, origin: Mapping[str, object]) -> None:
    """Writes `<target>_origin.json`, then the tokenizer itself."""
    write_json(target.with_name(f"{target.stem}_origin.json"), origin)
    write_text(target, text)
