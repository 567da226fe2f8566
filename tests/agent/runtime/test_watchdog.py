"""An event loop that stood still is told of, and not again and again."""

import structlog

from agent.runtime.watchdog import BLOCKED_S, LOOK_S, QUIET_S, ClockWatchdog
from tests.support.clock import ManualClock


def test_small_delays_are_none_of_its_business() -> None:
    watchdog = ClockWatchdog()
    with structlog.testing.capture_logs() as logs:
        watchdog.turned(BLOCKED_S - 0.1, 0.0)
    assert logs == []


def test_what_happens_soon_again_is_told_together() -> None:
    watchdog = ClockWatchdog()
    with structlog.testing.capture_logs() as logs:
        watchdog.turned(1.5, 0.0)
        watchdog.turned(3.0, 10.0)
        watchdog.turned(2.0, 20.0)
        watchdog.turned(0.0, QUIET_S)
        watchdog.turned(0.0, 2 * QUIET_S)
    assert [(entry["times"], entry["longest_s"]) for entry in logs] == [(1, 1.5), (2, 3.0)]


async def test_it_measures_how_late_its_own_turn_comes() -> None:
    clock = ManualClock()
    naps = iter([LOOK_S, LOOK_S + 4.0])

    class Over(Exception):
        pass

    async def sleep(delay_s: float) -> None:
        if (nap := next(naps, None)) is None:
            raise Over
        clock.advance(nap)

    with structlog.testing.capture_logs() as logs:
        try:
            await ClockWatchdog(clock, sleep).run()
        except Over:
            pass
    assert [entry["longest_s"] for entry in logs] == [4.0]
