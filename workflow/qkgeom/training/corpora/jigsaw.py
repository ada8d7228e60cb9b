"""`jigsaw`: the comments of the Jigsaw Toxic Comment Classification Challenge, from the zip that Kaggle gives its users.

Kaggle wants its rules accepted, so that nobody may fetch the zip for somebody else. It holds train.csv, or
train.csv.zip with train.csv inside.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO
from zipfile import BadZipFile, ZipFile

from qkgeom.errors import QkgeomError, UsageError
from qkgeom.files import sha256_of
from qkgeom.training.corpora.base import Documents

CORPORA = ("jigsaw",)
PAGE = "https://www.kaggle.com/c/jigsaw-toxic-comment-classification-challenge/data"
COLUMN = "comment_text"
_DAMAGE = (BadZipFile, zlib.error, EOFError, RuntimeError, OSError, csv.Error, UnicodeDecodeError)  # RuntimeError: encrypted


def documents(name: str, jigsaw_zip: Path | None) -> Documents:
    """The comments of train.csv, in its order.

    Raises:
        UsageError: the zip is not there.
        QkgeomError: it is no zip, has no train.csv or other columns, or is damaged; the last also while it is read.
    """
    if jigsaw_zip is None or not jigsaw_zip.is_file():
        raise UsageError(
            "the corpus jigsaw needs a zip from Kaggle, which is not there",
            where=jigsaw_zip and jigsaw_zip.absolute(),
            fix=f"log in at {PAGE}, accept the rules, choose `Download All`, and put the zip there, or set jigsaw_zip in "
            "config.yaml to where it is",
        )
    with _train_csv(jigsaw_zip) as rows:
        _require_column(next(rows, []), jigsaw_zip)
    return Documents(_comments(jigsaw_zip), {"kind": "zip", "file": jigsaw_zip.name, "sha256": sha256_of(jigsaw_zip)})


def _comments(path: Path) -> Iterator[str]:
    with _train_csv(path) as rows:
        header = next(rows)
        place = header.index(COLUMN)
        for row in rows:
            if len(row) != len(header):
                raise csv.Error(f"line {rows.line_num} has {len(row)} cells and not {len(header)}")
            yield row[place]


@contextmanager
def _train_csv(path: Path) -> Iterator[Iterator[list[str]]]:
    """A csv reader of train.csv, wherever it is in the zip."""
    try:
        with ZipFile(path) as outer, _member(outer, path, "train.csv", "train.csv.zip") as file:
            if not file.name.endswith(".zip"):
                yield _rows(file)
                return
            with ZipFile(file) as inner, _member(inner, path, "train.csv") as nested:
                yield _rows(nested)
    except _DAMAGE as error:
        raise _unusable(path, f"{type(error).__name__}: {error}", "a whole zip with train.csv in it") from error


def _rows(file: IO[bytes]) -> Iterator[list[str]]:
    return csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""), strict=True)


def _member(archive: ZipFile, path: Path, *names: str) -> IO[bytes]:
    for name in names:
        for member in archive.namelist():
            if PurePosixPath(member).name == name:
                return archive.open(member)
    raise _unusable(path, ", ".join(archive.namelist()[:8]) or "no files", " or ".join(names))


def _require_column(header: list[str], path: Path) -> None:
    if COLUMN not in header:
        raise _unusable(path, f"train.csv with the columns {', '.join(header) or '(none)'}", f"a column {COLUMN}")


def _unusable(path: Path, found: str, expected: str) -> QkgeomError:
    return QkgeomError(
        "this is not the zip of Kaggle's Jigsaw Toxic Comment Classification Challenge",
        where=path.absolute(),
        found=found,
        expected=expected,
        fix=f"download it again from {PAGE}",
    )
