"""What is long is read a slice at a time; the event loop goes round between the slices."""

from gateway.dispatch.sliced_parsing import TURN_US, SlicedParser
from tests.gateway.fleet.manual_timers import Loop


class Book:
    """So many slices, each of ``cost_us``."""

    def __init__(self, slices: int, cost_us: int = 1000) -> None:
        self.slices = slices
        self.cost_us = cost_us

    @property
    def left_bytes(self) -> int:
        return self.slices

    def step(self) -> int:
        if not self.slices:
            return 0
        self.slices -= 1
        return self.cost_us


def test_what_is_short_is_read_at_once() -> None:
    parser, told = SlicedParser(Loop()), []
    assert parser.read(Book(1), lambda: told.append(1)) is None
    assert not told, "whoever asked goes on by itself"


def test_a_turn_of_the_loop_has_room_for_so_much() -> None:
    loop, told = Loop(), list[int]()
    parser = SlicedParser(loop)
    book = Book(20)
    assert parser.read(book, lambda: told.append(1)) is not None
    while loop.turn():
        assert book.slices % (TURN_US // 1000) == 0
    assert told == [1]


def test_many_short_ones_in_one_turn_are_read_over_many() -> None:
    loop, told = Loop(), list[int]()
    parser = SlicedParser(loop)
    waiting = [parser.read(Book(1, 200), lambda: told.append(1)) for _ in range(500)]
    at_once = waiting.count(None)
    assert 0 < at_once < 20
    turns = 0
    while loop.turn():
        turns += 1
    assert len(told) == 500 - at_once
    assert 100 <= turns <= 200


def test_the_room_of_a_turn_is_there_again_in_the_next() -> None:
    loop = Loop()
    parser = SlicedParser(loop)
    for _ in range(3):
        assert parser.read(Book(2), lambda: None) is not None, "used up before it is found to be the end"
        while loop.turn():
            pass
        assert parser.read(Book(1), lambda: None) is None
        while loop.turn():
            pass


def test_what_is_short_is_read_before_what_is_long() -> None:
    loop, told = Loop(), list[str]()
    parser = SlicedParser(loop)
    long, other = Book(50), Book(50)
    parser.read(long, lambda: told.append("long"))
    parser.read(other, lambda: told.append("other"))
    loop.turn()
    parser.read(Book(3), lambda: told.append("short"))
    while loop.turn():
        assert not long.slices or other.slices == 50, "one after the other"
    assert told == ["short", "long", "other"]


def test_what_nobody_wants_is_read_no_further() -> None:
    loop, told = Loop(), list[int]()
    parser = SlicedParser(loop)
    book = Book(50)
    task = parser.read(book, lambda: told.append(1))
    assert task is not None
    loop.turn()
    left = book.slices
    task.cancel()
    while loop.turn():
        pass
    assert (book.slices, told) == (left, [])


def test_one_that_fails_stops_no_other() -> None:
    loop, told = Loop(), list[int]()
    parser = SlicedParser(loop)

    def fail() -> None:
        raise RuntimeError

    parser.read(Book(9), fail)
    parser.read(Book(10), lambda: told.append(1))
    while loop.turn():
        pass
    assert told == [1]
