"""`tokenizer`: the one that the corpora of a preset share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qkgeom.console import set_up_logging
from qkgeom.errors import UsageError
from qkgeom.sole_writer import be_sole_writer
from qkgeom.training.corpora import embedded
from qkgeom.training.vocabulary import pretrained_tokenizer, train_tokenizer, write_tokenizer


def command(
    output: Annotated[Path, Option("--output", "-o", help="tokenizer.json; what it was made of is written beside it")],
    names: Annotated[list[str] | None, Argument(help=f"train it on these: {', '.join(embedded.CORPORA)}")] = None,
    vocab_size: Annotated[int | None, Option(help="ids of the vocabulary that is trained")] = None,
    pretrained: Annotated[str | None, Option(help="or take that of the model hub: org/name@revision")] = None,
) -> None:
    """Train a WordPiece on embedded corpora, or fetch a published tokenizer."""
    set_up_logging()
    be_sole_writer(output)
    if pretrained and not names and vocab_size is None:
        text, origin = pretrained_tokenizer(pretrained)
    elif names and vocab_size is not None and not pretrained:
        text, origin = _trained(sorted(names), vocab_size)
    else:
        raise UsageError("a tokenizer is trained or fetched", expected="names of corpora and --vocab-size, or --pretrained")
    write_tokenizer(output, text, origin)


def _trained(names: list[str], vocab_size: int) -> tuple[str, dict[str, object]]:
    if unknown := [name for name in names if name not in embedded.CORPORA]:
        raise UsageError(
            "a vocabulary is trained on embedded corpora only",
            found=", ".join(unknown),
            expected=", ".join(embedded.CORPORA),
            fix="name a pretrained tokenizer in the preset",
        )
    texts = [text for name in names for text in embedded.documents(name).texts]
    return train_tokenizer(texts, vocab_size), {"kind": "trained", "corpora": names, "vocab_size": vocab_size}
