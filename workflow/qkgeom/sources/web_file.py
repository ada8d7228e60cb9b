"""A file of a web server, whole: gone on with where an earlier try broke off, checked by its sha256, then given its name.

One process at a time fetches a file; another one that wants it waits. The hub's client makes the requests, so that its
time limits, the proxy settings and HF_HUB_OFFLINE hold here too; no token is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from qkgeom.console import progress
from qkgeom.errors import ModelFault, TransientFault
from qkgeom.files import locked, publish, sha256_of, wait_for_lock
from qkgeom.sources.base import WholeFile, storing
from qkgeom.sources.hub_client import PASSING, keep_trying
from qkgeom.sources.hub_faults import CONTENT_RANGE, SLOW_DOWN, Kind, WrongAnswer, kind_of, require_endpoint, said

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")  # PEP 695 needs Python 3.12
logger = logging.getLogger(__name__)


def web_file(url: str, sha256: str, target: Path) -> int:
    """Has a file at `target`.

    Args:
        url: where it is.
        sha256: of the whole file, in small hexadecimal digits.
        target: where it is kept.

    Returns:
        The bytes that were moved for it, each counted once, in whichever run: 0 if it was there.

    Raises:
        ModelFault: the server does not have it, or another file instead.
        TransientFault: the server cannot be reached or is out of order, or the disk refuses the write.
        UsageError: HF_ENDPOINT is no address.
    """
    with storing(target.parent):
        if _is_whole(target, sha256):
            return 0
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            if _is_whole(target, sha256):  # now
                return 0
            _fetch(url, sha256, target)
            return target.stat().st_size


def size_of(url: str, target: Path) -> WholeFile:
    """The bytes of a file that `web_file` would have at `target`; it is not moved, and what is here is not read.

    Raises:
        ModelFault, TransientFault, UsageError: see `web_file`.
    """
    if target.is_file():
        return WholeFile(target.stat().st_size, 0)
    part = _part_of(target)
    size = _ask(partial(_stated_size, url, target.name), f"{target.name} from {url}")
    return WholeFile(size, size - min(size, part.stat().st_size if part.is_file() else 0))


def _is_whole(target: Path, sha256: str) -> bool:
    return target.is_file() and sha256_of(target) == sha256


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Waits until no other process fetches the same file."""
    with target.with_name(f".{target.name}.lock").open("wb") as file:
        if not locked(file, without_locks=True):
            logger.info("%s is being fetched by another process: waiting for it", target.name)
            wait_for_lock(file)
        yield


def _part_of(target: Path) -> Path:
    """What a broken-off download has left."""
    return target.with_name(f".{target.name}.partial")


def _fetch(url: str, sha256: str, target: Path) -> None:
    part = _part_of(target)
    for _ in range(2):  # what an earlier run left, or the way here, may have damaged it
        _fetch_rest(url, target.name, part)
        if (found := sha256_of(part)) == sha256:
            return publish(part, target)
        logger.warning("%s: the file from %s is damaged", target.name, url)
        part.unlink()
    raise ModelFault(
        "a file is not the one that its sha256 states, twice",
        where=f"{target.name} from {url}",
        found=f"sha256 {found}",
        expected=f"sha256 {sha256}",
        fix="something on the way changes it: check the proxy, then run `retry`",
    )


def _fetch_rest(url: str, name: str, part: Path) -> None:
    _ask(partial(_append_rest, url, name, part), f"{name} from {url}")


def _ask(function: Callable[[], T], where: str) -> T:
    """Asks a server, again after faults that may pass."""
    require_endpoint()  # with a wrong one the hub's client cannot even be imported
    try:
        return keep_trying(function, where)
    except Exception as error:
        if kind_of(error) not in (*PASSING, Kind.OFFLINE):
            raise
        what = "a download broke off, or its server cannot be reached or is out of order"
        fix = "check the network and the proxy, then run the same command again: it goes on where it stopped"
        if kind_of(error) is Kind.OFFLINE:
            what, fix = "a file is not in the cache, and HF_HUB_OFFLINE is set", Kind.OFFLINE.value[1]
        raise TransientFault(what, where=where, found=said(error), fix=fix) from error


def _append_rest(url: str, name: str, part: Path) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    with part.open("ab") as file:
        start = file.tell()
        headers = {"Range": f"bytes={start}-", "Accept-Encoding": "identity"}
        with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as answer:
            if start and answer.status_code == 416:
                return  # nothing is missing, as its digest will tell
            size, done = _size_of_rest(answer, start, f"{name} from {url}"), 0
            if answer.status_code == 200:  # the server ignores ranges
                file.truncate(0)
            with progress(size, f"fetch {name}, bytes") as tell:
                for chunk in answer.iter_raw():
                    file.write(chunk)
                    done += len(chunk)
                    tell(done)
    if done < size:
        raise WrongAnswer(f"{done} bytes, expected {size}")


def _size_of_rest(answer: httpx2.Response, start: int, where: str) -> int:
    """Bytes that follow: the whole file (0 if the server does not say how many), or all from `start` on; else an error."""
    _require_answer(answer, where)
    status = answer.status_code
    if status == 200:
        return int(answer.headers.get("Content-Length", 0))
    stated = answer.headers.get("Content-Range", "nothing")
    match = CONTENT_RANGE.fullmatch(stated)
    first, last, total = map(int, match.groups()) if match else (0, 0, 0)
    if status != 206 or (first, last + 1) != (start, total):
        raise WrongAnswer(f"HTTP {status} with {stated}, expected all bytes from {start} on")
    return total - start


def _stated_size(url: str, name: str) -> int:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    headers = {"Accept-Encoding": "identity"}
    answer = get_session().head(url, headers=headers, timeout=constants.HF_HUB_ETAG_TIMEOUT, follow_redirects=True)
    _require_answer(answer, f"{name} from {url}")
    stated = answer.headers.get("Content-Length", "")
    if not stated.isdecimal():
        raise WrongAnswer(f"HTTP {answer.status_code} without the file's size")
    return int(stated)


def _require_answer(answer: httpx2.Response, where: str) -> None:
    """Raises if a server refuses a file, or cannot serve it now."""
    from huggingface_hub.utils import hf_raise_for_status

    if 400 <= answer.status_code < 500 and answer.status_code not in SLOW_DOWN:
        raise ModelFault("a server refuses a file, or does not have it", where=where, found=f"HTTP {answer.status_code}")
    if answer.status_code >= 400:
        answer.read()
        hf_raise_for_status(answer)
