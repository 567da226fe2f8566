"""Whose turn it is in the simulated gateway."""

from gateway.domain.request import Tier
from gateway.scheduling.base import Waiting
from gateway.tools.simulate.line import Fair, FirstCome


def item(number: int, tenant: str = "a", tier: Tier = Tier.STANDARD, work: float = 1000.0) -> Waiting:
    return Waiting(number, "chat", work, 0.0, tier=tier, tenant=tenant)


def order(line: Fair | FirstCome) -> list[int]:
    """Numbers as they would get slots one by one."""
    numbers = []
    while line:
        first = line.front(1, 0.0)[0]
        line.leave(first, 0.0, departed=True)
        numbers.append(first.number)
    return numbers


def test_first_come_is_first_served_and_comes_back_to_its_place() -> None:
    line = FirstCome()
    for number in (1, 2, 3):
        line.enter(item(number), 0.0, large=False)
    first = line.front(1, 0.0)[0]
    line.leave(first, 0.0, departed=True)
    line.come_back(first, 1.0, large=False)
    line.leave(item(2), 1.0, departed=False)
    assert order(line) == [1, 3]


def test_large_requests_hold_up_no_small_ones() -> None:
    for line in (FirstCome(), Fair()):
        for number in range(1, 9):
            line.enter(item(number), 0.0, large=number < 6)
        assert {each.number for each in line.front(2, 0.0)} == {1, 2, 6, 7}


def test_the_gateways_order_knows_tiers_and_shares() -> None:
    line = Fair()
    for number in range(1, 5):
        line.enter(item(number, "many"), 0.0, large=False)
    line.enter(item(5, "few"), 0.0, large=False)
    line.enter(item(6, "late", Tier.REALTIME), 0.0, large=False)
    found = order(line)
    assert found[0] == 6
    assert found.index(5) <= 2


def test_who_lost_a_slot_goes_first_and_what_it_cost_is_settled() -> None:
    line = Fair()
    for number in (1, 2, 3):
        line.enter(item(number), 0.0, large=False)
    first = line.front(1, 0.0)[0]
    line.leave(first, 0.0, departed=True)
    line.come_back(first, 1.0, large=False)
    assert [each.number for each in line.front(3, 1.0)] == [1, 2, 3]
    line.leave(first, 1.0, departed=True)
    line.over(first, 50_000.0, 2.0)
    line.enter(item(4, "other"), 2.0, large=False)
    assert order(line)[0] == 4
