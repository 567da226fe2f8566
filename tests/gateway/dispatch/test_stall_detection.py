"""Whose a silence is: the engine's, or that of the tunnel in between."""

from types import SimpleNamespace
from typing import cast

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.stall_detection import ANSWER_S, QUIET_S, may_be_tunnel_silence
from shared.protocol import limits


class Link:
    """An endpoint as far as silences go."""

    def __init__(self) -> None:
        self.now = 100.0
        self.heard_s = 100.0
        self.probes = 0

    def quiet_s(self) -> float:
        return self.now - self.heard_s

    def probe(self) -> None:
        self.probes += 1


def attempt_over(link: Link) -> Attempt:
    session = SimpleNamespace(endpoint=link)
    return cast(Attempt, SimpleNamespace(deployment=SimpleNamespace(session=session), probed_s=None))


def test_a_tunnel_that_was_heard_just_now_is_not_in_doubt() -> None:
    link = Link()
    link.now += QUIET_S
    assert not may_be_tunnel_silence(attempt_over(link), link.now)
    assert link.probes == 0


def test_a_quiet_tunnel_is_asked_once_and_its_answer_settles_it() -> None:
    link = Link()
    attempt = attempt_over(link)
    link.now += 5.0
    assert may_be_tunnel_silence(attempt, link.now)
    link.heard_s = link.now + 0.1
    link.now += ANSWER_S
    assert not may_be_tunnel_silence(attempt, link.now)
    assert link.probes == 1


def test_a_tunnel_that_does_not_answer_is_in_doubt_until_it_must_count_as_away() -> None:
    link = Link()
    attempt = attempt_over(link)
    link.now += 5.0
    doubts = 0
    while may_be_tunnel_silence(attempt, link.now):
        doubts += 1
        link.now += ANSWER_S
    assert link.probes == 1
    assert limits.SILENT_AFTER_S < doubts * ANSWER_S <= limits.SILENT_AFTER_S + 3 * ANSWER_S


def test_a_later_silence_is_asked_about_anew() -> None:
    link = Link()
    attempt = attempt_over(link)
    for probes in (1, 2):
        link.now += 5.0
        assert may_be_tunnel_silence(attempt, link.now)
        assert link.probes == probes
        link.heard_s = link.now + 0.1
        link.now += ANSWER_S
        assert not may_be_tunnel_silence(attempt, link.now)
