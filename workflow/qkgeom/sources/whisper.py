"""`whisper:size`: an official file of openai-whisper, fetched whole, since its only checksum is that of the whole file.

whisper.tsv, which `make timm-table` writes from openai-whisper itself, has the names, addresses and sha256; the package
is not imported. The file brings its config with it (containers/torch_zip.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from qkgeom.errors import UsageError
from qkgeom.sources.base import Fetched, WholeFile, cache_folder, require_digest
from qkgeom.sources.names import named, read_names
from qkgeom.sources.web_file import size_of, web_file

TABLE = Path(__file__).with_suffix(".tsv")
_SIZE = re.compile(r"\w[\w.-]*", re.ASCII)


def require_form(address: str) -> None:
    """Raises a UsageError if an address is not of the form that `fetch` takes, whether or not there is such a size."""
    if not _SIZE.fullmatch(address):
        raise UsageError("this is not a size of openai-whisper", found=address, expected="tiny, base.en, large-v3, ...")


@contextmanager
def fetch(address: str, sha256: str | None = None) -> Iterator[Fetched]:
    """Fetches a file, or takes it from the cache.

    Args:
        address: `tiny`, `base.en`, `large-v3`, ...
        sha256: the digest that the official one must have.

    Raises:
        ModelFault: openai-whisper has no such size, the pinned file is another, or the server has not the official one.
        TransientFault: the server cannot be reached or is out of order, or the disk refuses the write.
    """
    row, path = _place(address)
    if sha256:
        require_digest(row["sha256"], sha256, f"whisper:{address}")
    moved = web_file(row["url"], row["sha256"], path)
    origin = {
        "kind": "whisper",
        "url": row["url"],
        "sha256": row["sha256"],
        "files": {path.name: {"bytes": path.stat().st_size}},
    }
    yield Fetched([path], origin=origin, moved=lambda: moved)


def whole_file(address: str) -> WholeFile:
    """The bytes of the official file, from the cache or its server; the file is not moved.

    Raises:
        ModelFault, TransientFault: see `fetch`.
    """
    row, path = _place(address)
    return size_of(row["url"], path)


def _place(address: str) -> tuple[Mapping[str, str], Path]:
    """The row of a name, and where its file is kept."""
    fix = "correct the name, or give a Whisper on the hub as hf:openai/whisper-SIZE"
    row = named(read_names(TABLE), address, "openai-whisper", fix)
    return row, cache_folder() / "whisper" / PurePosixPath(urlsplit(row["url"]).path).name
