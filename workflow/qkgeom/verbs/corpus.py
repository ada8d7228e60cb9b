"""`corpus`: one corpus, tokenised."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.errors import UsageError
from qkgeom.sole_writer import be_sole_writer
from qkgeom.training import corpora
from qkgeom.training.tokens import write_corpus


def command(
    name: Annotated[str, Argument(help=", ".join(corpora.kinds()))],
    tokenizer: Annotated[Path, Option(help="tokenizer.json, see `tokenizer`")],
    output: Annotated[Path, Option("--output", "-o", help="folder of the corpus")],
    longest: Annotated[int, Option(min=1, help="tokens kept of a split at most")],
    jigsaw_zip: Annotated[Path | None, Option(help="the user's download, for corpus jigsaw")] = None,
    threads: Annotated[int | None, Option(min=1, help="CPU threads; all by default")] = None,
) -> None:
    """Read the texts of a corpus (from this installation, the model hub or a file) and tokenise them."""
    set_up_logging()
    be_sole_writer(output)
    if threads:
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # read when the tokenizers library starts to work
    try:
        text = tokenizer.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError("a tokenizer cannot be read", where=tokenizer, found=error, fix="make it with `tokenizer`") from error
    documents = corpora.documents(name, jigsaw_zip)
    origin = {"streamed": documents.streamed, "origin": documents.origin}
    write_corpus(output, name, documents.texts, text, longest, **origin)
