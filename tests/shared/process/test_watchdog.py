"""A thread sees that the event loop does not turn."""

import asyncio
import threading
from collections.abc import Callable

from shared.process.stand_stills import BEAT_S
from shared.process.watchdog import LoopWatchdog, stack_of, watched_loop


class Reports:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []
        self.blocked = threading.Event()
        self.stack: list[str] = []

    def loop_blocked(self, now: float, stack: Callable[[], list[str]]) -> None:
        self.told.append(("blocked", now))
        self.stack = stack()
        self.blocked.set()

    def loop_turns(self, now: float, lasted_s: float) -> None:
        self.told.append(("turns", lasted_s))

    def process_stood_still(self, now: float, lasted_s: float) -> None:
        self.told.append(("stood still", lasted_s))

    def looked(self, now: float) -> None:
        self.told.append(("looked", now))


def test_an_episode_is_told_when_it_begins_and_when_it_is_over() -> None:
    reports = Reports()
    watchdog = LoopWatchdog(reports, 1.0, list, 0.0)
    for look in range(1, 12):
        now = look * BEAT_S
        watchdog.look(now, 0.0 if now < 2.5 else now)
    told = [each for each in reports.told if each[0] != "looked"]
    assert told == [("blocked", 1.25), ("turns", 2.25)]
    assert len(reports.told) == 11 + 2


async def test_the_stack_is_that_of_the_loop() -> None:
    reports = Reports()
    with watched_loop(reports, 0.1):
        await asyncio.sleep(0)
        reports.blocked.wait(10.0)
    assert any("test_the_stack_is_that_of_the_loop" in entry for entry in reports.stack)


async def test_a_report_that_fails_is_not_the_last_look() -> None:
    class Failing(Reports):
        looks = 0

        def looked(self, now: float) -> None:
            self.looks += 1
            if self.looks == 1:
                raise TypeError("cannot be written")
            looked_again.set()

    looked_again = threading.Event()
    with watched_loop(Failing(), 10.0):
        assert await asyncio.to_thread(looked_again.wait, 30.0)


def test_a_stack_names_places_and_no_values() -> None:
    secret = "sk-not-to-be-told"
    stack = stack_of(threading.get_ident())
    assert any("test_a_stack_names_places" in entry for entry in stack)
    assert secret not in "".join(stack)
    assert stack_of(-1) == []
