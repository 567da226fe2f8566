"""Workers that hang are ended and started again; with real processes, and a clock that the test sets."""

import os
import signal
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from gateway.runtime.workers import supervisor as supervising
from gateway.runtime.workers.channel import STACKS_SIGNAL
from gateway.runtime.workers.hung import HungWorkers
from gateway.runtime.workers.silence import SILENCE_S, START_S
from gateway.runtime.workers.worker_process import WorkerProcess
from tests.gateway.runtime.workers.played_supervisor import Played
from tests.support.clock import ManualClock
from tests.support.processes import until


class Paced(Played):
    """Its time passes as the test says, and only while the worker that is well gives signs of life."""

    def __init__(self, directory: Path, told: str) -> None:
        self.clock = ManualClock(1000.0)
        super().__init__(directory, told, clock=self.clock)
        self.logs: list[MutableMapping[str, Any]] = []

    def pass_time(self, seconds: int, well: int | None = 0) -> None:
        """``well`` is the place of that worker; None: there is none."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            if well is not None:
                self._hear_twice(self.workers[well])

    def pass_time_until(self, what: str, condition: Callable[[], object]) -> None:
        """The supervisor may see several of these seconds at once, and count them as fewer."""
        for _ in range(400):
            if condition():
                return
            self.pass_time(1)
        raise AssertionError(f"not within 400 s: {what}")

    def _hear_twice(self, worker: WorkerProcess) -> None:
        before = worker.beats
        until("it gives signs of life", lambda: worker.beats > before + 1, 60.0)

    def hurry(self) -> None:
        """See :meth:`Played.hurry`."""
        self.clock.advance(10.0)

    def logged(self, event: str) -> list[MutableMapping[str, Any]]:
        return [each for each in list(self.logs) if each["event"] == event]

    def run_logged(self, meanwhile: Callable[[], None]) -> int:
        with capture_logs() as self.logs:
            return self.run(meanwhile)


@pytest.mark.parametrize("how", ["stops", "blocks"])
def test_one_that_hangs_is_covered_killed_and_started_again(tmp_path: Path, how: str) -> None:
    played = Paced(tmp_path, "blocks")

    def meanwhile() -> None:
        until("both serve", played.serving, 60.0)
        until("the first covered the second", lambda: played.covers(0) == ["cover 1 1", "release 1 0"], 60.0)
        os.kill(played.workers[1].pid, signal.SIGSTOP if how == "stops" else signal.SIGHUP)
        if how == "blocks":
            until("it blocks", lambda: "SIGHUP" in played.said(1), 60.0)
        played.pass_time_until(
            "its connections are taken away", lambda: played.covers(0)[2:] == ["cover 1 1"]
        )
        assert played.workers[1].status() is None
        assert played.logged("worker_hangs") == []
        played.pass_time_until("it is killed", lambda: played.logged("worker_killed"))
        until("it has ended", lambda: played.logged("worker_ended"), 60.0)
        played.pass_time(1)
        until("the next one serves", lambda: played.covers(0)[3:] == ["release 1 0"], 60.0)

    assert played.run_logged(meanwhile) == 0
    assert len(played.workers) == 3
    (hung,), (killed,), (ended,) = (
        played.logged(event) for event in ("worker_hangs", "worker_killed", "worker_ended")
    )
    assert {each["pid"] for each in (hung, killed, ended)} == {played.workers[1].pid}
    assert ended["signal"] == signal.SIGKILL
    assert hung["silent_s"] > SILENCE_S
    assert hung["state"] == ("stopped" if how == "stops" else "waiting")
    assert (killed["stacks"] is None) == (how == "stops"), "one that is stopped writes nothing down"
    if how == "blocks":
        assert "in reload" in killed["stacks"]
    assert played.said(0) == ["started", "stop"], "the other one is left alone"


def test_one_that_hesitates_has_its_connections_back_and_lives(tmp_path: Path) -> None:
    played = Paced(tmp_path, "serves")

    def meanwhile() -> None:
        until("both serve", played.serving, 60.0)
        until("the first covered the second", lambda: len(played.covers(0)) == 2, 60.0)
        os.kill(played.workers[1].pid, signal.SIGSTOP)
        played.pass_time_until(
            "its connections are taken away", lambda: played.covers(0)[2:] == ["cover 1 1"]
        )
        os.kill(played.workers[1].pid, signal.SIGCONT)
        until("it has them back", lambda: played.covers(0)[3:] == ["release 1 0"], 60.0)

    assert played.run_logged(meanwhile) == 0
    assert len(played.workers) == 2
    assert played.logged("worker_hangs") == played.logged("worker_ended") == []


def test_a_machine_that_was_suspended_loses_no_worker(tmp_path: Path) -> None:
    """The supervisor goes on before they do: it sees that all have been silent for hours by its clock."""
    played = Paced(tmp_path, "serves")

    def meanwhile() -> None:
        until("both serve", played.serving, 60.0)
        for each in played.workers:
            os.kill(each.pid, signal.SIGSTOP)
        for _ in range(3):
            played.clock.advance(3600.0)
            os.kill(os.getpid(), signal.SIGCHLD)  # the supervisor looks
        for each in played.workers:
            os.kill(each.pid, signal.SIGCONT)
        played.pass_time(2, well=0)
        played.pass_time(2, well=1)

    assert played.run_logged(meanwhile) == 0
    assert len(played.workers) == 2
    assert played.logged("worker_hangs") == []
    assert played.said(0) == played.said(1) == ["started", "stop"]


def test_one_that_hangs_while_all_end_is_left_to_the_time_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "FORCED_S", 0.0)
    played = Paced(tmp_path, "stays")

    def meanwhile() -> None:
        until("both serve", played.serving, 60.0)
        os.kill(os.getpid(), signal.SIGTERM)
        until("both were told", lambda: all(played.said(place)[1:] == ["stop"] for place in (0, 1)))
        os.kill(played.workers[1].pid, signal.SIGSTOP)
        played.pass_time(int(SILENCE_S) + 5)
        assert played.workers[1].status() is None

    assert played.run_logged(meanwhile) == 1
    assert played.logged("worker_hangs") == []
    assert len(played.logged("workers_killed")) == 1


def test_one_that_hangs_before_it_has_served_is_killed_and_replaced(tmp_path: Path) -> None:
    played = Paced(tmp_path, "hangs once")

    def meanwhile() -> None:
        until("the first serves", lambda: played.said(0) == ["started"], 60.0)
        until("the second hangs", lambda: played.said(1) == ["hangs"], 60.0)
        played.pass_time(int(SILENCE_S) + 5)
        assert played.logged("worker_does_not_start") == [], "it may take long"
        played.pass_time_until("it is killed", lambda: played.logged("worker_killed"))
        until("it has ended", lambda: played.logged("worker_ended"), 60.0)
        played.pass_time(1)
        until("the next one serves", lambda: played.said(1) == ["hangs", "started"], 60.0)
        until("it accepts its connections itself", lambda: played.covers(0)[-1:] == ["release 1 0"], 60.0)

    assert played.run_logged(meanwhile) == 0
    (found,), (killed,) = played.logged("worker_does_not_start"), played.logged("worker_killed")
    assert found["pid"] == killed["pid"] == played.workers[1].pid
    assert found["after_s"] > START_S
    assert found["state"] == "waiting"
    assert "in never_serve" in killed["stacks"]
    assert len(played.workers) == 3
    assert played.logged("worker_hangs") == []


class StillWorker:
    """A worker that does nothing."""

    index, pid, is_ending = 0, os.getpid(), False

    def __init__(self) -> None:
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def stacks(self) -> str:
        return ""


def _seconds_until_killed(hung: HungWorkers, worker: StillWorker, now: float, most_s: int) -> int | None:
    for seconds in range(1, most_s + 1):
        hung.pass_time(now + seconds)
        hung.look(now + seconds)
        if signal.SIGKILL in worker.signals:
            return seconds
    return None


@pytest.mark.parametrize(("first", "killed_s"), [(False, 122), (True, 602)])
def test_the_first_of_all_may_take_longer_to_start(first: bool, killed_s: int) -> None:
    hung, worker = HungWorkers(SILENCE_S, 0.0), StillWorker()
    hung.started(cast("WorkerProcess", worker), first=first)
    assert hung.due_s(0.0) is not None, "the supervisor looks by itself"
    with capture_logs() as logs:
        assert _seconds_until_killed(hung, worker, 0.0, 1000) == killed_s
    assert worker.signals == [STACKS_SIGNAL, signal.SIGKILL]
    assert [each["event"] for each in logs] == ["worker_does_not_start", "worker_killed"]
    assert logs[0]["after_s"] == killed_s - 1


@pytest.mark.parametrize("spared", ["serves", "is told to end", "has no deadline"])
def test_one_that_serves_or_is_told_to_end_has_no_deadline(spared: str) -> None:
    hung, worker = HungWorkers(SILENCE_S, 0.0, 0.0 if spared == "has no deadline" else START_S), StillWorker()
    process = cast("WorkerProcess", worker)
    hung.started(process, first=False)
    if spared == "serves":
        hung.serves(process)
    elif spared == "is told to end":
        hung.forget(process)
    assert _seconds_until_killed(hung, worker, 0.0, 1000) is None
    assert hung.due_s(1000.0) is None
