"""Shares the event loop among handshakes: some of them in each turn, in the order in which they came
(PROTOCOL §8.1).

Every agent of a fleet dials again at once when a gateway has been restarted. One handshake (signatures, a
certificate, deployments in the index) takes a fraction of a millisecond; two thousand in one turn of the loop
would keep everybody else waiting for seconds.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from shared.protocol.errors import LocalError

TURN_S = 0.002
"""After so long in one turn of the loop the next step waits for another turn. One step takes less."""

MOST_WAITING = 8192
"""Steps. Each tunnel has one that waits at most, with less than 70 KiB of input."""


class HandshakeQueueFull(LocalError):
    """More handshakes wait for their turn than may."""


class HandshakeQueue:
    """The steps of handshakes that wait for the event loop. Belongs to its thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
        most: int = MOST_WAITING,
    ) -> None:
        """``clock`` gives seconds, from wherever it counts."""
        self._loop = loop
        self._clock = clock
        self._most = most
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """Steps that wait."""
        return len(self._waiting)

    def add(self, step: Callable[[], None]) -> None:
        """Has ``step`` called on the event loop, after this returns and after the steps added before it.

        What ``step`` raises goes to the loop's exception handler. Raises HandshakeQueueFull.
        """
        if len(self._waiting) >= self._most:
            raise HandshakeQueueFull(f"{len(self._waiting)} handshakes wait for their turn")
        if not self._waiting:
            self._loop.call_soon(self._take)
        self._waiting.append(step)

    def _take(self) -> None:
        until_s = self._clock() + TURN_S
        while self._waiting:
            step = self._waiting[0]
            try:
                step()
            except Exception as error:
                message = "a step of a handshake failed"
                self._loop.call_exception_handler({"message": message, "exception": error})
            self._waiting.popleft()
            if self._clock() >= until_s:
                break
        if self._waiting:
            self._loop.call_soon(self._take)
