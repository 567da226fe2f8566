"""Where both have room, a request goes to a deployment that takes it as it is, not to one that translates."""

from dataclasses import replace

import pytest
from msgspec import structs

from gateway.scheduling import POLICIES
from gateway.scheduling.base import PendingRequest
from gateway.scheduling.policies.cost import ALL
from gateway.scheduling.scheduler import Scheduler
from tests.gateway.scheduling.views import H100, L4, CostFleet, request, view

NEED = "messages"
BOTH = ("chat", NEED)
EVERY = sorted(POLICIES)


def asks(number: int, input_tokens: int = 1000, output_tokens: int = 100) -> PendingRequest:
    return structs.replace(request(number, input_tokens, output_tokens), route=NEED)


def placed(policy: str, fleet: CostFleet, *items: PendingRequest) -> list[str]:
    scheduler = Scheduler(policy)
    for each in fleet.views.values():
        scheduler.deployment_added(each, 0.0)
    there = list(fleet.views.values())
    return [each.key for each in scheduler.assign("m", list(items), there, 100.0)]


COUNTS = [(policy, 1 if policy == "cost" else 3) for policy in EVERY]
"""For ``cost`` a deployment with enough to read has no room."""


@pytest.mark.parametrize(("policy", "count"), COUNTS)
def test_one_that_need_not_translate_is_preferred_though_it_is_slower_and_busier(
    policy: str, count: int
) -> None:
    translates = view("a", routes=BOTH, translated=[NEED], device=H100)
    native = view("b", 8, 3, routes=BOTH, device=L4)
    items = [asks(number) for number in range(count)]
    assert placed(policy, CostFleet(translates, native), *items) == ["b"] * count


@pytest.mark.parametrize("policy", EVERY)
def test_one_that_translates_gets_what_the_others_have_no_room_for(policy: str) -> None:
    fleet = CostFleet(view("a", routes=BOTH, translated=[NEED]), view("b", 2, 1, routes=BOTH))
    assert sorted(placed(policy, fleet, asks(1, output_tokens=4000), asks(2, output_tokens=4000))) == [
        "a",
        "b",
    ]


@pytest.mark.parametrize("policy", EVERY)
def test_requests_that_nothing_translates_are_placed_as_ever(policy: str) -> None:
    def fleet(*translated: str) -> CostFleet:
        return CostFleet(view("a", routes=BOTH, translated=translated), view("b", 8, 3, routes=BOTH))

    items = [request(number) for number in range(3)]
    assert placed(policy, fleet(NEED), *items) == placed(policy, fleet(), *items)


@pytest.mark.parametrize("policy", EVERY)
def test_a_deployment_that_has_to_load_its_model_first_is_not_preferred(policy: str) -> None:
    loads, translates = view("a", routes=BOTH), view("b", routes=BOTH, translated=[NEED])
    loads.loaded, loads.load_s = False, 60.0
    fleet = CostFleet(loads, translates)
    without = CostFleet(replace(loads), replace(translates, translated=frozenset()))
    assert placed(policy, fleet, asks(1)) == placed(policy, without, asks(1))


@pytest.mark.parametrize("policy", EVERY)
def test_one_on_trial_is_tried_though_it_translates(policy: str) -> None:
    trial = view("a", routes=BOTH, translated=[NEED])
    trial.trial, trial.cap = True, 1
    assert placed(policy, CostFleet(trial, view("b", routes=BOTH)), asks(1)) == ["a"]


def test_the_few_that_need_not_translate_are_found_in_a_large_fleet() -> None:
    views = [view(f"t{number:03}", routes=BOTH, translated=[NEED]) for number in range(2 * ALL)]
    native = view("native", routes=BOTH)
    views.insert(ALL, native)
    fleet = CostFleet(*views)
    for number in range(20):
        assert placed("cost", fleet, asks(number)) == ["native"]


def test_a_request_waits_for_no_full_deployment_that_would_translate_it() -> None:
    """It would be done there much earlier, if only it waited a little."""
    fast, slow = view("fast", 1, device=H100, routes=BOTH, translated=[NEED]), view("slow", device=L4)
    slow.routes = frozenset(BOTH)
    fleet = CostFleet(fast, slow)
    fleet.place(asks(0, input_tokens=10, output_tokens=20), "fast")
    item = asks(1, input_tokens=10, output_tokens=4000)
    assert [each.key for each in fleet.scheduler.assign("m", [item], [slow], fleet.now)] == ["slow"]
    fast.translated = frozenset()
    assert fleet.scheduler.assign("m", [item], [slow], fleet.now) == [], "what it waits for else"
