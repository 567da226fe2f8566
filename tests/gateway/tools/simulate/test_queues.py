"""Whose turn it is in the simulated gateway."""

from gateway.domain.request import Tier
from gateway.scheduling.base import PendingRequest
from gateway.tools.simulate.queues import FairQueue, FifoQueue


def item(number: int, tenant: str = "a", tier: Tier = Tier.STANDARD, work: float = 1000.0) -> PendingRequest:
    return PendingRequest(number, "chat", work, 0.0, tier=tier, tenant=tenant)


def order(queue: FairQueue | FifoQueue) -> list[int]:
    """Numbers as they would get slots one by one."""
    numbers = []
    while queue:
        first = queue.front(1, 0.0)[0]
        queue.leave(first, 0.0, departed=True)
        numbers.append(first.number)
    return numbers


def test_first_come_is_first_served_and_comes_back_to_its_place() -> None:
    queue = FifoQueue()
    for number in (1, 2, 3):
        queue.enter(item(number), 0.0, large=False)
    first = queue.front(1, 0.0)[0]
    queue.leave(first, 0.0, departed=True)
    queue.come_back(first, 1.0, large=False)
    queue.leave(item(2), 1.0, departed=False)
    assert order(queue) == [1, 3]


def test_large_requests_hold_up_no_small_ones() -> None:
    for queue in (FifoQueue(), FairQueue()):
        for number in range(1, 9):
            queue.enter(item(number), 0.0, large=number < 6)
        assert {each.number for each in queue.front(2, 0.0)} == {1, 2, 6, 7}


def test_the_gateways_order_knows_tiers_and_shares() -> None:
    queue = FairQueue()
    for number in range(1, 5):
        queue.enter(item(number, "many"), 0.0, large=False)
    queue.enter(item(5, "few"), 0.0, large=False)
    queue.enter(item(6, "late", Tier.REALTIME), 0.0, large=False)
    found = order(queue)
    assert found[0] == 6
    assert found.index(5) <= 2


def test_who_lost_a_slot_goes_first_and_what_it_cost_is_settled() -> None:
    queue = FairQueue()
    for number in (1, 2, 3):
        queue.enter(item(number), 0.0, large=False)
    first = queue.front(1, 0.0)[0]
    queue.leave(first, 0.0, departed=True)
    queue.come_back(first, 1.0, large=False)
    assert [each.number for each in queue.front(3, 1.0)] == [1, 2, 3]
    queue.leave(first, 1.0, departed=True)
    queue.over(first, 50_000.0, 2.0)
    queue.enter(item(4, "other"), 2.0, large=False)
    assert order(queue)[0] == 4
