"""Whole files of the model hub, in its cache on this machine, each checked by its digest.

The client checks a file's size only.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

from qkgeom.errors import ModelFault
from qkgeom.files import sha256_of
from qkgeom.sources.hub_client import ask
from qkgeom.sources.hub_listing import Listing, cache_of

logger = logging.getLogger(__name__)


def cached(listing: Listing, name: str, *, checked: bool = True) -> Path | None:
    """A file that the hub's cache holds whole, as the user or another program left it, or None.

    Args:
        listing: of its repository.
        name: of the file.
        checked: whether its digest is compared, which reads all of it.
    """
    digest = listing.files[name]
    for place in _places(listing, name):
        if place.is_file():
            if not checked or digest is None or digest_of(place, len(digest)) == digest:
                return place
            logger.warning("%s, %s: the file in the hub's cache is damaged", listing, name)
    return None


def download(listing: Listing, name: str) -> Path:
    """A file, in the hub's cache, fetched whole if it is not there.

    Raises:
        ModelFault: it is missing, access is refused, or it is not what the hub states.
        TransientFault: the hub cannot be reached, or the disk refuses the write.
    """
    from huggingface_hub import hf_hub_download

    digest, found = listing.files[name], None
    for force in (False, True):
        options = {"revision": listing.commit, "force_download": force}
        path = Path(ask(hf_hub_download, listing.repo, name, where=f"{listing}, {name}", retried=True, **options))
        if digest is None or (found := digest_of(path, len(digest))) == digest:
            return path
        logger.warning("%s, %s: the file is damaged%s", listing, name, "" if force else "; fetching it again")
    with suppress(OSError):  # other programs use this cache too
        path.resolve().unlink()
        path.unlink()
    raise damaged(listing, name, found)


def digest_of(path: Path, digits: int) -> str:
    """sha256 of a file (64 digits) or its git object id (40), which the hub states for small files only."""
    return sha256_of(path) if digits == 64 else git_id(path.read_bytes())


def git_id(content: bytes) -> str:
    """The id that git gives to a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def damaged(listing: Listing, name: str, found: str) -> ModelFault:
    """The error for a file that came twice with another digest than the hub's."""
    return ModelFault(
        "a file from the hub is not the one that the hub states, twice",
        where=f"{listing}, {name}",
        found=f"digest {found}",
        expected=f"digest {listing.files[name]}",
        fix="something on the way changes it: check the proxy and HF_ENDPOINT, then run `retry`",
    )


def _places(listing: Listing, name: str) -> list[Path]:
    """Where the hub's cache may hold a file: at its commit, or as another commit's file of the same content."""
    folder, digest = cache_of(listing.repo), listing.files[name]
    return [folder / "snapshots" / listing.commit / name, *([folder / "blobs" / digest] if digest else [])]
