"""Between few streams everything leaves in its turn of the loop; between many it is gathered for a while."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from shared.tunnel.write_scheduler import CROWD_STREAMS, FULL_FRAMES, GATHER_S, HASTE_S, WriteScheduler
from tests.support.clock import ManualClock, Timer


class House:
    """Departures on a clock that stands still, and when something left."""

    def __init__(self, streams: int) -> None:
        self.clock = ManualClock()
        self.left_s: list[float] = []
        loop = cast(asyncio.AbstractEventLoop, self)
        self.scheduler = WriteScheduler(loop, self._flush, self.time)
        self.scheduler.streams = range(streams)

    def _flush(self) -> None:
        self.scheduler.note_flushed()
        self.left_s.append(self.clock.now_s)

    def time(self) -> float:
        return self.clock.now_s

    def call_soon(self, callback: Callable[[], None], *_: Any) -> Timer:
        return self.clock.call_later(0.0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None], *_: Any) -> Timer:
        return self.clock.call_later(delay_s, callback)

    def wake(self, after_s: float = 0.0) -> None:
        if after_s:
            self.clock.advance(after_s)
        self.scheduler.wake()


@pytest.mark.parametrize("streams", [0, 1, CROWD_STREAMS - 1])
def test_between_few_streams_everything_leaves_in_its_turn(streams: int) -> None:
    house = House(streams)
    for _ in range(3):
        house.wake()
        house.wake()
        house.clock.advance(0.0)
    assert house.left_s == [1000.0] * 3


def test_between_many_streams_the_first_leaves_at_once_and_what_follows_is_gathered() -> None:
    house = House(CROWD_STREAMS)
    house.wake()
    house.clock.advance(0.0)
    for _ in range(5):
        house.wake(GATHER_S / 10)
    house.clock.advance(GATHER_S)
    assert len(house.left_s) == 2
    assert house.left_s[1] == pytest.approx(house.left_s[0] + GATHER_S * 1.1)


def test_after_a_silence_nothing_waits() -> None:
    house = House(CROWD_STREAMS)
    for _ in range(3):
        house.wake(GATHER_S * 2)
        house.clock.advance(0.0)
    assert len(house.left_s) == 3


def test_a_full_message_does_not_wait() -> None:
    house = House(CROWD_STREAMS)
    house.wake()
    house.clock.advance(0.0)
    for _ in range(FULL_FRAMES - 1):
        house.wake()
    house.clock.advance(0.0)
    assert len(house.left_s) == 1
    house.wake()
    house.clock.advance(0.0)
    assert house.left_s == [1000.0] * 2
    house.clock.advance(1.0)
    assert len(house.left_s) == 2, "what was to leave later has left"


def test_what_somebody_waits_for_takes_along_what_is_gathered() -> None:
    house = House(CROWD_STREAMS)
    house.wake()
    house.clock.advance(0.0)
    house.wake(HASTE_S * 1.5)
    house.scheduler.hasten()
    house.scheduler.hasten()
    assert house.scheduler.woken
    house.clock.advance(0.0)
    assert len(house.left_s) == 2
    house.clock.advance(1.0)
    assert len(house.left_s) == 2, "what was to leave later has left"


def test_nothing_is_hastened_right_after_a_message() -> None:
    house = House(CROWD_STREAMS)
    house.wake()
    house.clock.advance(0.0)
    house.wake(HASTE_S / 2)
    house.scheduler.hasten()
    house.clock.advance(HASTE_S / 4)
    assert len(house.left_s) == 1
    house.clock.advance(GATHER_S)
    assert len(house.left_s) == 2


def test_hastening_sends_nothing_that_was_not_to_leave() -> None:
    house = House(CROWD_STREAMS)
    house.scheduler.hasten()
    house.clock.advance(1.0)
    assert house.left_s == []
    house.scheduler.held = True
    house.wake()
    house.scheduler.hasten()
    house.clock.advance(1.0)
    assert house.left_s == []


def test_nothing_is_to_leave_while_it_is_held() -> None:
    house = House(CROWD_STREAMS)
    house.scheduler.held = True
    house.wake()
    house.clock.advance(1.0)
    assert house.left_s == []


def test_what_leaves_for_another_reason_takes_everything_along() -> None:
    house = House(CROWD_STREAMS)
    house.wake()
    house.clock.advance(0.0)
    house.wake()
    house._flush()
    house.clock.advance(1.0)
    assert len(house.left_s) == 2


@pytest.mark.parametrize("streams", [1, CROWD_STREAMS])
def test_it_knows_whether_something_is_to_leave_yet(streams: int) -> None:
    house = House(streams)
    assert not house.scheduler.woken
    for _ in range(2):  # with many streams the second waits for a while
        house.wake()
        assert house.scheduler.woken
        house.clock.advance(0.0 if streams == 1 or not house.left_s else GATHER_S)
        assert not house.scheduler.woken
    assert len(house.left_s) == 2
