from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.scaling.data import ClassFacts, ModelLoad, ScalingRule
from gateway.scheduling.scaling.plan import expected_queue, plan
from tests.gateway.scheduling.scaling.facts import H100, L4, classes_named, loads, rules

RULE = ScalingRule()


def test_the_cheapest_class_that_meets_the_p99_is_chosen() -> None:
    few = plan(ModelLoad(arriving_per_s=1.0), [replace(L4, ready=2), H100], RULE)
    assert few.wanted == {"l4": 2, "h100": 0}
    many = plan(ModelLoad(arriving_per_s=6.0), [L4, replace(H100, ready=1)], RULE)
    assert many.wanted == {"l4": 0, "h100": 1}
    assert {each.device: each.meets for each in many.options} == {"l4": True, "h100": True}
    assert {each.device: each.cost_hour for each in few.options} == {"l4": 1.6, "h100": 4.0}


def test_what_has_queued_by_the_time_a_replica_is_ready_is_worked_off_too() -> None:
    slow = plan(ModelLoad(arriving_per_s=1.0), [L4], RULE)
    assert slow.wanted["l4"] == 3  # 60 requests by then, in 30 s, besides the one that comes a second
    assert slow.options[0].lasting == 2


def test_a_class_that_is_too_slow_for_the_p99_is_not_chosen_though_it_is_cheaper() -> None:
    found = plan(ModelLoad(arriving_per_s=1.0), [replace(L4, first_s=3.0), H100], RULE)
    assert found.wanted == {"l4": 0, "h100": 1}
    assert "to read" in next(each.why for each in found.options if each.device == "l4")


def test_where_no_class_meets_it_the_cheapest_that_does_the_work_is_taken_and_said_so() -> None:
    found = plan(ModelLoad(arriving_per_s=1.0), [replace(L4, first_s=3.0, ready=2)], RULE)
    assert found.wanted["l4"] == 2
    assert "to read" in found.why


def test_without_prices_fewer_replicas_are_better() -> None:
    known = [replace(L4, price_hour=None), replace(H100, price_hour=None)]
    assert plan(ModelLoad(arriving_per_s=3.0), known, RULE).wanted == {"l4": 0, "h100": 1}


def test_what_is_in_use_stays_unless_another_class_saves_enough() -> None:
    load = ModelLoad(arriving_per_s=3.0)
    needed = plan(load, [L4], RULE).options[0].lasting
    near = [replace(L4, ready=needed), replace(H100, price_hour=0.9 * needed * 0.8)]
    assert plan(load, near, RULE).wanted["h100"] == 0
    cheap = [replace(L4, ready=needed), replace(H100, price_hour=0.5 * needed * 0.8)]
    assert plan(load, cheap, RULE).wanted["h100"] == 1


def test_what_is_replaced_stays_until_its_successors_are_ready() -> None:
    load = ModelLoad(arriving_per_s=3.0)
    needed = plan(load, [L4], RULE).options[0].lasting
    before = [replace(L4, ready=needed), replace(H100, price_hour=0.1)]
    assert plan(load, before, RULE).wanted == {"l4": needed, "h100": 1}
    after = [replace(L4, ready=needed), replace(H100, price_hour=0.1, ready=1)]
    assert plan(load, after, RULE).wanted == {"l4": 0, "h100": 1}


def test_the_least_of_a_class_is_there_whatever_is_asked() -> None:
    found = plan(ModelLoad(arriving_per_s=20.0), [replace(H100, min_replicas=1), L4], RULE)
    assert found.wanted["h100"] >= 1


def test_a_queue_that_will_be_gone_before_a_replica_is_ready_wants_none() -> None:
    ready = replace(L4, ready=4, lead_s=300.0)
    calm, busy = ModelLoad(arriving_per_s=1.0), ModelLoad(arriving_per_s=1.0, waiting=100)
    assert plan(busy, [ready], RULE).wanted == plan(calm, [ready], RULE).wanted
    at_once = replace(ready, lead_s=5.0)
    assert plan(busy, [at_once], RULE).wanted["l4"] > plan(calm, [at_once], RULE).wanted["l4"]


def test_nothing_is_kept_of_what_nobody_asked_for_a_while_where_the_rule_allows() -> None:
    rule = ScalingRule(min_replicas=0, idle_s=60.0)
    assert plan(ModelLoad(idle_s=59.0), [replace(L4, ready=1)], rule).wanted["l4"] == 1
    found = plan(ModelLoad(idle_s=61.0), [replace(L4, ready=1)], rule)
    assert found.wanted["l4"] == 0
    assert "nothing was asked for 61 s" in found.why
    assert plan(ModelLoad(waiting=1), [L4], rule).wanted["l4"] == 1
    assert plan(ModelLoad(batch_waiting=1), [L4], rule).wanted["l4"] == 1


def test_replicas_that_are_full_are_not_taken_away() -> None:
    full = replace(L4, ready=4)
    assert plan(ModelLoad(in_flight=32), [full], RULE).wanted["l4"] == 4
    assert plan(ModelLoad(in_flight=9), [full], RULE).wanted["l4"] == 2


def test_no_class_is_no_plan() -> None:
    assert plan(ModelLoad(arriving_per_s=1.0), [], RULE).wanted == {}


two = st.tuples(classes_named("a"), classes_named("b")).map(list)


@given(loads, two, rules)
def test_a_plan_keeps_within_what_is_allowed(
    load: ModelLoad, classes: list[ClassFacts], rule: ScalingRule
) -> None:
    found = plan(load, classes, rule)
    assert set(found.wanted) == {"a", "b"}
    for each in classes:
        assert each.min_replicas <= found.wanted[each.device] <= max(each.min_replicas, each.max_replicas)
    if load.active:
        assert sum(found.wanted.values()) >= 1
    for option in found.options:
        others = sum(each.min_replicas for each in classes if each.device != option.device)
        own = next(each.min_replicas for each in classes if each.device == option.device)
        assert option.replicas <= max(own, rule.max_replicas - others)


@given(loads, classes_named("a"), rules, st.floats(1, 4), st.integers(0, 50))
def test_more_load_never_wants_fewer_of_a_class(
    load: ModelLoad, facts: ClassFacts, rule: ScalingRule, times: float, more: int
) -> None:
    heavier = replace(
        load,
        arriving_per_s=load.arriving_per_s * times,
        waiting=load.waiting + more,
        in_flight=load.in_flight + more,
    )
    assert plan(heavier, [facts], rule).wanted["a"] >= plan(load, [facts], rule).wanted["a"]


@given(loads, classes_named("a"), rules, st.floats(1, 10))
def test_a_faster_class_never_takes_more_replicas(
    load: ModelLoad, facts: ClassFacts, rule: ScalingRule, times: float
) -> None:
    facts = replace(facts, ready=0, starting=0)
    faster = replace(facts, request_s=facts.request_s / times)
    assert plan(load, [faster], rule).wanted["a"] <= plan(load, [facts], rule).wanted["a"]


@given(loads, st.floats(0, 100), rules, st.floats(0, 1000))
def test_a_queue_never_grows_beyond_what_would_have_been_refused(
    load: ModelLoad, present: float, rule: ScalingRule, lead_s: float
) -> None:
    queue = expected_queue(load, present, rule, lead_s)
    assert (
        0
        <= queue
        <= max(load.waiting, (load.arriving_per_s + 60 * load.rising_per_s2) * rule.most_wait_s) + 1e-6
    )


def test_what_is_foreseen_is_made_ready_for_also_where_nothing_is_asked_for() -> None:
    foreseen = replace(L4, forecast_per_s=4.0)
    quiet, rule = ModelLoad(idle_s=1e6), ScalingRule(min_replicas=0)
    assert plan(quiet, [L4], rule).wanted == {"l4": 0}
    found = plan(quiet, [foreseen], rule)
    assert found.wanted["l4"] >= 5
    assert "4 requests/s are foreseen in 180 s" in found.why
    assert plan(quiet, [replace(L4, forecast_per_s=1e-4)], rule).wanted == {"l4": 0}
    assert plan(ModelLoad(arriving_per_s=8.0), [foreseen], rule).wanted == (
        plan(ModelLoad(arriving_per_s=8.0), [L4], rule).wanted
    ), "more comes than was foreseen"
