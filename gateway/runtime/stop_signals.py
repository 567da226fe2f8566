"""The signals by which a process is told to stop."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager


class StopSignals:
    """The operator's signals: the first one requests to finish, the second one to end at once."""

    def __init__(self, *, escalate: bool = True) -> None:
        """Without ``escalate`` a second one means no more than the first."""
        self.requested = asyncio.Event()
        self.forced = asyncio.Event()
        self.leaving = False
        """Another process has taken this one's place: it stops without haste."""
        self._escalate = escalate

    def receive(self) -> None:
        if self._escalate and self.requested.is_set():
            self.forced.set()
        self.requested.set()

    def leave(self) -> None:
        self.leaving = True
        self.requested.set()

    def end_at_once(self) -> None:
        self.requested.set()
        self.forced.set()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """SIGTERM and SIGINT come here while inside."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.receive)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


@asynccontextmanager
async def until_forced(seconds: float, forced: asyncio.Event) -> AsyncIterator[None]:
    """Leave the block when it is done, after ``seconds``, or as soon as ``forced`` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds) as limit, asyncio.TaskGroup() as tasks:

            async def end_when_forced() -> None:
                await forced.wait()
                limit.reschedule(0)

            ending = tasks.create_task(end_when_forced())
            yield
            ending.cancel()
