"""An event loop that stood still is told of, and not again and again."""

import structlog

from agent.runtime.watchdog import BLOCKED_S, QUIET_S, AgentLoopReporter
from shared.process.watchdog import BEAT_S, LoopWatchdog


def test_small_delays_are_none_of_its_business() -> None:
    watchdog = LoopWatchdog(AgentLoopReporter(), BLOCKED_S, list, 0.0)
    with structlog.testing.capture_logs() as logs:
        watchdog.look(BEAT_S, 0.0)
        watchdog.look(BEAT_S + BLOCKED_S - 0.1, 0.0)
        watchdog.look(2 * BLOCKED_S, 2 * BLOCKED_S)
    assert logs == []


def test_what_happens_soon_again_is_told_together() -> None:
    reporter = AgentLoopReporter()
    with structlog.testing.capture_logs() as logs:
        for now, lasted_s in [(0.0, 1.5), (10.0, 3.0), (20.0, 2.0)]:
            reporter.loop_turns(now, lasted_s)
            reporter.looked(now)
        reporter.looked(QUIET_S)
        reporter.looked(2 * QUIET_S)
    assert [(entry["times"], entry["longest_s"]) for entry in logs] == [(1, 1.5), (2, 3.0)]


def test_a_process_that_was_stopped_counts_as_well() -> None:
    watchdog = LoopWatchdog(AgentLoopReporter(), BLOCKED_S, list, 0.0)
    with structlog.testing.capture_logs() as logs:
        watchdog.look(4.0 + BEAT_S, 0.0)
        watchdog.look(4.0 + 2 * BEAT_S, 4.0 + 2 * BEAT_S)
    assert [entry["longest_s"] for entry in logs] == [4.0]
