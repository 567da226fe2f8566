"""Tunnels are read as something comes, and once in a millisecond while much comes of them."""

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from shared.tunnel.read_gatherer import (
    GATHER_FROM_PER_S,
    GATHER_S,
    GATHER_TO_PER_S,
    SAMPLE_LOOKS,
    SAMPLE_MESSAGES,
    SHORT_BYTES,
    ReadGatherer,
    ReadPace,
    read_gatherer,
)
from tests.support.clock import ManualClock, Timer

if not hasattr(select, "epoll"):
    pytest.skip("this system has no epoll", allow_module_level=True)


def paced(per_s: float, pace: ReadPace | None = None) -> ReadPace:
    """After a sample, of so many messages a second."""
    pace = pace or ReadPace(0.0)
    pace.sampled(pace._since + SAMPLE_MESSAGES / per_s, SAMPLE_MESSAGES)
    return pace


def test_few_messages_are_taken_as_they_come() -> None:
    assert not paced(GATHER_FROM_PER_S * 0.9).gathers


def test_many_messages_are_gathered_until_there_are_few() -> None:
    pace = paced(GATHER_FROM_PER_S * 1.1)
    assert pace.gathers
    assert paced(GATHER_TO_PER_S * 1.1, pace).gathers
    assert not paced(GATHER_TO_PER_S * 0.9, pace).gathers
    assert not paced(GATHER_TO_PER_S * 1.1, pace).gathers


def test_part_of_a_large_body_ends_it() -> None:
    pace = paced(GATHER_FROM_PER_S * 1.1)
    pace.came_long(1.0)
    assert not pace.gathers


class Loop:
    """Calls back on a clock that stands still, and watches one descriptor when it is told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.watched: Callable[[], None] | None = None
        self.reported: list[dict[str, Any]] = []

    def add_reader(self, _descriptor: int, callback: Callable[[], None]) -> None:
        assert self.watched is None
        self.watched = callback

    def remove_reader(self, _descriptor: int) -> None:
        assert self.watched is not None
        self.watched = None

    def call_soon(self, callback: Callable[[], None]) -> Timer:
        return self.clock.call_later(0.0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self.clock.call_later(delay_s, callback)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.reported.append(context)


class Reader:
    def __init__(self, fails: bool = False, until: bytes = b"none") -> None:
        self.got = b""
        self.has_all = asyncio.Event()
        self._until = until
        self.given_back = 0
        self.errors: list[Exception] = []
        self._fails = fails

    def data_received(self, data: bytes) -> None:
        self.got += data
        if self.got.endswith(self._until):
            self.has_all.set()
        if self._fails:
            raise ValueError("it cannot")

    def read_by_transport(self) -> None:
        self.given_back += 1

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class Site:
    """A gatherer, and one socket that it reads."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.gatherer = ReadGatherer(
            cast(asyncio.AbstractEventLoop, self.loop), select.epoll(), lambda: self.loop.clock.now_s
        )
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.reader = Reader()

    def add(self, reader: Reader) -> None:
        self.reader = reader
        self.gatherer.add(self.ours.fileno(), reader)

    def come(self, data: bytes, after_s: float = 0.0) -> None:
        self.theirs.sendall(data)
        self.clock(after_s)

    def clock(self, after_s: float) -> None:
        self.loop.clock.advance(after_s)
        if self.loop.watched is not None:
            self.loop.watched()

    def close(self) -> None:
        self.gatherer.close()
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    made.add(Reader())
    yield made
    made.close()


def hurry(site: Site) -> None:
    """Have so much come that it is gathered."""
    for _ in range(SAMPLE_MESSAGES):
        site.come(b"a", 0.0001)
    assert site.loop.watched is None


def test_what_comes_is_given_to_its_reader(site: Site) -> None:
    site.come(b"a token")
    site.come(b", another", 1.0)
    assert site.reader.got == b"a token, another"
    assert len(site.gatherer) == 1


def test_while_much_comes_the_loop_does_not_wake_for_each(site: Site) -> None:
    hurry(site)
    before = site.reader.got
    site.come(b"x", GATHER_S / 4)
    site.come(b"y", GATHER_S / 4)
    assert site.reader.got == before
    site.clock(GATHER_S)
    assert site.reader.got == before + b"xy"
    for _ in range(2 * SAMPLE_LOOKS):
        site.clock(GATHER_S)
    assert site.loop.watched is not None, "nothing came for a while"
    site.come(b"z")
    assert site.reader.got == before + b"xyz"


def test_large_bodies_are_not_held_back(site: Site) -> None:
    hurry(site)
    site.come(b"b" * (SHORT_BYTES + 1), GATHER_S)
    assert site.loop.watched is not None
    for _ in range(3 * SAMPLE_MESSAGES):
        site.come(b"b" * (SHORT_BYTES + 1), 0.0001)
        assert site.loop.watched is not None


def test_few_messages_do_not_begin_to_be_gathered(site: Site) -> None:
    for _ in range(3 * SAMPLE_MESSAGES):
        site.come(b"a", 1.1 / GATHER_FROM_PER_S)
        assert site.loop.watched is not None


def test_many_messages_in_few_looks_are_not_held_back(site: Site) -> None:
    ends = [socket.socketpair() for _ in range(20)]
    for ours, _ in ends:
        ours.setblocking(False)
        site.gatherer.add(ours.fileno(), Reader())
    for _ in range(3 * SAMPLE_MESSAGES):
        for _, theirs in ends:
            theirs.sendall(b"a")
        site.clock(1.1 / GATHER_FROM_PER_S)
        assert site.loop.watched is not None, "the process wakes seldom as it is"
    for ours, theirs in ends:
        site.gatherer.discard(ours.fileno())
        ours.close()
        theirs.close()


def test_an_end_is_left_to_the_transport(site: Site) -> None:
    site.theirs.sendall(b"bye")
    site.theirs.close()
    site.clock(0.0)
    assert (site.reader.got, site.reader.given_back) == (b"", 1)


def test_nothing_is_read_of_what_was_discarded(site: Site) -> None:
    assert site.gatherer.discard(site.ours.fileno())
    assert not site.gatherer.discard(site.ours.fileno())
    site.come(b"late")
    assert site.reader.got == b""
    site.add(Reader())
    site.clock(0.0)
    assert site.reader.got == b"late"


def test_a_reader_that_fails_is_told_and_reported() -> None:
    site = Site()
    site.add(Reader(fails=True))
    site.come(b"a")
    assert [str(error) for error in site.reader.errors] == ["it cannot"]
    assert site.loop.reported[0]["exception"] is site.reader.errors[0]
    site.close()


def test_one_that_cannot_even_be_told_holds_up_no_other(site: Site) -> None:
    hurry(site)
    broken, ours, theirs = Reader(fails=True), *socket.socketpair()
    broken.failed = lambda error: 1 / 0  # type: ignore[method-assign, assignment]
    with ours, theirs:
        ours.setblocking(False)
        site.gatherer.add(ours.fileno(), broken)
        for _ in range(3):
            theirs.sendall(b"b")
            before = site.reader.got
            site.come(b"c", GATHER_S)
            assert site.reader.got == before + b"c"
        kinds = [type(each["exception"]) for each in site.loop.reported]
        assert kinds == [ValueError, ZeroDivisionError] * 3
        site.gatherer.discard(ours.fileno())


@pytest.mark.parametrize("much", [False, True])
def test_closing_gives_all_back(site: Site, much: bool) -> None:
    if much:
        hurry(site)
    site.gatherer.close()
    site.gatherer.close()
    assert site.reader.given_back == 1
    assert site.loop.watched is None
    site.clock(1.0)
    site.theirs.sendall(b"later")
    site.clock(1.0)
    assert b"later" not in site.reader.got


async def test_it_reads_on_an_event_loop() -> None:
    loop = asyncio.get_running_loop()
    gatherer = read_gatherer(loop)
    assert gatherer is not None
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader = Reader(until=b" 199 ")
    gatherer.add(ours.fileno(), reader)
    sent = b""
    for number in range(200):
        piece = b"%d " % number
        theirs.sendall(piece)
        sent += piece
        await asyncio.sleep(0)
    async with asyncio.timeout(10.0):
        await reader.has_all.wait()
    assert reader.got == sent
    gatherer.close()
    ours.close()
    theirs.close()


async def test_a_loop_that_cannot_watch_descriptors_has_none() -> None:
    class Unable:
        def add_reader(self, *_: Any) -> None:
            raise NotImplementedError

    assert read_gatherer(cast(asyncio.AbstractEventLoop, Unable())) is None
