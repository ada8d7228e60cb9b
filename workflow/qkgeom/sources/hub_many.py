"""One question about many repositories of the model hub, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from qkgeom.console import track
from qkgeom.errors import ModelFault, TransientFault
from qkgeom.sources.hub_faults import Kind, kind_of

T = TypeVar("T")  # PEP 695 needs Python 3.12
SLOTS = 8  # repositories at a time: each answer is small
PATIENCE = 8  # repositories out of reach before the others are not asked: each took several tries


def ask_each(
    question: Callable[[str], T], addresses: Sequence[str], slots: int, label: str
) -> dict[str, T | ModelFault | TransientFault]:
    """The answers by address, or the fault in an answer's place.

    Args:
        question: given an address.
        addresses: `org/name@revision`.
        slots: so many at a time.
        label: of the progress.

    Raises:
        UsageError: an address is not of this form, or HF_ENDPOINT is no address.
    """
    unreachable: list[str] = []

    def ask_one(address: str) -> T | ModelFault | TransientFault:
        if len(unreachable) >= PATIENCE:
            return TransientFault(
                "not asked, since the hub could not be reached",
                where=address,
                found=f"no answer about {', '.join(unreachable[:3])} ...",
                fix="check the network, the proxy, HF_ENDPOINT and HF_HUB_OFFLINE, then run the same command again",
            )
        try:
            return question(address)
        except (ModelFault, TransientFault) as fault:
            if fault.__cause__ and kind_of(fault.__cause__) in (Kind.UNREACHABLE, Kind.OFFLINE):
                unreachable.append(address)
            return fault

    with ThreadPoolExecutor(slots, thread_name_prefix="ask") as pool:
        answers = {address: pool.submit(ask_one, address) for address in addresses}
        try:
            return {address: answers[address].result() for address in track(list(answers), label)}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
