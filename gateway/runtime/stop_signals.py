"""The signals by which a process is told to stop."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator


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
