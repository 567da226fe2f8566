"""Counts how often others have a turn of the event loop."""

import asyncio
from collections.abc import Awaitable


async def turns_during(work: Awaitable[object]) -> int:
    """How often another task has had a turn until ``work`` was done."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.create_task(turn())
    await work
    turning.cancel()
    return turns
