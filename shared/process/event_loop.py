"""The event loop that the programs run on."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SWITCH_S = 0.0001
"""How long another thread may keep the interpreter from the event loop. Python's own 5 ms show in the time to
a first token and between tokens: a thread that asks the database takes the interpreter back after each call
of it before the loop has woken, and after each callback of the loop in which it lets go of it."""


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes uvloop's event loops where there are any, else asyncio's own."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@contextmanager
def loop_waits_briefly() -> Iterator[None]:
    """Inside, threads beside the event loop give it the interpreter within ``SWITCH_S``."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


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
