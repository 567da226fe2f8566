"""How much an engine gets follows what it says of itself."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.capacity.capacity import (
    DOUBT_S,
    FAILURES,
    GRACE_S,
    MEMORY_S,
    STEP_S,
    TRY_S,
    EngineLimit,
)


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


# --- Engines that refuse requests as too many ---


class Busy:
    """An engine that takes ``size`` requests and is always wanted more of, each for ten seconds."""

    def __init__(self, limit: EngineLimit, size: int) -> None:
        self.limit = limit
        self.size = size
        self.now_s = 0.0
        self.refused: list[float] = []
        self._running: list[tuple[float, int]] = []
        """When each is over, and how many others there were when it came."""

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            over = [others for end_s, others in self._running if end_s <= self.now_s]
            self._running = [each for each in self._running if each[0] > self.now_s]
            for others in over:
                self.limit.refusals.served(others, self.limit.slots, self.now_s)
            self._fill()
            self.limit.observe(0, len(self._running), self.now_s)

    def _fill(self) -> None:
        """As many as the limit allows come at once; their refusals come back together."""
        refused: list[int] = []
        while len(self._running) + len(refused) < self.limit.current:
            others = len(self._running) + len(refused)
            self.limit.refusals.entered(others + 1)
            if len(self._running) < self.size:
                self._running.append((self.now_s + 10.0, others))
            else:
                refused.append(others)
        for others in refused:
            self.limit.refusals.refused(others, self.now_s)
            self.refused.append(self.now_s)


def test_an_engine_that_refuses_gets_what_it_takes_at_once() -> None:
    limit = EngineLimit(64)
    engine = Busy(limit, 4)
    engine.run(1)
    assert limit.current == limit.refusals.learnt == 4
    assert len(engine.refused) == 60


def test_an_engine_whose_size_does_not_change_refuses_seldom_and_ever_more_seldom() -> None:
    limit = EngineLimit(64)
    engine = Busy(limit, 4)
    engine.run(3600)
    tries = engine.refused[60:]
    assert 10 <= len(tries) <= 16
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps == sorted(gaps)
    assert limit.refusals.learnt == 4


def test_an_engine_that_takes_more_again_gets_it_within_minutes() -> None:
    limit = EngineLimit(64)
    engine = Busy(limit, 4)
    engine.run(1)
    engine.size = 64
    engine.run(240)
    assert limit.current == 64
    assert limit.refusals.learnt is None
    assert len(engine.refused) == 60


def test_an_engine_that_takes_fewer_is_believed_again() -> None:
    limit = EngineLimit(16)
    engine = Busy(limit, 8)
    engine.run(100)
    engine.size = 2
    engine.run(30)
    assert limit.refusals.learnt == 2


def test_one_that_refuses_though_it_has_nothing_gets_one_at_a_time() -> None:
    limit = EngineLimit(8)
    limit.refusals.refused(0, 1.0)
    assert limit.current == 1


def test_nothing_is_tried_while_places_are_free() -> None:
    limit = EngineLimit(8)
    limit.refusals.refused(4, 1.0)
    limit.refusals.entered(3)
    for second in range(1000):
        limit.observe(0, 3, float(second))
    assert limit.current == 4
    limit.refusals.entered(4)
    limit.observe(0, 4, 1000.0)
    assert (limit.current, limit.refusals.learnt) == (5, 4)


def test_one_try_at_a_time_and_not_before_its_time() -> None:
    limit = EngineLimit(8)
    limit.refusals.refused(4, 0.0)
    limit.refusals.entered(4)
    limit.observe(0, 4, TRY_S - 0.1)
    assert limit.current == 4
    limit.observe(0, 4, TRY_S)
    limit.refusals.entered(5)
    limit.observe(0, 5, 10 * TRY_S)
    assert limit.current == 5


def test_an_engine_started_anew_gets_all_its_slots() -> None:
    limit = EngineLimit(8)
    limit.refusals.refused(2, 0.0)
    limit.started_anew()
    assert limit.current == 8


@given(
    st.integers(1, 32),
    st.lists(st.tuples(st.sampled_from("ersol"), st.integers(0, 40), st.floats(0, 400)), max_size=60),
)
def test_whatever_is_refused_the_limit_stays_within_the_slots(
    slots: int, steps: list[tuple[str, int, float]]
) -> None:
    limit, now = EngineLimit(slots), 0.0
    for what, count, passed_s in steps:
        now += passed_s
        if what == "e":
            limit.refusals.entered(count)
        elif what == "r":
            limit.refusals.refused(count, now)
            assert limit.current <= max(1, count)
        elif what == "s":
            limit.refusals.served(count, limit.slots, now)
        else:
            limit.observe(0, count, now)
        assert 1 <= limit.current <= slots
        assert limit.refusals.learnt is None or limit.refusals.learnt >= 1
