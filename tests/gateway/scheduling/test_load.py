"""What a deployment has to do, read from aggregates."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling.load import SHARE_MOST, DeploymentLoad


def begin(load: DeploymentLoad, number: int, now: float, read_s: float = 1.0, output_s: float = 4.0) -> None:
    load.begin(number, now, kv_tokens=150, read_s=read_s, output_s=output_s)


def test_prompts_are_read_one_after_the_other() -> None:
    load = DeploymentLoad()
    begin(load, 1, 10.0)
    begin(load, 2, 10.5)
    assert load.wait_s(10.5) == pytest.approx(1.5)
    assert load.wait_s(20.0) == 0.0


def test_a_first_token_sets_the_wait_right_for_all_behind_it() -> None:
    load = DeploymentLoad()
    for number in (1, 2, 3):
        begin(load, number, 0.0)
    load.first_token(1, 2.0)
    assert load.wait_s(2.0) == pytest.approx(2.0), "one second late, and two prompts to go"
    load.first_token(2, 3.0)
    assert load.wait_s(3.0) == pytest.approx(1.0), "as late as was known"
    load.first_token(2, 9.0)
    load.first_token(77, 9.0)
    assert load.wait_s(3.0) == pytest.approx(1.0), "said before, or not of here"


def test_nothing_waits_once_every_prompt_was_read() -> None:
    load = DeploymentLoad()
    begin(load, 1, 0.0, read_s=30.0)
    begin(load, 2, 0.0, read_s=30.0)
    load.first_token(1, 29.0)
    assert load.wait_s(29.0) == pytest.approx(30.0)
    load.first_token(2, 29.5)
    assert load.wait_s(29.5) == 0.0


def test_what_was_really_waited_for_is_learnt_from_first_tokens() -> None:
    one, several = DeploymentLoad(), DeploymentLoad()
    for number in range(0, 200, 2):
        now = number * 10.0
        for load in (one, several):
            begin(load, number, now)
            begin(load, number + 1, now)
            load.first_token(number, now + 1.0)
        one.first_token(number + 1, now + 2.0)
        several.first_token(number + 1, now + 1.0)
        for load in (one, several):
            load.end(number, now + 5.0)
            load.end(number + 1, now + 6.0)
    assert one.queueing == pytest.approx(1.0)
    assert several.queueing < 0.01


def test_who_waits_for_a_slot_before_one_takes_the_first_that_comes_free() -> None:
    load = DeploymentLoad()
    assert load.slot_wait_s(0.0, 3) == 0.0
    begin(load, 1, 0.0, output_s=9.0)
    begin(load, 2, 0.0, output_s=2.0)
    assert load.slot_wait_s(1.0, 0) == load.next_free_s(1.0)
    assert load.slot_wait_s(1.0, 2) == pytest.approx(load.next_free_s(1.0) + 2 * load.remaining_s(1.0) / 4)


def test_the_next_slot_is_expected_where_least_is_left() -> None:
    load = DeploymentLoad()
    assert load.next_free_s(0.0) == 0.0
    begin(load, 1, 0.0, output_s=9.0)
    begin(load, 2, 0.0, output_s=2.0)
    assert load.next_free_s(1.0) == pytest.approx(3.0)
    assert load.remaining_s(1.0) == pytest.approx(10.0 + 4.0 - 2.0)
    load.end(2, 2.0)
    assert load.next_free_s(2.0) == pytest.approx(8.0)


def test_one_that_is_overdue_may_end_any_moment_but_not_certainly_now() -> None:
    load = DeploymentLoad()
    begin(load, 1, 0.0, output_s=1.0)
    begin(load, 2, 0.0, output_s=97.0)
    assert load.next_free_s(50.0) == pytest.approx((2.0 + 99.0 - 100.0) / 4)


def test_what_ran_beside_a_request_is_told_when_it_ends() -> None:
    load = DeploymentLoad()
    begin(load, 1, 0.0, read_s=1.0)
    begin(load, 2, 5.0, read_s=0.5)
    ended = load.end(1, 10.0)
    assert ended is not None
    company = load.company(ended, 10.0)
    assert company.ahead_s == 0.0
    assert company.running == pytest.approx(1.5)
    assert company.kv_tokens == pytest.approx(225.0)
    assert company.read_s == pytest.approx(0.5)
    assert load.end(1, 11.0) is None


def test_what_ran_beside_a_request_is_told_whatever_ran_before_it() -> None:
    load = DeploymentLoad()
    for number in range(1000):
        begin(load, number, 1e6 + number)
        load.end(number, 1e6 + number + 0.3)
    begin(load, 1000, 1e6 + 2000.0)
    begin(load, 1001, 1e6 + 2001.0)
    load.end(1000, 1e6 + 2001.5)
    begin(load, 1002, 1e6 + 2001.75)
    ended = load.end(1001, 1e6 + 2002.0)
    assert ended is not None
    company = load.company(ended, 1e6 + 2002.0)
    assert company.running == pytest.approx(1.0 + 0.5 + 0.25, abs=1e-6)
    assert company.kv_tokens == pytest.approx(150 * 1.75, abs=1e-3)


def test_what_was_placed_is_given_back_at_the_end() -> None:
    load = DeploymentLoad()
    load.begin(1, 0.0, kv_tokens=1, read_s=1.0, output_s=1.0, placed="what it was")
    load.first_token(1, 1.0)
    ended = load.end(1, 2.0)
    assert ended is not None
    assert ended[2] == "what it was"


def test_when_requests_end_is_known_of_those_that_began_before_and_after_it_was_asked() -> None:
    load = DeploymentLoad()
    begin(load, 1, 0.0, output_s=9.0)
    load.first_token(1, 0.5)
    assert load.next_free_s(0.5) == pytest.approx(9.0)
    begin(load, 2, 0.5, output_s=2.0)
    assert load.next_free_s(0.5) == pytest.approx(3.0)
    load.first_token(2, 1.0)
    assert load.next_free_s(1.0) == pytest.approx(2.0)
    load.end(2, 2.0)
    assert load.next_free_s(2.0) == pytest.approx(7.5)


def test_reading_takes_its_share_and_is_forgotten() -> None:
    load = DeploymentLoad()
    for number in range(10):
        begin(load, number, 0.0, read_s=0.5)
    assert load.reading_share == pytest.approx(0.25)
    begin(load, 10, 20.0, read_s=0.0)
    assert load.reading_share == pytest.approx(0.125)
    begin(load, 11, 20.0, read_s=1e6)
    assert load.reading_share == SHARE_MOST


def test_the_pace_follows_what_is_seen_and_an_outlier_moves_it_little() -> None:
    load = DeploymentLoad()
    for _ in range(200):
        load.note_pace(2.0, 0.5)
    assert (load.reading_pace, load.writing_pace) == pytest.approx((2.0, 0.5), rel=0.01)
    for ratio in (1e9, float("inf"), float("nan"), 0.0, -1.0):
        load.note_pace(ratio, ratio)
    assert load.reading_pace < 2.3
    assert load.writing_pace < 0.6


_steps = st.lists(
    st.tuples(st.sampled_from(["begin", "first", "end"]), st.integers(0, 8), st.floats(0, 10)), max_size=60
)


@settings(max_examples=60)
@given(_steps)
def test_whatever_happens_the_aggregates_are_those_of_what_runs(steps: list[tuple[str, int, float]]) -> None:
    load, now = DeploymentLoad(), 0.0
    running: dict[int, bool] = {}
    for step, number, gap_s in steps:
        now += gap_s
        if step == "begin":
            begin(load, number, now, read_s=gap_s)
            running.setdefault(number, False)
        elif step == "first":
            load.first_token(number, now)
            running.update({number: True} if number in running else {})
        else:
            assert (load.end(number, now) is not None) == (running.pop(number, None) is not None)
        assert load.count == len(running)
        assert load.kv_tokens == 150 * len(running)
        assert load._unread == sum(not seen for seen in running.values())
        assert load.wait_s(now) >= 0.0
        assert load.remaining_s(now) >= 0.0
        assert load.next_free_s(now) >= 0.0
        assert len(load._ends or ()) <= 5 * len(running) + 17
        if not running:
            assert load.wait_s(now) == load.remaining_s(now) == 0.0
