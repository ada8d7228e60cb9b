"""`file:` a checkpoint file, or a folder with weights and their config.json."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkgeom.errors import ModelFault
from qkgeom.sources.base import Fetched, choose_files


@contextmanager
def fetch(address: str, sha256: str | None = None) -> Iterator[Fetched]:
    """Gives the files at a path; nothing is copied.

    Raises:
        ModelFault: nothing is there, no weights are, or a file's sha256 is not the one that was pinned.
    """
    path = Path(address.removeprefix("//") if address.startswith("///") else address).expanduser()
    if path.is_dir():
        choice = choose_files([entry.name for entry in path.iterdir() if entry.is_file()], path)
        weights = [path / name for name in choice.weights]
        config = path / choice.config if choice.config else None
        index = path / choice.index if choice.index else None
    elif path.is_file():
        weights, index = [path], None
        config = path.with_name("config.json") if path.with_name("config.json").is_file() else None
    else:
        raise ModelFault("no such file or folder", where=path)
    if sha256:
        _require_digest(weights, sha256)
    origin = {"kind": "file", "files": {file.name: {"bytes": file.stat().st_size} for file in weights}, "bytes_moved": 0}
    yield Fetched(weights, config, index, origin)


def _require_digest(weights: list[Path], sha256: str) -> None:
    if len(weights) != 1:
        raise ModelFault("a sha256 is pinned, but the checkpoint has several files", found=[file.name for file in weights])
    with weights[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ModelFault("a checkpoint file is not the one that was pinned", where=weights[0], found=found, expected=sha256)
