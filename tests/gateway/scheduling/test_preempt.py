"""Who gives way to realtime requests, and when nobody does."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import Tier
from gateway.scheduling.base import DeploymentView, PendingRequest
from gateway.scheduling.preempt import PreemptibleRequest, PreemptRules, choose_preempted

RULES = PreemptRules(reserved_share=0.0)


def view(key: str = "a/d", slots: int = 4, **more: object) -> DeploymentView:
    fields: dict[str, object] = {"in_flight": slots, "continues": {"chat": "prompt"}, "version": "v1"} | more
    return DeploymentView(key, "a", "m", frozenset({"chat"}), slots, **fields)  # type: ignore[arg-type]


def runs(
    number: int, tier: Tier = Tier.BATCH, remaining_s: float = 60.0, lost_s: float = 5.0
) -> PreemptibleRequest:
    return PreemptibleRequest(number, view(), tier, remaining_s, lost_s)


def waits(number: int = 100, **more: object) -> PendingRequest:
    fields: dict[str, object] = {"work": 100.0, "arrived_s": 0.0, "tier": Tier.REALTIME} | more
    return PendingRequest(number, "chat", **fields)  # type: ignore[arg-type]


def chosen(
    waiting: list[PendingRequest],
    running: list[PreemptibleRequest],
    rules: PreemptRules = RULES,
    *,
    borrowed: int = 0,
    rate: float = 0.1,
    now: float = 0.0,
) -> list[int]:
    return choose_preempted(waiting, running, rules=rules, borrowed=borrowed, departures_per_s=rate, now=now)


def test_who_loses_least_gives_way() -> None:
    running = [runs(1, lost_s=5.0), runs(2, lost_s=0.5), runs(3, lost_s=2.0)]
    assert chosen([waits()], running) == [2]
    assert chosen([waits(100), waits(101)], running) == [2, 3]
    assert chosen([waits(n) for n in range(100, 105)], running) == [2, 3, 1]


def test_standard_gives_way_only_if_told_to_and_after_batch() -> None:
    running = [runs(1, Tier.STANDARD, lost_s=0.1), runs(2, lost_s=9.0)]
    both = replace(RULES, preempt_standard=True)
    assert chosen([waits(100), waits(101)], running) == [2]
    assert chosen([waits(100), waits(101)], running, both) == [2, 1]
    assert chosen([waits()], running, replace(both, preempt_batch=False)) == [1]


def test_nobody_gives_way_for_a_short_wait() -> None:
    assert chosen([waits()], [runs(1)], rate=2.5) == []
    assert chosen([waits()], [runs(1)], rate=1.5) == [1]
    assert chosen([waits()], [runs(1)], rate=2.5, now=1.0) == [1], "it did wait for longer"


def test_nobody_gives_way_who_will_be_done_sooner_than_the_slot_would_come() -> None:
    soon, late = runs(1, remaining_s=2.0, lost_s=5.0), runs(2, remaining_s=3.0, lost_s=0.0)
    assert chosen([waits(100), waits(101)], [soon, late], rate=0.1) == [2], "the first is done by then"
    assert chosen([waits(100), waits(101)], [soon, replace(late, lost_s=9.0)], rate=0.1) == [1, 2]
    assert chosen([waits()], [soon, replace(late, remaining_s=30.0)], rate=1.0) == [2]
    assert chosen([waits()], [soon, late], rate=0.5, now=0.4) == [2]
    assert chosen([waits()], [replace(soon, remaining_s=0.4), late], rate=0.1) == []


def test_a_lone_request_gives_way_however_little_is_known_of_departures() -> None:
    assert chosen([waits()], [runs(1, remaining_s=600.0)], rate=0.0) == [1]
    assert chosen([waits()], [runs(1, remaining_s=600.0)], rate=1e-6) == [1]


def test_only_a_slot_that_fits_helps() -> None:
    here = [
        PreemptibleRequest(1, view(usable=False), Tier.BATCH, 60.0, 1.0),
        PreemptibleRequest(2, view(in_flight=5), Tier.BATCH, 60.0, 1.0),
        PreemptibleRequest(3, view(cap=2), Tier.BATCH, 60.0, 1.0),
        PreemptibleRequest(4, view("b/d"), Tier.BATCH, 60.0, 1.0),
        PreemptibleRequest(5, view(version="v2"), Tier.BATCH, 60.0, 1.0),
        PreemptibleRequest(6, view(continues={}), Tier.BATCH, 60.0, 1.0),
    ]
    asks = waits(avoid=frozenset({"b/d"}), version="v1", continuing=True)
    assert chosen([asks], here) == []
    assert chosen([asks], [*here, PreemptibleRequest(7, view(), Tier.BATCH, 60.0, 1.0)]) == [7]


def test_what_is_borrowed_of_the_reserve_is_given_back_by_every_tier() -> None:
    nobody = PreemptRules(preempt_batch=False)
    running = [runs(1, Tier.STANDARD), runs(2, Tier.STANDARD), runs(3)]
    wanting = [waits(n) for n in range(100, 105)]
    assert chosen(wanting, running, nobody) == []
    assert chosen(wanting, running, nobody, borrowed=2) == [3, 1]
    assert chosen(wanting, running, RULES, borrowed=1) == [3]


def test_the_reserve_is_rounded_down() -> None:
    rules = PreemptRules(reserved_share=0.1)
    assert [rules.reserved(slots) for slots in (0, 9, 10, 19, 30, 1000)] == [0, 0, 1, 1, 3, 100]


running_sets = st.lists(
    st.builds(
        lambda tier, slots, remaining_s, lost_s: (tier, slots, remaining_s, lost_s),
        st.sampled_from([Tier.STANDARD, Tier.BATCH]),
        st.integers(1, 3),
        st.floats(0, 100),
        st.floats(0, 100),
    ),
    max_size=12,
)


@settings(max_examples=50)
@given(running_sets, st.integers(0, 6), st.integers(0, 4), st.booleans(), st.booleans(), st.floats(0.01, 10))
def test_never_more_give_way_than_wait_nor_anybody_who_need_not(
    running: list[tuple[Tier, int, float, float]],
    waiting: int,
    borrowed: int,
    batch: bool,
    standard: bool,
    rate: float,
) -> None:
    rules = PreemptRules(batch, standard)
    there = [
        PreemptibleRequest(number, view(f"{number % 3}/d", slots), tier, remaining_s, lost_s)
        for number, (tier, slots, remaining_s, lost_s) in enumerate(running)
    ]
    numbers = chosen([waits(100 + n) for n in range(waiting)], there, rules, borrowed=borrowed, rate=rate)
    assert len(set(numbers)) == len(numbers) <= waiting
    by_number = {each.number: each for each in there}
    free_of_rules = {Tier.BATCH: batch, Tier.STANDARD: standard}
    assert sum(not free_of_rules[by_number[number].tier] for number in numbers) <= borrowed
    helps = [
        each
        for each in there
        if each.remaining_s >= waiting / rate and (borrowed or free_of_rules[each.tier])
    ]
    soonest_s = min([1 / rate, *(each.remaining_s for each in there)])
    assert all(by_number[number].remaining_s >= soonest_s for number in numbers)
    if waiting and soonest_s >= rules.preempt_after_s:
        allowed = [each for each in helps if free_of_rules[each.tier]]
        honoured = min(borrowed, len(helps))
        assert len(numbers) >= min(waiting, max(len(allowed), honoured))
