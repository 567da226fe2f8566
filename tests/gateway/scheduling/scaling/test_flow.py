"""Amounts flow as single requests do."""

import heapq
import random
from collections import deque
from dataclasses import replace

import pytest

from gateway.scheduling.scaling.data import ScalingRule
from gateway.scheduling.scaling.flow import SlotFlow
from tests.gateway.scheduling.scaling.facts import L4

RULE = ScalingRule(first_token_s=2.0, most_wait_s=60.0)
HOLD_S = L4.slots * L4.request_s


def late_of_single_requests(per_s: list[float], replicas: int, span_s: float, seed: int) -> float:
    """The share that waits for longer than it may; ``per_s`` come in each span, at times of chance."""
    chance = random.Random(seed)
    arrivals = []
    for number, rate in enumerate(per_s):
        now = number * span_s
        while rate > 0 and (now := now + chance.expovariate(rate)) < (number + 1) * span_s:
            arrivals.append(now)
    free = [0.0] * (replicas * L4.slots)
    late = 0
    for at_s in arrivals:
        begun_s = max(at_s, heapq.heappop(free))
        heapq.heappush(free, begun_s + chance.expovariate(1 / HOLD_S))
        late += begun_s - at_s > RULE.first_token_s - L4.first_s
    return late / len(arrivals)


def late_of_amounts(per_s: list[float], replicas: int, span_s: float) -> float:
    flow = SlotFlow(L4, RULE)
    found = [flow.flow(each, replicas, span_s) for each in per_s]
    return sum(each.late for each in found) / sum(each.came for each in found)


@pytest.mark.parametrize(
    ("per_s", "replicas"),
    [
        ([3.0] * 360, 10),  # used by a third
        ([7.0] * 360, 10),  # by two thirds
        (([20.0] + [2.0] * 5) * 60, 10),  # gusts that the slots take up
        (([40.0] * 2 + [2.0] * 10) * 30, 10),  # gusts that they do not
    ],
)
def test_the_share_that_is_late_is_nearly_that_of_single_requests(per_s: list[float], replicas: int) -> None:
    runs = [late_of_single_requests(per_s, replicas, 10.0, seed) for seed in range(5)]
    assert late_of_amounts(per_s, replicas, 10.0) == pytest.approx(sum(runs) / len(runs), abs=0.06)


def test_a_gust_fills_the_slots_before_anything_waits() -> None:
    flow = SlotFlow(L4, RULE)
    gust = flow.flow(6.0, 10, 10.0)  # sixty requests for eighty slots
    assert flow.waiting(10) == 0.0
    assert 30 < flow.running(10) < 60, "some have ended"
    assert gust.late < 0.01 * gust.came
    flow.flow(30.0, 10, 10.0)
    assert flow.running(10) == 80.0
    assert flow.waiting(10) > 100


def test_who_waits_for_too_long_is_refused_and_the_queue_grows_no_longer() -> None:
    flow = SlotFlow(L4, RULE)
    found = [flow.flow(100.0, 1, 10.0) for _ in range(20)]
    assert flow.waiting(1) == pytest.approx(RULE.most_wait_s / L4.request_s)
    assert found[-1].refused == pytest.approx(found[-1].came - 10.0 / L4.request_s)
    assert found[-1].late == pytest.approx(found[-1].came)


def test_where_no_replica_is_ready_all_is_late() -> None:
    flow = SlotFlow(L4, RULE)
    found = deque(flow.flow(1.0, 0, 10.0) for _ in range(10))
    assert sum(each.late for each in found) == 100.0
    assert flow.waiting(0) == RULE.most_wait_s
    flow.flow(0.0, 20, 10.0)
    assert flow.waiting(20) == 0.0


def test_a_mean_request_may_wait_until_its_own_first_token_is_late() -> None:
    slow = replace(L4, first_s=1.9)
    usual = replace(slow, usual_first_s=0.1)
    shares = []
    for facts in (slow, usual):
        flow = SlotFlow(facts, RULE)
        found = [flow.flow(9.0, 10, 10.0) for _ in range(60)]
        shares.append(sum(each.late for each in found) / 5400.0)
    assert shares[1] < 0.8 * shares[0]
