"""How much an engine gets follows what it says of itself."""

from hypothesis import given
from hypothesis import strategies as st

from agent.capacity import DOUBT_S, FAILURES, GRACE_S, MEMORY_S, STEP_S, EngineLimit, Ledger


def test_without_a_queue_an_engine_gets_all_its_slots() -> None:
    limit = EngineLimit(16)
    for second in range(100):
        limit.observe(0, 16, float(second))
    assert limit.current == 16


def test_a_short_queue_changes_nothing() -> None:
    limit = EngineLimit(16)
    limit.observe(5, 16, 0.0)
    limit.observe(5, 16, GRACE_S - 0.1)
    limit.observe(0, 16, GRACE_S)
    limit.observe(5, 16, GRACE_S + 0.1)
    assert limit.current == 16


def test_a_lasting_queue_lowers_the_limit_to_what_the_engine_works_on() -> None:
    limit = EngineLimit(16)
    limit.observe(4, 16, 0.0)
    limit.observe(4, 16, GRACE_S)
    assert limit.current == 12


def test_one_step_lowers_by_half_at_the_most_and_never_below_one() -> None:
    limit = EngineLimit(16)
    now, seen = 0.0, []
    for _ in range(20):
        limit.observe(100, 16, now)
        seen.append(limit.current)
        now += STEP_S
    assert seen[2:8] == [8, 4, 2, 1, 1, 1]


def test_the_limit_grows_back_by_an_eighth_a_step() -> None:
    limit = EngineLimit(16)
    limit.observe(8, 16, 0.0)
    limit.observe(8, 16, GRACE_S)
    assert limit.current == 8
    for step in range(1, 5):
        limit.observe(0, 8, GRACE_S + step * STEP_S)
    assert limit.current == 16


def test_an_engine_out_of_memory_gets_half_for_a_while_and_then_more_again() -> None:
    limit = EngineLimit(16)
    for _ in range(5):  # that failed together
        limit.ran_out_of_memory(10.0)
    assert limit.current == 8
    for second in range(10, 40):
        limit.observe(0, 8, float(second))
    assert limit.current == 8
    limit.observe(0, 8, 10.0 + MEMORY_S)
    assert limit.current == 10


def test_an_engine_always_out_of_memory_comes_down_to_one() -> None:
    limit = EngineLimit(16)
    for step in range(10):
        limit.ran_out_of_memory(step * STEP_S)
    assert limit.current == 1


def test_an_engine_that_fails_everything_gets_one_at_a_time_until_one_succeeds() -> None:
    limit = EngineLimit(16)
    for _ in range(FAILURES):
        limit.finished(failed=True)
    assert limit.current == 1
    limit.finished(failed=False)
    assert limit.current == 16


def test_new_slots_count_at_once_unless_the_limit_was_lowered() -> None:
    limit = EngineLimit(4)
    limit.set_slots(8)
    assert limit.current == 8
    limit.observe(8, 8, 0.0)
    limit.observe(8, 8, GRACE_S)
    limit.set_slots(100)
    assert (limit.slots, limit.current) == (100, 4)


@given(
    st.integers(0, 64),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.floats(0, 9), st.booleans())),
)
def test_the_limit_stays_within_the_slots(slots: int, steps: list[tuple[int, int, float, bool]]) -> None:
    limit, now = EngineLimit(slots), 0.0
    for waiting, ours, passed_s, failed in steps:
        now += passed_s
        limit.observe(waiting, ours, now)
        limit.finished(failed=failed)
        assert min(1, slots) <= limit.current <= max(1, slots)


def test_a_level_is_what_runs_there_and_what_is_free() -> None:
    ledger = Ledger()
    assert ledger.level("s", "e", "e/a", 4) == 4
    ledger.enter("s", "e", "e/a")
    ledger.enter("s", "e", "e/b")
    ledger.enter("other", "e", "e/a")
    assert ledger.level("s", "e", "e/a", 4) == 2
    assert ledger.level("s", "e", "e/b", 4) == 2
    assert ledger.level("other", "e", "e/b", 4) == 1
    assert ledger.level("s", "e", "e/a", 1) == 1
    ledger.leave("other", "e", "e/a")
    assert ledger.level("s", "e", "e/a", 4) == 3


@given(
    st.lists(st.tuples(st.sampled_from("st"), st.sampled_from(["a", "b"])), max_size=20), st.integers(0, 8)
)
def test_levels_never_promise_more_free_places_than_there_are(
    entered: list[tuple[str, str]], limit: int
) -> None:
    ledger = Ledger()
    for session, deployment in entered:
        ledger.enter(session, "e", deployment)
    free = max(0, limit - len(entered))
    for session in "st":
        for deployment in ("a", "b"):
            assert (
                ledger.level(session, "e", deployment, limit) == entered.count((session, deployment)) + free
            )
    for session, deployment in entered:
        ledger.leave(session, "e", deployment)
    assert ledger.running == 0
    assert not ledger._by_session


def test_an_engine_that_failed_is_given_all_again_after_a_while_and_doubted_at_the_next_failure() -> None:
    limit = EngineLimit(8)
    for _ in range(FAILURES):
        limit.finished(failed=True)
    limit.observe(0, 0, 100.0)
    limit.observe(0, 0, 100.0 + DOUBT_S - 0.1)
    assert limit.current == 1
    limit.observe(0, 0, 100.0 + DOUBT_S)
    assert limit.current == 8
    limit.finished(failed=True)
    assert limit.current == 1
