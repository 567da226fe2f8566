"""What is taken and not settled is borrowed on, together, and only for so long as it is."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway.jobs.queues.held import HeldMessages
from gateway.jobs.queues.source import BrokerAway

LIMIT_S = 120.0


class Lender:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.away = False
        self.was_asked = asyncio.Event()

    async def renew(self, handles: Sequence[str]) -> None:
        self.asked.append(list(handles))
        self.was_asked.set()
        if self.away:
            raise BrokerAway("away")

    async def wait_asked(self) -> list[str]:
        self.was_asked.clear()
        async with asyncio.timeout(LIMIT_S):
            await self.was_asked.wait()
        return self.asked[-1]


async def test_what_is_held_is_renewed_until_it_is_settled() -> None:
    lender = Lender()
    held = HeldMessages(lender.renew, 0.0, 0.001)
    held.add(["b", "a"])
    assert await lender.wait_asked() == ["a", "b"]
    held.settle("a")
    assert await lender.wait_asked() == ["b"]
    held.settle("b")
    assert held._task is None
    held.add([])
    assert held._task is None
    held.add(["c"])
    assert await lender.wait_asked() == ["c"]
    held.drop()
    assert (held.handles, held._task) == ([], None)


async def test_a_lender_that_is_away_is_asked_again() -> None:
    lender = Lender()
    lender.away = True
    held = HeldMessages(lender.renew, 0.0, 0.001)
    held.add(["a"])
    for _ in range(3):
        assert await lender.wait_asked() == ["a"]
    held.drop()


async def test_nothing_is_kept_from_others_that_is_not_gone_on_with() -> None:
    held = HeldMessages(Lender().renew, 60.0, 60.0)
    held.add(["a"])
    with pytest.raises(BrokerAway), held.dropped_when_away():
        raise BrokerAway("away")
    assert held.handles == []
