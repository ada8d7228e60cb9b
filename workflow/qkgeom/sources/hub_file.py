"""One file of the model hub, read by byte range: each range asked for, checked, and asked for again if it may help.

One request to the hub finds out where the file lies (a signed address, usually at a storage server) and all ranges are
taken from there; a refused address is renewed. Only the hub sees the token. A server that ignores ranges is noticed at
the first of them, and the file is then fetched whole. A range has no checksum: what TLS and the format do not notice
(safetensors has no checksums, torch's archives have), only a digest of an earlier extraction can tell.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from qkgeom.byte_files import ByteFile, LocalFile, empty
from qkgeom.errors import ModelFault
from qkgeom.sources import opening_cache
from qkgeom.sources.hub_client import ask
from qkgeom.sources.hub_download import download
from qkgeom.sources.hub_faults import CONTENT_RANGE, WrongAnswer, is_at_hub
from qkgeom.sources.hub_listing import Listing
from qkgeom.sources.read_ahead import ReadAhead

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Location:
    """Where a file's bytes are, as the hub says for a while."""

    url: str
    size: int


class _RangesIgnored(Exception):
    """The whole file came where a range was asked for."""


class WholeFileNeeded(ModelFault):
    """Ranges are of no use for a file, and it may not be fetched whole."""


class HubFile(ByteFile):
    """A weight file of a repository, at its commit.

    What is read before `opened` is set is the container's directory: it is kept on disk too, so that it moves once.
    What is read later comes in the order that `ahead` was told to expect.

    Attributes:
        taken: bytes of the ranges that were read, each counted once, however often and whenever they were moved.
        opened: whether the directory has been read.
        whole: the whole file, if ranges are of no use.
        headers_only: whether the whole file may not be fetched; a WholeFileNeeded is raised instead.
    """

    def __init__(self, listing: Listing, name: str, ahead: ReadAhead, *, headers_only: bool = False) -> None:
        self.listing, self.name, self.ahead, self.headers_only = listing, name, ahead, headers_only
        self.taken = 0
        self.opened = False
        self.whole: LocalFile | None = None
        self._location: Location | None = None
        self._lock = threading.RLock()
        self._key = listing.files[name] or f"{listing.commit}-{name}"
        self._directory = opening_cache.load(self._key)
        self._kept = len(self._directory.ranges)
        self._etag = self._directory.etag
        self.size = listing.sizes.get(name) or self.locate().size

    def __str__(self) -> str:
        return f"{self.listing}, {self.name}"

    @property
    def identity(self) -> str:
        """The file's digest and the storage server's tag for it."""
        return f"{self.listing.repo} {self._key} {self._etag}"

    @property
    def moved(self) -> int:
        """Bytes that were moved for it."""
        return self.taken if self.whole is None else self.size

    def read(self, start: int, stop: int) -> memoryview:
        """Exactly the bytes `start` to `stop`."""
        if stop > self.size:
            raise self.too_short(self.size, stop)
        if self.whole is not None:
            return self.whole.read(start, stop)
        if (start, stop) in self._directory.ranges:
            return self._directory.ranges[start, stop]
        if self.opened:
            return self.ahead.read(self, start, stop)
        view = empty(stop - start)
        self.fetch_into(start, view)
        self._directory.ranges[start, stop] = view
        return view

    def fetch_into(self, start: int, view: memoryview) -> None:
        """Fills `view` with the bytes from `start` on, by range, or from the whole file if ranges are ignored."""
        if self.whole is None and len(view):  # there is no empty range
            try:
                ask(partial(self._fetch, start, view), self.listing.repo, where=str(self))
            except _RangesIgnored:
                self._take_whole("the server ignores byte ranges")
        if self.whole is not None:
            view[:] = self.whole.read(start, start + len(view))

    def local(self) -> Path:
        """The whole file, in the hub's cache."""
        self._take_whole("this format is not read by range")
        return self.whole.path

    def finish_opening(self) -> None:
        """Says that the directory has been read, and keeps it for later runs."""
        if self.whole is None:
            self.taken += self._directory.size
            if len(self._directory.ranges) > self._kept:
                opening_cache.save(self._key, self._directory)
        self.opened = True

    def forget_directory(self) -> bool:
        """Has the directory fetched again; gives whether there was any."""
        known = bool(self._directory.ranges)
        self._directory, self._etag, self._kept = opening_cache.forget(self._key), None, 0
        return known

    def _take_whole(self, reason: str) -> None:
        if self.headers_only:
            raise WholeFileNeeded(f"{reason}, so the whole file is needed", where=self, found=f"{self.size} bytes")
        with self._lock:
            if self.whole is None:
                logger.warning("%s: %s, so the whole file is fetched (%d bytes)", self, reason, self.size)
                self.whole = LocalFile(download(self.listing, self.name), self.name)

    def _fetch(self, start: int, view: memoryview, _repo: str) -> None:
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        location = self.locate()
        last = start + len(view) - 1
        # A server that compresses its answers may ignore ranges.
        headers = {"Range": f"bytes={start}-{last}", "Accept-Encoding": "identity"}
        headers |= build_hf_headers(token=None if is_at_hub(location.url) else False)
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", location.url, headers=headers, timeout=timeout) as answer:
            if answer.status_code == 200:
                raise _RangesIgnored
            if answer.status_code in (401, 403):
                self._renew(location)
            if answer.status_code != 206:
                answer.read()
                hf_raise_for_status(answer)
            self._check(answer, start, last)
            _fill(view, answer)

    def locate(self) -> Location:
        """Where the file is: asked once, and again after `_renew`; refused if it may not be read."""
        with self._lock:
            if self._location is None:
                self._location = ask(self._ask_where, self.listing.repo, where=str(self))
            return self._location

    def _ask_where(self, repo: str) -> Location:
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import FileMetadataError

        url = hf_hub_url(repo, self.name, revision=self.listing.commit)
        found = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        size = self.listing.sizes.get(self.name) or found.size
        if found.commit_hash != self.listing.commit or size is None or found.size not in (None, size):
            raise FileMetadataError(f"{found.size} bytes of commit {found.commit_hash}, not {size} of {self.listing.commit}")
        return Location(found.location, size)

    def _renew(self, location: Location) -> None:
        """Has the hub asked again, unless another thread has done so."""
        with self._lock:
            if self._location is location:
                self._location = None

    def _check(self, answer: httpx2.Response, start: int, last: int) -> None:
        """Raises a WrongAnswer unless these are the bytes that were asked for, of the file they were asked of."""
        stated = answer.headers.get("Content-Range", "nothing")
        match = CONTENT_RANGE.fullmatch(stated)
        if answer.status_code != 206 or not match or tuple(map(int, match.groups())) != (start, last, self.size):
            raise WrongAnswer(f"HTTP {answer.status_code} with {stated}, expected bytes {start}-{last}/{self.size}")
        etag = answer.headers.get("ETag")
        with self._lock:
            if self._etag is None:
                self._etag = self._directory.etag = etag
        if etag != self._etag:
            opening_cache.forget(self._key)
            raise WrongAnswer(f"ETag {etag}, the file's earlier bytes came with {self._etag}: it changed meanwhile")


def _fill(view: memoryview, answer: httpx2.Response) -> None:
    """Takes an answer's body into `view`, which it has to fill exactly."""
    done = 0
    for chunk in answer.iter_raw():
        if done + len(chunk) > len(view):
            raise WrongAnswer(f"more than {len(view)} bytes")
        view[done : done + len(chunk)] = chunk
        done += len(chunk)
    if done < len(view):
        raise WrongAnswer(f"{done} bytes of {len(view)}")
