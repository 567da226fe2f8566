from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.scaling.data import ScalingRule
from gateway.scheduling.scaling.stabilisation import LeadTime, WantedReplicas

RULE = ScalingRule(stabilisation_s=300.0, cooldown_s=60.0)


def test_more_is_wanted_at_once_and_fewer_when_no_more_were_needed_for_the_window() -> None:
    wanted = WantedReplicas()
    assert wanted.need(4, RULE, 10.0, 0.0) == 4
    assert wanted.need(1, RULE, 10.0, 5.0) == 4
    assert wanted.need(1, RULE, 10.0, 300.0) == 4
    assert wanted.need(1, RULE, 10.0, 301.0) == 1


def test_what_takes_long_to_be_ready_is_kept_as_long() -> None:
    wanted = WantedReplicas()
    wanted.need(4, RULE, 900.0, 0.0)
    assert wanted.need(1, RULE, 900.0, 899.0) == 4
    assert wanted.need(1, RULE, 900.0, 901.0) == 1


def test_steps_down_are_a_cooldown_apart() -> None:
    rule = ScalingRule(stabilisation_s=10.0, cooldown_s=60.0)
    wanted = WantedReplicas()
    wanted.need(4, rule, 0.0, 0.0)
    wanted.need(3, rule, 0.0, 61.0)
    assert wanted.need(3, rule, 0.0, 72.0) == 3
    assert wanted.need(2, rule, 0.0, 90.0) == 3
    assert wanted.need(2, rule, 0.0, 133.0) == 2


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=60))
def test_it_is_never_less_than_what_is_needed_now_and_never_more_than_was_needed_lately(
    steps: list[tuple[float, int]],
) -> None:
    rule, wanted, now = ScalingRule(stabilisation_s=120.0, cooldown_s=0.0), WantedReplicas(), 0.0
    seen: list[tuple[float, int]] = []
    for after_s, needed in steps:
        now += after_s
        seen.append((now, needed))
        found = wanted.need(needed, rule, 0.0, now)
        assert found == max(each for at_s, each in seen if now - at_s <= 120.0)


def test_the_lead_time_is_from_when_more_is_wanted_until_one_more_is_ready() -> None:
    lead = LeadTime()
    lead.note(2, 1, 0.0)
    lead.note(2, 1, 50.0)
    lead.note(2, 2, 90.0)
    assert lead.measured_s == 90.0
    lead.note(2, 2, 500.0)
    lead.note(3, 2, 600.0)
    lead.note(3, 3, 790.0)
    assert lead.measured_s == 90.0 + 0.3 * 100.0


def test_what_took_longer_than_an_hour_was_no_wait_for_a_machine() -> None:
    lead = LeadTime()
    lead.note(1, 0, 0.0)
    lead.note(1, 1, 4000.0)
    assert lead.measured_s is None
