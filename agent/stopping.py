"""How an agent is asked to stop, and how it lets go of its engines then."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from agent.engines.backend import Backend
from agent.engines.managed import ManagedBackend

log = structlog.get_logger("agent")


class Stop:
    """Asked once, the agent drains; asked twice, it ends at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        (self.at_once if self.asked.is_set() else self.asked).set()


def listen_for_signals(ask: Callable[[], None]) -> None:
    """SIGTERM and SIGINT ask the agent to stop, and SIGHUP, which comes when its terminal is closed, unless
    the agent was started with it ignored, as by nohup."""
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        try:
            loop.add_signal_handler(number, ask)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(ask))


async def first_of(event: asyncio.Event, other: asyncio.Future[Any]) -> None:
    """Waits until ``event`` is set or ``other`` is done."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def close_all(backends: Sequence[Backend], stop: Stop) -> None:
    """All at once: each may take as long as its engine takes to end, unless ``stop`` is asked again."""
    own = [each for each in backends if isinstance(each, ManagedBackend) and each.wanted]
    if own and not stop.at_once.is_set():
        names = [each.name for each in own]
        log.info("ending the engines, a second signal ends them at once", engines=names)
    closing = asyncio.gather(*(each.close() for each in backends), return_exceptions=True)
    await first_of(stop.at_once, closing)
    if not closing.done():
        for backend in own:
            backend.hurry()
    for error in await closing:
        if isinstance(error, Exception):
            log.error("an engine could not be let go of", error=repr(error))
