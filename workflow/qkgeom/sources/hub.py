"""`hf:org/name@revision`: a checkpoint of the model hub, pinned to a commit, of which only the needed bytes move.

Of each weight file its directory is read, and later the ranges that the extraction asks for (`hub_file.py`); a file that
the hub's cache on this machine holds whole is used as it is. The hub's own client makes the requests, so that
HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and the proxy settings work as everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from qkgeom.byte_files import ByteFile, LocalFile
from qkgeom.containers import open_container
from qkgeom.errors import ModelFault, TransientFault
from qkgeom.files import sha256_of
from qkgeom.sources.base import Choice, Fetched, Survey, choose_files, listed_shards, require_digest, the_one
from qkgeom.sources.hub_download import cached, download
from qkgeom.sources.hub_file import HubFile, WholeFileNeeded
from qkgeom.sources.hub_listing import Listing, is_commit, look_up, look_up_in_cache, parse_address, split_address
from qkgeom.sources.hub_small import small_file
from qkgeom.sources.read_ahead import IN_FLIGHT, ReadAhead

logger = logging.getLogger(__name__)
T = TypeVar("T")  # PEP 695 needs Python 3.12
Choose = Callable[[Collection[str], object], Choice]


def require_form(address: str) -> None:
    """Raises a UsageError if an address is not of the form that `fetch` takes."""
    split_address(address)


@contextmanager
def fetch(address: str, sha256: str | None = None, choose: Choose = choose_files) -> Iterator[Fetched]:
    """Opens a checkpoint's files on the hub, or finds them in the hub's cache.

    Args:
        address: `org/name`, `name`, or either with `@revision` (commit, tag or branch; `main` by default).
        sha256: digest of the one weight file, where there is only one.
        choose: which of a repository's files.

    Raises:
        UsageError: the address is not of this form, or HF_ENDPOINT is no address.
        ModelFault: the repository, revision or file is missing, access is refused, or a file is not what the hub states.
        TransientFault: the hub cannot be reached and its cache does not hold the checkpoint, or the disk is full.
    """
    with closing(ReadAhead()) as ahead:
        yield _fetch(address, lambda listing: _take(listing, sha256, ahead, choose), choose)


@contextmanager
def survey(address: str, choose: Choose = choose_files) -> Iterator[Survey]:
    """Looks at a checkpoint as `fetch` does, but moves its small files and safetensors headers only.

    What the hub's cache holds is believed without reading all of it.

    Raises:
        UsageError, ModelFault, TransientFault: see `fetch`.
    """
    with closing(ReadAhead()) as ahead:
        yield _fetch(address, lambda listing: _survey(listing, ahead, choose), choose)


def _survey(listing: Listing, ahead: ReadAhead, choose: Choose) -> Survey:
    weights = _weights(choose(listing.files, listing), listing)
    paths = {name: path for name in weights if (path := cached(listing, name, checked=False))}
    here = {name: path.stat().st_size for name, path in paths.items()}
    there = {name: listing.sizes.get(name) for name in weights if name not in here}
    _require_access(listing, there, ahead)
    opened = None
    if all(name.endswith(".safetensors") for name in weights):
        with suppress(WholeFileNeeded):
            opened = _take(listing, None, ahead, choose, headers_only=True)
    return Survey(here, there, opened)


def require_access(address: str, choose: Choose = choose_files) -> None:
    """Makes sure that a checkpoint is there and that its weights may be read, with two or three small requests.

    Args:
        address: see `fetch`.
        choose: which of a repository's files.

    Raises:
        UsageError, ModelFault, TransientFault: see `fetch`.
    """

    def take(listing: Listing) -> None:
        weights = _weights(choose(listing.files, listing), listing)
        _require_access(listing, [name for name in weights if cached(listing, name, checked=False) is None], ahead)

    with closing(ReadAhead()) as ahead:
        _fetch(address, take, choose)


def _require_access(listing: Listing, away: Collection[str], ahead: ReadAhead) -> None:
    """Asks for a weight file of a gated repository: what is kept of its headers here does not tell who may read it."""
    if listing.gated and away:
        HubFile(listing, next(iter(away)), ahead).locate()


def fetch_file(address: str, name: str) -> tuple[Path, Listing]:
    """One file of a repository, whole and checked, in the hub's cache, and the commit it is of.

    Args:
        address: see `fetch`.
        name: of the file.

    Raises:
        UsageError, ModelFault, TransientFault: see `fetch`.
    """

    def take(listing: Listing) -> tuple[Path, Listing]:
        if name not in listing.files:
            raise ModelFault("a repository has no such file", where=listing, expected=name, found=", ".join(listing.files))
        return cached(listing, name) or download(listing, name), listing

    return _fetch(address, take)


def _fetch(address: str, take: Callable[[Listing], T], choose: Choose = choose_files) -> T:
    """What `take` makes of a revision's files, those of the hub's cache if the hub need not or cannot be asked."""
    repo, revision = parse_address(address)
    known = look_up_in_cache(repo, revision)
    if known is not None and is_commit(revision) and _is_whole_checkpoint(known, choose):
        return take(known)
    try:
        listing = look_up(repo, revision)
    except TransientFault as fault:
        if known is None:
            raise
        logger.warning("%s: %s; going on with commit %s in the hub's cache", known, fault.what, known.commit)
        try:
            return take(known)
        except ModelFault as incomplete:  # of the cache, as far as anyone can tell from here
            raise fault from incomplete
    return take(listing)


def _is_whole_checkpoint(listing: Listing, choose: Choose) -> bool:
    """Whether the hub's cache holds a checkpoint that the hub would not have a better one for."""
    try:
        choice = choose(listing.files, listing)
        weights = _weights(choice, listing)
    except ModelFault:
        return False
    return choice.config is not None and all(name.startswith(("model", "adapter_model.safe")) for name in weights)


def _weights(choice: Choice, listing: Listing) -> Sequence[str]:
    if choice.index is None:
        return choice.weights
    return listed_shards(small_file(listing, choice.index)[0], listing.files, listing)


def _take(
    listing: Listing, sha256: str | None, ahead: ReadAhead, choose: Choose = choose_files, *, headers_only: bool = False
) -> Fetched:
    """Opens the files of one checkpoint, small ones first, so that little is moved if something is wrong."""
    choice = choose(listing.files, listing)
    small = {name: small_file(listing, name) for name in (choice.config, choice.index) if name}
    weights = _weights(choice, listing)
    if sha256:
        stated = listing.files[the_one(weights, listing)] or ""
        found = stated if len(stated) == 64 else sha256_of(download(listing, weights[0]))  # mostly known without moving it
        require_digest(found, sha256, f"{listing}, {weights[0]}")
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        files = list(pool.map(lambda name: _open(listing, name, ahead, headers_only=headers_only), weights))
    remote = [file for file in files if isinstance(file, HubFile)]
    sizes = {name: path.stat().st_size for name, (path, _) in small.items()} | {file.name: file.size for file in files}
    origin = {
        "kind": "hub",
        "repo": listing.repo,
        "revision": listing.revision,
        "commit": listing.commit,
        "files": {name: {"bytes": size, "etag": listing.files[name]} for name, size in sizes.items()},
    }
    return Fetched(
        files,
        *(small[name][0] if name else None for name in (choice.config, choice.index)),
        origin,
        ahead.expect,
        lambda: sum(moved for _, moved in small.values()) + sum(file.moved for file in remote),
    )


def _open(listing: Listing, name: str, ahead: ReadAhead, *, headers_only: bool) -> ByteFile:
    """A weight file, with its directory read."""
    path = cached(listing, name, checked=not headers_only)
    if path is not None:
        return LocalFile(path, name)
    file = HubFile(listing, name, ahead, headers_only=headers_only)
    try:
        open_container(file)
    except ModelFault:
        if file.whole is not None or not file.forget_directory():
            raise
        open_container(file)  # it may have been damaged on the way
    file.finish_opening()
    return file
