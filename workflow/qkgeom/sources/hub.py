"""`hf:org/name@revision`: a checkpoint of the model hub, pinned to a commit, every file checked by its digest.

The hub's own client moves and caches the files, so that HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and the proxy
settings work as everywhere, and so do its progress bars, which show on a terminal only. The client checks a file's
size only; the digests are checked here.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qkgeom.errors import ModelFault, TransientFault, UsageError
from qkgeom.files import write_text
from qkgeom.sources.base import Fetched, choose_files, listed_shards, require_digest, sha256_of, the_one
from qkgeom.sources.hub_client import ask
from qkgeom.sources.hub_faults import require_endpoint

logger = logging.getLogger(__name__)
T = TypeVar("T")  # PEP 695 needs Python 3.12
_ADDRESS = re.compile(r"(?P<repo>[^@]+)(@(?P<revision>[A-Za-z0-9_][\w./-]*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit.

    Attributes:
        repo: `org/name` or `name`.
        revision: as it was asked for.
        commit: what that is, 40 hexadecimal digits.
        files: name -> digest, a sha256 (large files) or a git object id (small ones), or None where none is stated.
    """

    repo: str
    revision: str
    commit: str
    files: Mapping[str, str | None]

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}"


@contextmanager
def fetch(address: str, sha256: str | None = None) -> Iterator[Fetched]:
    """Fetches a checkpoint's files into the hub's cache, or finds them there.

    Args:
        address: `org/name`, `name`, or either with `@revision` (commit, tag or branch; `main` by default).
        sha256: digest of the one weight file, where there is only one.

    Raises:
        UsageError: the address is not of this form, or HF_ENDPOINT is no address.
        ModelFault: the repository, revision or file is missing, access is refused, or a file is not what the hub states.
        TransientFault: the hub cannot be reached and its cache does not hold the checkpoint, or the disk is full.
    """
    yield _fetch(address, lambda listing: _take(listing, sha256))


def fetch_file(address: str, name: str) -> tuple[Path, Listing]:
    """One file of a repository, checked, in the hub's cache, and the commit it is of.

    Args:
        address: see `fetch`.
        name: of the file.

    Raises:
        UsageError, ModelFault, TransientFault: see `fetch`.
    """

    def take(listing: Listing) -> tuple[Path, Listing]:
        if name not in listing.files:
            raise ModelFault("a repository has no such file", where=listing, expected=name, found=", ".join(listing.files))
        return _download(listing, name)[0], listing

    return _fetch(address, take)


def parse_address(address: str) -> tuple[str, str]:
    """Repository and revision of an address.

    Raises:
        UsageError: it is not of this form, or HF_ENDPOINT is no address.
    """
    require_endpoint()  # with a wrong one the client cannot even be imported
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    match = _ADDRESS.fullmatch(address)
    try:
        validate_repo_id(match["repo"] if match else "")
    except HFValidationError:
        match = None
    if not match or ".." in address:
        raise UsageError("this is not an address on the model hub", found=address, expected="org/name@revision")
    return match["repo"], match["revision"] or "main"


def look_up(repo: str, revision: str) -> Listing:
    """Asks the hub, once, which commit a revision is and which files it has.

    Raises:
        ModelFault: there is no such repository or revision, or access is refused.
        TransientFault: the hub cannot be reached or is out of order.
    """
    from huggingface_hub import HfApi, constants

    where, timeout = f"{repo}@{revision}", constants.HF_HUB_ETAG_TIMEOUT  # without it the client waits for ever
    info = ask(HfApi().model_info, repo, where=where, revision=revision, files_metadata=True, timeout=timeout)
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit):
        raise TransientFault("the hub does not say which commit this is", where=where, found=commit, fix="check HF_ENDPOINT")
    stated = {entry.rfilename: entry.lfs.sha256 if entry.lfs else entry.blob_id for entry in info.siblings or []}
    if revision != commit:  # for a later run without the hub
        with suppress(TransientFault, OSError):
            write_text(_cache(repo) / "refs" / revision, commit)
    return Listing(repo, revision, commit, {name: _known(digest) for name, digest in stated.items()})


def _fetch(address: str, take: Callable[[Listing], T]) -> T:
    """What `take` makes of a revision's files, those of the hub's cache if the hub cannot be reached."""
    repo, revision = parse_address(address)
    try:
        listing = look_up(repo, revision)
    except TransientFault as fault:
        listing = _look_up_in_cache(repo, revision)
        if listing is None:
            raise
        logger.warning("%s: %s; going on with commit %s in the hub's cache", listing, fault.what, listing.commit)
        try:
            return take(listing)
        except ModelFault as incomplete:  # of the cache, as far as anyone can tell from here
            raise fault from incomplete
    return take(listing)


def _take(listing: Listing, sha256: str | None) -> Fetched:
    """Downloads the files of one checkpoint, small ones first, so that little is moved if something is wrong."""
    choice = choose_files(listing.files, listing)
    taken: dict[str, Path] = {}
    moved = 0

    def take(name: str) -> Path:
        nonlocal moved
        taken[name], size = _download(listing, name)
        moved += size
        return taken[name]

    config = take(choice.config) if choice.config else None
    index = take(choice.index) if choice.index else None
    weights = listed_shards(index, listing.files, listing) if index else choice.weights
    if sha256:
        stated = listing.files[the_one(weights, listing)] or ""
        found = stated if len(stated) == 64 else sha256_of(take(weights[0]))  # mostly known before anything is moved
        require_digest(found, sha256, f"{listing}, {weights[0]}")
    paths = [take(name) for name in weights]
    origin = {
        "kind": "hub",
        "repo": listing.repo,
        "revision": listing.revision,
        "commit": listing.commit,
        "files": {name: {"bytes": path.stat().st_size, "etag": listing.files[name]} for name, path in taken.items()},
        "bytes_moved": moved,
    }
    return Fetched(paths, config, index, origin)


def _download(listing: Listing, name: str) -> tuple[Path, int]:
    """A file of the hub's cache, checked, and the bytes that were moved for it: 0 if it was there."""
    from huggingface_hub import hf_hub_download

    digest, moved, found = listing.files[name], 0, None
    places = _cache(listing.repo) / "blobs" / (digest or name), _cache(listing.repo) / "snapshots" / listing.commit / name
    for force in (False, True):
        cached = not force and any(place.exists() for place in places)
        options = {"revision": listing.commit, "force_download": force}
        path = Path(ask(hf_hub_download, listing.repo, name, where=f"{listing}, {name}", retried=True, **options))
        moved += 0 if cached else path.stat().st_size
        if digest is None or (found := _digest(path, len(digest))) == digest:
            return path, moved
        logger.warning("%s, %s: the file is damaged%s", listing, name, "" if force else "; fetching it again")
    with suppress(OSError):  # other programs use this cache too
        path.resolve().unlink()
        path.unlink()
    raise ModelFault(
        "a file from the hub is not the one that the hub states, twice",
        where=f"{listing}, {name}",
        found=f"digest {found}",
        expected=f"digest {digest}",
        fix="something on the way changes it: check the proxy and HF_ENDPOINT, then run `retry`",
    )


def _digest(path: Path, digits: int) -> str:
    """sha256 of a file (64 digits) or its git object id (40), which the hub states for small files only."""
    if digits == 64:
        return sha256_of(path)
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _known(digest: str | None) -> str | None:
    return digest if digest and _DIGEST.fullmatch(digest) else None


def _look_up_in_cache(repo: str, revision: str) -> Listing | None:
    """What the hub's cache holds of a revision. Files there are links to blobs, and a blob's name is its digest."""
    try:
        ref = _cache(repo) / "refs" / revision
        commit = revision if _COMMIT.fullmatch(revision) else ref.read_text(encoding="utf-8").strip()
        snapshot = _cache(repo) / "snapshots" / commit
        files = {
            path.relative_to(snapshot).as_posix(): _known(path.readlink().name if path.is_symlink() else None)
            for path in snapshot.rglob("*")
            if path.is_file()
        }
    except OSError:
        return None
    return Listing(repo, revision, commit, files) if files else None


def _cache(repo: str) -> Path:
    """The folder of a repository in the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser() / "--".join(["models", *repo.split("/")])
