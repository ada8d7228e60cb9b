"""Fetching ahead: what is merged, in which order it comes, and how much memory it takes."""

from __future__ import annotations

import threading
import time

import pytest

from qkgeom.byte_files import ByteFile, Seekable
from qkgeom.sources import read_ahead
from qkgeom.sources.read_ahead import ReadAhead, spans_of


class Counting(ByteFile):
    """A remote file whose byte at i is i % 251; it counts what is on its way."""

    def __init__(self, size: int = 10**6, ahead: ReadAhead | None = None) -> None:
        self.size, self.name, self.identity, self.ahead = size, "w", "w", ahead
        self.taken = self.now = self.most = 0
        self.asked: list[tuple[int, int]] = []
        self.lock = threading.Lock()

    def content(self, start: int, stop: int) -> bytes:
        return bytes(i % 251 for i in range(start, stop))

    def read(self, start, stop):
        return self.ahead.read(self, start, stop) if self.ahead else memoryview(self.content(start, stop))

    def local(self):
        raise NotImplementedError

    def fetch_into(self, start, view):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.asked.append((start, start + len(view)))
        time.sleep(0.01)
        view[:] = self.content(start, start + len(view))
        with self.lock:
            self.now -= 1


@pytest.fixture
def ahead(monkeypatch):
    for name, value in {"PART": 1000, "MERGED": 1000, "AHEAD": 3000}.items():
        monkeypatch.setattr(read_ahead, name, value)
    it = ReadAhead()
    yield it
    it.close()


def test_neighbours_of_a_group_are_merged(ahead):
    file, other = Counting(), Counting()
    groups = [
        [(file, 0, 300), (file, 300, 600)],  # next to each other
        [(file, 1200, 1500), (file, 902, 1198)],  # in the other order, with a little between
        [(file, 2000, 2300), (file, 2500, 2600)],  # with more between
        [(file, 3000, 3900), (file, 3900, 4800)],  # together too long
        [(file, 5000, 5100)],
        [(file, 5100, 5200)],  # of another group
        [(file, 6000, 6100), (other, 6100, 6200)],
        [(file, 7000, 7100), (file, 7000, 7100)],  # read twice
    ]
    found = [(each.start, each.stop) for each in spans_of(groups)]
    assert found[:2] == [(0, 600), (902, 1500)]
    assert found[2:6] == [(2000, 2300), (2500, 2600), (3000, 3900), (3900, 4800)]
    assert found[6:] == [(5000, 5100), (5100, 5200), (6000, 6100), (6100, 6200), (7000, 7100)]


def test_what_is_read_is_right_and_several_parts_are_on_their_way(ahead):
    file = Counting(ahead=ahead)
    wanted = [(start, start + 2500) for start in range(0, 50_000, 5000)]
    ahead.expect([[(file, *each)] for each in wanted])
    for start, stop in wanted:
        assert bytes(file.read(start, stop)) == file.content(start, stop)
    assert file.read(3, 5).tobytes() == file.content(3, 5)  # not expected
    assert 1 < file.most <= read_ahead.IN_FLIGHT
    assert max(stop - start for start, stop in file.asked) == 1000
    assert file.taken == 10 * 2500 + 2 == sum(stop - start for start, stop in file.asked)


def test_memory_is_bounded_and_nothing_waits_for_ever(ahead):
    """Two of the longest and AHEAD, however slowly they are used; what is kept by its user does not stop the next."""
    file = Counting(ahead=ahead)
    wanted = [(start, start + 2500) for start in range(0, 50_000, 2500)]
    ahead.expect([[(file, *each)] for each in wanted])
    most = 0
    for start, stop in wanted:
        file.read(start, stop)
        most = max(most, ahead.held)
        time.sleep(0.002)
    assert 5000 < most <= 2 * 2500 + 3000
    ahead.expect([[(file, *each)] for each in wanted])
    kept = [file.read(start, stop) for start, stop in wanted]
    assert b"".join(kept) == file.content(0, 50_000)


def test_an_error_of_a_part_is_the_readers(ahead, monkeypatch):
    file = Counting(ahead=ahead)
    monkeypatch.setattr(file, "fetch_into", lambda start, view: 1 / 0)
    ahead.expect([[(file, 0, 10)]])
    with pytest.raises(ZeroDivisionError):
        file.read(0, 10)


def test_a_file_that_can_be_sought_reads_each_block_once():
    file = Counting(1000)
    seen = []
    file.content = lambda start, stop, content=file.content: seen.append((start, stop)) or content(start, stop)
    stream = Seekable(file, 300)
    assert stream.seek(-50, 2) == 950 and stream.read(20) == bytes(i % 251 for i in range(950, 970))
    assert stream.read(100) == bytes(i % 251 for i in range(970, 1000)) and stream.read(1) == b""
    assert stream.seek(290) == 290 and stream.read(20) == bytes(i % 251 for i in range(290, 300))  # to the block's end
    assert seen == [(900, 1000), (0, 300)]
