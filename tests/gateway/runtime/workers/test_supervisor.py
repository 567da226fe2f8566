"""The supervisor, with real processes that are no gateways."""

import os
import signal
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.runtime.workers import supervisor as supervising
from gateway.runtime.workers.restarts import FIRST_TRIES
from tests.gateway.runtime.workers.played_supervisor import Played
from tests.support.processes import until


def test_all_are_started_and_asked_to_end(tmp_path: Path) -> None:
    played = Played(tmp_path, "serves")
    assert played.run(lambda: until("both serve", played.serving)) == 0
    assert played.said(0) == played.said(1) == ["started", "stop"]
    assert sorted(played.left) == [0, 1]


def test_one_that_is_killed_is_started_again_and_the_other_is_left_alone(tmp_path: Path) -> None:
    played = Played(tmp_path, "serves")

    def meanwhile() -> None:
        until("both serve", played.serving)
        os.kill(played.workers[1].pid, signal.SIGKILL)
        until("it serves again", lambda: played.said(1) == ["started", "started"])

    with capture_logs() as logs:
        assert played.run(meanwhile) == 0
    ended = next(each for each in logs if each["event"] == "worker_ended")
    assert (ended["worker"], ended["signal"]) == (1, signal.SIGKILL)
    assert played.said(0) == ["started", "stop"]


def test_another_one_accepts_for_one_that_is_away_until_its_successor_serves(tmp_path: Path) -> None:
    played = Played(tmp_path, "serves")

    def meanwhile() -> None:
        until("both serve", played.serving)
        until("the first covered the second", lambda: played.covers(0) == ["cover 1 1", "release 1 0"])
        os.kill(played.workers[1].pid, signal.SIGKILL)
        until("it does so again", lambda: played.covers(0)[2:] == ["cover 1 1", "release 1 0"])
        assert played.covers(1) == []
        os.kill(played.workers[0].pid, signal.SIGKILL)
        until("the other one does it", lambda: played.covers(1) == ["cover 0 1", "release 0 0"])

    assert played.run(meanwhile) == 0


def test_all_read_the_settings_again_also_one_that_is_still_starting(tmp_path: Path) -> None:
    played = Played(tmp_path, "serves")

    def meanwhile() -> None:
        until("both serve", played.serving)
        os.kill(played.workers[1].pid, signal.SIGKILL)
        until("the next one starts", lambda: len(played.workers) == 3)
        os.kill(os.getpid(), signal.SIGHUP)
        until("both were told", lambda: "SIGHUP" in played.said(0) and "SIGHUP" in played.said(1))

    assert played.run(meanwhile) == 0
    assert played.said(1) == ["started", "started", "SIGHUP", "stop"]


def test_a_second_signal_reaches_those_that_stay_and_in_the_end_they_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "FORCED_S", 0.2)
    played = Played(tmp_path, "stays")

    def meanwhile() -> None:
        until("both serve", played.serving)
        os.kill(os.getpid(), signal.SIGTERM)
        until("both were told", lambda: all(played.said(i)[1:] == ["stop"] for i in (0, 1)))

    assert played.run(meanwhile) == 1
    assert all(played.said(i)[1:] == ["stop", "end"] for i in (0, 1))


def test_what_the_first_finds_wrong_ends_all(tmp_path: Path) -> None:
    played = Played(tmp_path, "2")
    assert played.run_alone() == 2
    assert [each.index for each in played.workers] == [0]


def test_none_that_ever_serves_is_an_error_and_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runtime.workers.restarts.FIRST_S", 0.001)
    played = Played(tmp_path, "crashes")
    with capture_logs() as logs:
        assert played.run_alone() == 1
    assert len(played.workers) == FIRST_TRIES
    assert logs[-1]["event"] == "workers_given_up"


def test_all_are_replaced_one_by_one_and_back_again(tmp_path: Path) -> None:
    played = Played(tmp_path, "serves")
    logs: list[MutableMapping[str, Any]] = []

    def meanwhile() -> None:
        until("both serve", played.serving)
        os.kill(os.getpid(), signal.SIGUSR2)
        until("the others serve", lambda: played.said("0b") == played.said("1b") == ["started"])
        until("both have left", lambda: played.said(0) == played.said(1) == ["started", "leave"])
        until("they have ended", lambda: "workers_replaced" in [each["event"] for each in logs])
        os.kill(os.getpid(), signal.SIGUSR2)
        until("they serve again", lambda: played.said(1) == ["started", "leave", "started"])

    with capture_logs() as captured:
        logs = captured
        assert played.run(meanwhile) == 0
    assert [each.process for each in played.workers] == ["0", "1", "0b", "1b", "0", "1"]


def test_when_one_cannot_take_a_place_all_stays_as_it_is(tmp_path: Path) -> None:
    played = Played(tmp_path, "fails in its place")
    logs: list[MutableMapping[str, Any]] = []

    def meanwhile() -> None:
        until("both serve", played.serving)
        os.kill(os.getpid(), signal.SIGUSR2)
        until("one has failed", lambda: "workers_not_replaced" in [each["event"] for each in logs])

    with capture_logs() as captured:
        logs = captured
        assert played.run(meanwhile) == 0
    assert played.workers[2].status() == 1
    assert played.said(0) == played.said(1) == ["started", "stop"]
