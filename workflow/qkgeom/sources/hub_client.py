"""Calls to the model hub, tried again after faults that may pass."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from qkgeom.sources.hub_faults import Kind, asked_wait, fault_for, innermost, kind_of, said, status_of

if TYPE_CHECKING:
    from tenacity import RetryCallState

logger = logging.getLogger(__name__)
T = TypeVar("T")  # PEP 695 needs Python 3.12
TRIES = 4
PASSING = (Kind.BUSY, Kind.DOWN, Kind.UNREACHABLE, Kind.WRONG)
LONGEST_WAIT = 300.0  # seconds, the window of the hub's rate limits: not worth waiting for more


def ask(function: Callable[..., T], repo: str, *args: object, where: str, retried: bool = False, **options: object) -> T:
    """Calls a function of the hub's client.

    Args:
        function: called with `repo`, `args` and `options`.
        repo: `org/name` or `name`.
        args: further positional arguments.
        where: what is asked for, for messages.
        retried: whether the function itself retries when the hub is unreachable or busy, as `hf_hub_download` does.
        options: keyword arguments.

    Raises:
        ModelFault: the repository, revision or file is missing, or access is refused.
        TransientFault: the hub cannot be reached or is out of order, or the disk refuses the write.
    """
    try:
        return keep_trying(partial(function, repo, *args, **options), where, retried)
    except Exception as error:
        fault = fault_for(error, repo, where)
        if fault is None:
            raise
        raise fault from error


def keep_trying(function: Callable[[], T], where: str, retried: bool = False) -> T:
    """Calls a function that asks a server, again after faults that may pass; the last error is left as it is.

    Args:
        function: called without arguments.
        where: what is asked for, for messages.
        retried: see `ask`.
    """
    from tenacity import Retrying, retry_if_exception, stop_after_attempt

    def tell(state: RetryCallState) -> None:
        logger.warning("%s: %s; try %d of %d", where, said(state.outcome.exception()), state.attempt_number + 1, TRIES)

    again = retry_if_exception(lambda error: _worth_another_try(error, retried))
    return Retrying(retry=again, stop=stop_after_attempt(TRIES), wait=_wait, before_sleep=tell, reraise=True)(function)


def _worth_another_try(error: BaseException, retried: bool) -> bool:
    import httpx2

    if kind_of(error) not in PASSING or (_asked(error) or 0) > LONGEST_WAIT:
        return False
    connection = isinstance(error, (httpx2.ConnectError, httpx2.TimeoutException, httpx2.RemoteProtocolError))
    return not (retried and (connection or innermost(error) is not error or kind_of(error) is Kind.BUSY))


def _wait(state: RetryCallState) -> float:
    """Seconds until the next try: what the hub asks for, else 1, 2, 4; and up to one more, so that jobs spread."""
    asked = _asked(state.outcome.exception())
    return (2.0 ** (state.attempt_number - 1) if asked is None else asked) + random.uniform(0, 1)


def _asked(error: BaseException) -> float | None:
    return None if status_of(error) is None else asked_wait(error.response.headers)
