"""Long lists without long stops: the event loop turns for others after every slice."""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from typing import TypeVar

SLICE = 100
"""Items between two turns: some milliseconds of work on models or agents."""

T = TypeVar("T")

Stepwise = Generator[None, None, T]
"""A computation over many things, which may change meanwhile: one step for each, at the end its result."""


async def in_slices(items: Iterable[T], most: int = SLICE) -> AsyncIterator[T]:
    """Each of ``items``, made as it is asked for. After every ``most`` of them others have a turn, so
    ``items`` must bear that what it is made from changes meanwhile."""
    for number, item in enumerate(items, 1):
        yield item
        if number % most == 0:
            await asyncio.sleep(0)


async def run_in_slices(steps: Stepwise[T], most: int = SLICE) -> T:
    """The result of ``steps``. After every ``most`` of them the event loop has a turn for others."""
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        taken += 1
        if taken % most == 0:
            await asyncio.sleep(0)


def run_at_once(steps: Stepwise[T]) -> T:
    """The result of ``steps``, without a stop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
