"""How long a process did not run."""

from shared.process.stand_stills import BEAT_S, StandStills


def test_a_loop_that_turns_never_stood_still() -> None:
    stills = StandStills(0.0)
    for number in range(1, 100):
        stills.turn(number * (BEAT_S + 0.4))
    assert stills.since(0.0, 65.0) == 0.0


def test_a_pause_counts_as_far_as_it_lies_in_the_time_asked_for() -> None:
    stills = StandStills(0.0)
    stills.turn(0.25)
    assert stills.since(0.0, 4.5) == 4.0, "before the loop says that it turns again"
    stills.turn(4.5)
    stills.turn(4.75)
    assert stills.since(0.0, 5.0) == 4.0
    assert stills.since(3.0, 5.0) == 1.5
    assert stills.since(4.6, 5.0) == 0.0


def test_several_pauses_add_up_and_only_the_latest_are_kept() -> None:
    stills = StandStills(0.0)
    for number in range(1, 101):
        stills.turn(number * (1.0 + BEAT_S))
    now = 100 * (1.0 + BEAT_S)
    assert stills.since(now - 2 * (1.0 + BEAT_S), now) == 2.0
    assert stills.since(0.0, now) == 16.0
