"""Small files of the model hub (config.json, an index): one request each, checked, kept under their digest."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from qkgeom.files import write_bytes
from qkgeom.sources.base import cache_folder
from qkgeom.sources.hub_client import ask
from qkgeom.sources.hub_download import cached, damaged, git_id
from qkgeom.sources.hub_listing import Listing

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)


def small_file(listing: Listing, name: str) -> tuple[Path, int]:
    """The file on this machine, and the bytes that it took to move it: 0 if it was in the hub's own cache.

    Raises:
        ModelFault: it is missing, access is refused, or it is not what the hub states.
        TransientFault: the hub cannot be reached, or the disk refuses the write.
    """
    if (found := cached(listing, name)) is not None:
        return found, 0
    digest = listing.files[name]
    key = digest or hashlib.sha256(f"{listing.repo} {listing.commit} {name}".encode()).hexdigest()
    target = cache_folder() / "hub" / "files" / key / PurePosixPath(name).name
    if not (target.is_file() and _digest(target.read_bytes(), digest) == digest):
        write_bytes(target, _right_content(listing, name))
    return target, target.stat().st_size


def _right_content(listing: Listing, name: str) -> bytes:
    """The file's content, asked for twice at most if it is damaged."""
    digest = listing.files[name]
    for _ in range(2):
        content = ask(_get, listing.repo, listing.commit, name, where=f"{listing}, {name}")
        if (found := _digest(content, digest)) == digest:
            return content
        logger.warning("%s, %s: the file is damaged", listing, name)
    raise damaged(listing, name, found)


def _digest(content: bytes, stated: str | None) -> str | None:
    """The content's digest, of the kind that is stated."""
    return None if stated is None else hashlib.sha256(content).hexdigest() if len(stated) == 64 else git_id(content)


def _get(repo: str, commit: str, name: str) -> bytes:
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.errors import FileMetadataError
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(repo, name, revision=commit)
    answer: httpx2.Response = get_session().get(url, headers=build_hf_headers(), timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    hf_raise_for_status(answer)
    found = next((each.headers["X-Repo-Commit"] for each in (*answer.history, answer) if "X-Repo-Commit" in each.headers), None)
    if found != commit:
        raise FileMetadataError(f"an answer of commit {found}, not {commit}")
    return answer.content
