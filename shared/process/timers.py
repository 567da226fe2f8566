"""Callbacks that are called later, as code without an event loop of its own sees them, and waits that end."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Cancellable(Protocol):
    """A callback that can still be called off."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Cancellable]
"""Calls something after so many seconds."""


async def wait_to_wake(wake: asyncio.Event, most_s: float) -> None:
    """Waits until ``wake`` is set, which is done here after ``most_s`` seconds, and clears it.

    For the one task that waits for ``wake``, again and again, and does the same whatever woke it. That takes
    a tenth of what a time limit takes, which ends with an exception each time.
    """
    timer = asyncio.get_running_loop().call_later(most_s, wake.set)
    try:
        await wake.wait()
    finally:
        timer.cancel()
    wake.clear()
