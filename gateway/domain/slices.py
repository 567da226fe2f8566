"""Long lists without long stops: the event loop turns for others after every slice."""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from typing import TypeVar

SLICE = 100
"""Items between two turns: some milliseconds of work on models or agents."""

T = TypeVar("T")

Look = Generator[None, None, T]
"""What looks at many things, which may change meanwhile: a step for each, and in the end what was found."""


async def in_slices(items: Iterable[T], most: int = SLICE) -> AsyncIterator[T]:
    """Each of ``items``, made as it is asked for. After every ``most`` of them others have a turn, so
    ``items`` must bear that what it is made from changes meanwhile."""
    for number, item in enumerate(items, 1):
        yield item
        if number % most == 0:
            await asyncio.sleep(0)


async def looked(look: Look[T], most: int = SLICE) -> T:
    """What ``look`` finds. After every ``most`` steps others have a turn."""
    steps = 0
    while True:
        try:
            next(look)
        except StopIteration as end:
            found: T = end.value
            return found
        steps += 1
        if steps % most == 0:
            await asyncio.sleep(0)


def looked_at_once(look: Look[T]) -> T:
    """What ``look`` finds, without a stop."""
    while True:
        try:
            next(look)
        except StopIteration as end:
            found: T = end.value
            return found
