"""Long lists without long stops: the event loop turns for others after every slice."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 100
"""Items between two turns: some milliseconds of work on models or agents."""

T = TypeVar("T")


async def in_slices(items: Iterable[T], most: int = SLICE) -> AsyncIterator[T]:
    """Each of ``items``, made as it is asked for. After every ``most`` of them others have a turn, so
    ``items`` must bear that what it is made from changes meanwhile."""
    for number, item in enumerate(items, 1):
        yield item
        if number % most == 0:
            await asyncio.sleep(0)
