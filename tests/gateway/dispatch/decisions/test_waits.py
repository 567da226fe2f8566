"""Why requests waited, and for how long."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.decisions import waits
from gateway.dispatch.decisions.waits import LEAST_S, MOST_NOTES, WaitLog


def test_a_wait_has_the_reasons_of_its_time_and_no_others() -> None:
    log = WaitLog()
    log.note("m", "loading", 1.0)
    log.note("m", "no_slot", 3.0)
    log.note("m", "no_slot", 4.0)
    log.clear("m", 6.0)
    log.note("m", "held", 8.0)
    assert log.between("m", 2.0, 5.0) == (("loading", 1.0), ("no_slot", 2.0))
    assert log.between("m", 5.0, 9.0) == (("no_slot", 1.0), ("held", 1.0))
    assert log.between("m", 6.5, 7.5) == ()
    assert log.between("other", 2.0, 5.0) == ()
    assert log.between("m", 2.0, 2.0 + LEAST_S / 2) == (), "nobody asks why a millisecond was waited"


@given(
    changes=st.lists(st.tuples(st.floats(0.01, 5), st.sampled_from(["a", "b", ""])), max_size=50),
    start_s=st.floats(0, 100),
    lasted_s=st.floats(0, 100),
)
def test_reasons_never_last_longer_than_the_wait(
    changes: list[tuple[float, str]], start_s: float, lasted_s: float
) -> None:
    log, now = WaitLog(), 0.0
    for after_s, code in changes:
        now += after_s
        log.note("m", code, now)
    found = log.between("m", start_s, start_s + lasted_s)
    assert sum(seconds for _, seconds in found) <= lasted_s * (1 + 1e-9) + 1e-9
    assert all(code and seconds >= LEAST_S for code, seconds in found)
    assert all(len(notes) <= MOST_NOTES for notes in log.notes.values())


def test_of_many_models_the_first_are_forgotten() -> None:
    log = WaitLog()
    for number in range(waits.MOST_MODELS + 10):
        log.note(f"m{number}", "no_slot", float(number))
    assert len(log.notes) == waits.MOST_MODELS
    assert "m0" not in log.notes
