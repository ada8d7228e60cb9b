"""`corpus`: the embedded corpora, tokenised."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.training.corpora import documents
from qkgeom.training.tokens import train_tokenizer, write_corpus


def command(
    names: Annotated[list[str], Argument(help="reference, docstrings, descriptions: one vocabulary for all that are named")],
    output: Annotated[Path, Option("--output", "-o", help="folder; each corpus gets one of its own in it")],
    vocab_size: Annotated[int, Option(help="ids of the vocabulary")],
    longest: Annotated[int, Option(help="tokens kept of a split at most")],
) -> None:
    """Read the texts that this installation contains, train a WordPiece on them, and tokenise them."""
    set_up_logging()
    texts = {name: documents(name) for name in names}
    tokenizer = train_tokenizer([text for each in texts.values() for text in each], vocab_size)
    for name, each in texts.items():
        write_corpus(output / name, name, each, tokenizer, longest)
