"""`file:` a checkpoint file, or a folder with weights and their config.json."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from qkgeom.errors import ModelFault, UsageError
from qkgeom.files import sha256_of
from qkgeom.sources.base import (
    Choice,
    Fetched,
    Survey,
    choose_adapter,
    choose_files,
    listed_shards,
    refuse_adapter,
    require_digest,
    the_one,
)


def require_form(address: str) -> None:
    """Raises a UsageError if an address is not of the form that `fetch` takes, whether or not something is there."""
    if "\0" in address or (address.startswith("//") and not address.startswith("///")):
        raise UsageError("this is not a path on this machine", found=repr(address), expected="file:PATH or file:///PATH")


@contextmanager
def fetch(
    address: str, sha256: str | None = None, choose: Callable[[Collection[str], object], Choice] = choose_files
) -> Iterator[Fetched]:
    """Gives the files at a path; nothing is copied.

    Args:
        address: a checkpoint file or folder.
        sha256: digest of the one weight file.
        choose: which of a folder's files.

    Raises:
        ModelFault: nothing is there, no weights are, or a file's sha256 is not the one that was pinned.
    """
    path = Path(address.removeprefix("//") if address.startswith("///") else address)
    try:
        weights, config, index = _files(path.expanduser(), choose)
        if sha256:
            require_digest(sha256_of(the_one(weights, path)), sha256, weights[0])
        files = {file.name: {"bytes": file.stat().st_size} for file in weights}
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder for a ~
        raise ModelFault(
            "a checkpoint cannot be read", where=path, found=error, fix="check the path and its permissions"
        ) from error
    yield Fetched(weights, config, index, {"kind": "file", "files": files})


@contextmanager
def survey_adapter(address: str) -> Iterator[Survey]:
    """Looks at an adapter in a folder, and opens it if it is a safetensors file.

    Raises:
        ModelFault: see `fetch`.
    """
    with fetch(address, choose=choose_adapter) as fetched:
        sizes = {file.name: file.stat().st_size for file in fetched.weights}
        yield Survey(sizes, {}, fetched if all(name.endswith(".safetensors") for name in sizes) else None)


def _files(path: Path, choose: Callable[[Collection[str], object], Choice]) -> tuple[list[Path], Path | None, Path | None]:
    """Weights, config and index at a path."""
    if path.is_dir():
        names = [entry.name for entry in path.iterdir() if entry.is_file()]
        choice = choose(names, path)
        shards = listed_shards(path / choice.index, names, path) if choice.index else choice.weights
        config = path / choice.config if choice.config else None
        return [path / name for name in shards], config, path / choice.index if choice.index else None
    if path.is_file() and choose is choose_files:
        refuse_adapter([path.name], path)
        config = path.with_name("config.json")
        return [path], config if config.is_file() else None, None
    what = "no such file or folder" if choose is choose_files else "no such folder"
    raise ModelFault(what, where=path, fix="check the path")
