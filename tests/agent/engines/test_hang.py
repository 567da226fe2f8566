"""When an engine counts as hanging, and when it only works for long."""

from math import inf

import pytest

from agent.engines.hang import LOOK_S, QUESTIONS, STOOD_STILL_S, HangDetector, LifeSigns, until_hung
from tests.support.clock import ManualClock

SILENT_S = 60.0
STILL_S = 600.0
MUTE = LifeSigns(unanswered=QUESTIONS)


class Looks:
    """A detector that is asked every second."""

    def __init__(self, silent_s: float = SILENT_S, still_s: float | None = STILL_S) -> None:
        self.now = 1000.0
        self.detector = HangDetector(silent_s, still_s, self.now)

    def go_on(self, seconds: float, signs: LifeSigns) -> str | None:
        """What it says at last, or first of a hang."""
        ends_s = self.now + seconds
        said = None
        while self.now < ends_s and said is None:
            self.now += LOOK_S
            said = self.detector.look(self.now, signs)
        return said


def test_an_engine_that_leaves_questions_unanswered_hangs_after_its_time() -> None:
    looks = Looks()
    assert looks.go_on(SILENT_S - 1, MUTE) is None
    assert looks.go_on(1, MUTE) == "the engine hangs: it has answered nothing for 60 s"


def test_one_unanswered_question_is_not_enough() -> None:
    assert Looks().go_on(10 * SILENT_S, LifeSigns(unanswered=QUESTIONS - 1)) is None


def test_what_is_heard_of_any_answer_begins_the_time_anew() -> None:
    looks = Looks()
    looks.go_on(50, MUTE)
    heard = LifeSigns(heard_s=looks.now, unanswered=QUESTIONS)
    assert looks.go_on(SILENT_S - 1, heard) is None
    assert looks.go_on(1, heard) is not None


def test_an_engine_that_is_asked_nothing_does_not_hang() -> None:
    assert Looks().go_on(10 * SILENT_S, LifeSigns()) is None


def test_requests_that_do_not_go_on_while_questions_are_answered_are_a_hang() -> None:
    looks = Looks()
    signs = LifeSigns(running=3, worked_s=900.0)
    assert looks.go_on(STILL_S, signs) is None, "the first look sees that something was heard before"
    assert looks.go_on(1, signs) == "the engine hangs: none of its requests has gone on for 600 s"


def test_requests_of_which_one_goes_on_are_none() -> None:
    looks = Looks()
    for _ in range(5):
        assert looks.go_on(STILL_S - 1, LifeSigns(running=3, worked_s=looks.now)) is None


def test_requests_given_up_one_after_the_other_count_together_and_pauses_do_not() -> None:
    looks = Looks()
    for _ in range(5):
        assert looks.go_on(STILL_S / 5 - 1, LifeSigns(running=1)) is None
        assert looks.go_on(2 * STILL_S, LifeSigns()) is None
    assert looks.go_on(5, LifeSigns(running=1)) is not None


@pytest.mark.parametrize(("silent_s", "still_s"), [(inf, None), (inf, STILL_S), (SILENT_S, None)])
def test_either_may_be_turned_off(silent_s: float, still_s: float | None) -> None:
    assert (Looks(silent_s, still_s).go_on(5000, MUTE) is None) == (silent_s == inf)
    assert (Looks(silent_s, still_s).go_on(5000, LifeSigns(running=1)) is None) == (still_s is None)


def test_while_this_process_stood_still_nobody_could_be_heard() -> None:
    looks = Looks()
    looks.go_on(SILENT_S - 1, MUTE)
    looks.go_on(STILL_S - SILENT_S, LifeSigns(running=1))
    looks.now += 2 * STOOD_STILL_S
    assert looks.detector.look(looks.now, LifeSigns(unanswered=QUESTIONS, running=1)) is None
    assert looks.go_on(SILENT_S - 1, MUTE) is None
    assert looks.go_on(1, MUTE) is not None


async def test_waiting_for_a_hang_ends_with_the_reason(clock: ManualClock) -> None:
    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    began_s = clock()
    detector = HangDetector(5.0, None, began_s)
    reason = await until_hung(detector, lambda: MUTE, clock, sleep)
    assert (reason, clock() - began_s) == ("the engine hangs: it has answered nothing for 5 s", 5.0)
