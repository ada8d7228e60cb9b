"""Byte ranges fetched in the order in which they will be read: several at a time, within a budget of memory."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from qkgeom.byte_files import ByteFile, Wanted, empty

IN_FLIGHT = 4  # requests at a time
PART = 2**24  # bytes of one request at most, well below the 64 MiB that a server may cut off
MERGED = 2**24  # bytes of a span of neighbours at most; a longer tensor is a span of its own
AHEAD = 3 * 2**25  # bytes fetched before they are asked for, beyond two of the longest spans
GAP = 128  # neighbours are merged if what lies between them is less than a 128th of what is wanted


class Ranged(Protocol):
    """A file whose ranges are fetched from elsewhere.

    Attributes:
        taken: bytes of what was read, each counted once, however often it was tried.
    """

    taken: int

    def fetch_into(self, start: int, view: memoryview) -> None:
        """Fills `view` with the bytes from `start` on."""


@dataclass(eq=False)
class Span:
    """Neighbouring ranges of one file, moved together."""

    file: Ranged
    start: int
    stop: int
    view: memoryview | None = None
    parts: list[Future] = field(default_factory=list)

    def holds(self, file: ByteFile, start: int, stop: int) -> bool:
        """Whether this range is part of it."""
        return self.file is file and self.start <= start and stop <= self.stop


def spans_of(groups: Sequence[Sequence[Wanted]]) -> list[Span]:
    """What is fetched from elsewhere: neighbours within each group (a layer) merged, in the order of reading."""
    spans: list[Span] = []
    for group in groups:
        first = len(spans)
        for file, start, stop in (each for each in group if hasattr(each[0], "fetch_into")):
            last = spans[-1] if len(spans) > first else None
            if last is not None and _neighbours(last, file, start, stop):
                last.start, last.stop = min(last.start, start), max(last.stop, stop)
            else:
                spans.append(Span(file, start, stop))
    return spans


def _neighbours(span: Span, file: ByteFile, start: int, stop: int) -> bool:
    together = max(span.stop, stop) - min(span.start, start)
    gap = max(0, start - span.stop, span.start - stop)
    inside = together == span.stop - span.start
    return span.file is file and (inside or (gap * GAP <= together and together <= MERGED))


class ReadAhead:
    """Reads of files of one checkpoint; `expect` says what comes, `read` takes it in that order.

    A buffer lives as long as anyone uses a part of it, and counts against the budget until then. What is read next is
    fetched whatever the budget, so that nothing waits for ever.
    """

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="fetch")
        self.waiting: deque[Span] = deque()  # in order; the first few are on their way
        self.current: Span | None = None
        self.held = self.budget = 0
        self.lock = threading.RLock()  # a buffer may be released while another is counted

    def expect(self, groups: Sequence[Sequence[Wanted]]) -> None:
        """Says what will be read, in order. Ranges of one group are merged where they are neighbours."""
        self.waiting = deque(spans_of(groups))
        self.budget = 2 * max((each.stop - each.start for each in self.waiting), default=0) + AHEAD
        self._top_up()

    def read(self, file: ByteFile, start: int, stop: int) -> memoryview:
        """The bytes `start` to `stop` of a file, expected or not."""
        if self.current is None or not self.current.holds(file, start, stop):
            self.current = None  # its buffer is free, unless someone uses it still
            self.current = self._next(file, start, stop)
        span = self.current
        for part in span.parts:
            part.result()
        return span.view[start - span.start : stop - span.start]

    def close(self) -> None:
        """Ends all that is on its way."""
        self.waiting.clear()
        self.current = None
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _next(self, file: ByteFile, start: int, stop: int) -> Span:
        """The span of a range, on its way; those before it in the order were not wanted after all."""
        if any(each.holds(file, start, stop) for each in self.waiting):
            while not self.waiting[0].holds(file, start, stop):
                self.waiting.popleft()
            span = self.waiting.popleft()
        else:
            span = Span(file, start, stop)
        span.file.taken += span.stop - span.start
        if span.view is None:
            self._send(span)
        self._top_up()
        return span

    def _top_up(self) -> None:
        for span in self.waiting:
            if span.view is None:
                if self.held + span.stop - span.start > self.budget:
                    return
                self._send(span)

    def _send(self, span: Span) -> None:
        size = span.stop - span.start
        span.view = empty(size)
        with self.lock:
            self.held += size
        weakref.finalize(span.view.obj, self._release, size)
        span.parts = [
            self.pool.submit(span.file.fetch_into, span.start + first, span.view[first : first + PART])
            for first in range(0, size, PART)
        ]

    def _release(self, size: int) -> None:
        with self.lock:
            self.held -= size
