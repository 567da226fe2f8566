"""Work of an event loop that is done again and again, and goes on when the database fails."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.storage.errors import StateError
from shared.process.event_loop import wait_to_wake

_log = structlog.get_logger(__name__)


def repeat_in(
    tasks: asyncio.TaskGroup,
    over: Callable[[], bool],
    work: Callable[[], Awaitable[None]],
    every_s: float,
    wake: asyncio.Event | None = None,
) -> None:
    """Has ``tasks`` call ``work`` every ``every_s`` seconds, and sooner when ``wake`` is set, until ``over``.
    A StateError of it is logged once, until it works again."""
    tasks.create_task(_repeat(over, work, every_s, wake or asyncio.Event()))


async def _repeat(
    over: Callable[[], bool], work: Callable[[], Awaitable[None]], every_s: float, wake: asyncio.Event
) -> None:
    failing = False
    while True:
        await wait_to_wake(wake, every_s)
        if over():
            return
        try:
            await work()
            failing = False
        except StateError as error:
            if not failing:
                _log.error("state_failed", doing=work.__name__.strip("_"), error=str(error))
            failing = True
