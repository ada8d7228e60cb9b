"""What the hub client's errors mean: which may pass, how long the hub asks to wait, and our error for each."""

from __future__ import annotations

import datetime
import email.utils
import re
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from qkgeom.errors import AccessRefused, DiskFault, ModelFault, QkgeomError, TransientFault, UsageError

if TYPE_CHECKING:
    import httpx2

_SIGNED = re.compile(r"\(…\)\S*|\?\S+")  # the end of a long address, or its query
_CACHE_HINT = "to use only what the hub's cache already holds, set HF_HUB_OFFLINE=1"
_AGAIN = "then run the same command again"
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")  # a header: first byte, last byte, bytes in all
SLOW_DOWN = (408, 425, 429)  # HTTP statuses that ask to come back later


class WrongAnswer(Exception):
    """An answer that does not fit the request: another range, too few bytes, another version of the file."""


class Kind(Enum):
    """Kinds of fault; all but REFUSED are transient, with what a person reads and does about them."""

    REFUSED = None
    BUSY = "the hub asks to slow down", "run again in five minutes; HF_TOKEN raises the limit, fewer hub_slots keep below it"
    DOWN = "the hub is out of order", f"run the same command again later; {_CACHE_HINT}"
    UNREACHABLE = (
        "the hub cannot be reached, or a download broke off",
        f"check the network, the proxy and HF_ENDPOINT, {_AGAIN}; {_CACHE_HINT}",
    )
    OFFLINE = "the hub is needed, but HF_HUB_OFFLINE is set", f"unset HF_HUB_OFFLINE, {_AGAIN}"
    STRANGER = "something answers in the hub's place, but not as a hub", f"check HF_ENDPOINT, proxy and log-in page, {_AGAIN}"
    WRONG = "an answer is not what was asked for", f"something on the way changes it: check the proxy and HF_ENDPOINT, {_AGAIN}"
    DISK = "a download cannot be stored", f"free disk space, or set HF_HOME to a folder that can be written, {_AGAIN}"


def kind_of(error: BaseException) -> Kind | None:
    """The kind of a fault, or None for an error that the hub has nothing to do with."""
    import httpx2
    from huggingface_hub.errors import FileMetadataError, OfflineModeIsEnabled

    error = innermost(error)
    if (status := status_of(error)) is not None:
        if status in SLOW_DOWN:
            return Kind.BUSY
        # A storage server's 403 means that the address which the hub signed has expired; it says nothing of the model.
        return Kind.DOWN if status >= 500 or not is_at_hub(str(error.response.url)) else Kind.REFUSED
    if isinstance(error, WrongAnswer):
        return Kind.WRONG
    if isinstance(error, OfflineModeIsEnabled):
        return Kind.OFFLINE
    if isinstance(error, httpx2.RequestError):
        return Kind.UNREACHABLE
    if isinstance(error, FileMetadataError):
        return Kind.STRANGER
    if isinstance(error, (OSError, RuntimeError)):  # without an errno: the client found a download too short
        return Kind.DISK if getattr(error, "errno", None) else Kind.UNREACHABLE
    return Kind.STRANGER if isinstance(error, (ValueError, KeyError, TypeError)) else None


def innermost(error: BaseException) -> BaseException:
    """The error that the client wrapped in its own "not found in the cache" or "cannot force a download"."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    while (
        isinstance(error, (LocalEntryNotFoundError, ValueError)) and not isinstance(error, HfHubHTTPError) and error.__cause__
    ):
        error = error.__cause__
    return error


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an answer that is an error."""
    from huggingface_hub.errors import HfHubHTTPError

    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def asked_wait(headers: httpx2.Headers) -> float | None:
    """Seconds that an answer asks to wait: the hub's RateLimit header when it is used up, else Retry-After."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    value = headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, (email.utils.parsedate_to_datetime(value) - datetime.datetime.now(datetime.UTC)).total_seconds())
    except (ValueError, TypeError):  # neither seconds nor a date with a zone
        return None


def said(error: BaseException) -> str:
    """One line of an error, without the signed addresses that the client's own texts hold."""
    if (status := status_of(error)) is None:
        return f"{type(error).__name__}: {_SIGNED.sub('…', (str(error).splitlines() or ['no details'])[0])}"
    message = error.response.headers.get("X-Error-Message")
    return f"HTTP {status}" + (f", {message}" if message else "")


def fault_for(error: BaseException, repo: str, where: str) -> QkgeomError | None:
    """Our error for the client's, or None for one that the hub has nothing to do with."""
    kind, error = kind_of(error), innermost(error)
    if kind is None:
        return None
    if kind is Kind.REFUSED:
        return _refusal(error, repo, where)
    what, fix = kind.value
    fault = DiskFault if kind is Kind.DISK else TransientFault
    return fault(what, where=f"{where} at {public_endpoint()}", found=said(error), fix=fix)


def public_endpoint() -> str:
    """The hub's address (HF_ENDPOINT), without a user name or password that may be in it."""
    parts = urlsplit(_endpoint())
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def require_endpoint() -> None:
    """Raises a UsageError if HF_ENDPOINT is not an address."""
    try:
        parts = urlsplit(_endpoint())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError("HF_ENDPOINT is not the address of a hub", found=repr(_endpoint()), expected="https://HOST")


def is_at_hub(url: str) -> bool:
    """Whether an address is the hub's own, which may see the token, and not that of a storage server."""
    return _origin(url) == _origin(_endpoint())


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)


def _refusal(error: BaseException, repo: str, where: str) -> ModelFault:
    from huggingface_hub.errors import GatedRepoError, RemoteEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    page, status = f"{public_endpoint()}/{repo}", status_of(error)
    log_in = "set HF_TOKEN to a token that may read it (or run `hf auth login`)"
    # The hub answers 401 for a missing repository, to those without a token; the client tells it from others by https only.
    code, message = (error.response.headers.get(f"X-Error-{which}", "") for which in ("Code", "Message"))
    missing = status == 404 or (status == 401 and not code and "credentials" not in message)
    missing = missing or (isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError))
    if isinstance(error, RevisionNotFoundError):
        what = f"the hub has this repository, but not this revision: {where}"
        fix = f"choose a commit, tag or branch from {page}/commits"
    elif isinstance(error, RemoteEntryNotFoundError):
        what, fix = f"a file is missing from the hub: {where}", f"compare with the files at {page}/tree/main"
    elif missing:
        what = f"the hub has no such repository, or it is private: {repo}"
        fix = f"check the id at {page}; if it is private, {log_in}; if a path was meant, there is no such file here"
    elif status in (401, 403):
        what = "access to this model is refused: it is gated or private, or the token is wrong"
        fix = f"accept the licence at {page}, then {log_in}"
        return AccessRefused(what, where=f"{where} at {public_endpoint()}", found=said(error), fix=fix)
    else:
        what, fix = "the hub refuses the request", f"look at {page}"
    return ModelFault(what, where=f"{where} at {public_endpoint()}", found=said(error), fix=fix)
