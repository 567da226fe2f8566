"""When what is ready leaves a tunnel (PROTOCOL §2.2).

A message costs both ends as much as many of the tokens in it: two system calls, a WebSocket frame, a turn of
each loop. Between few streams nothing is gained by waiting. Where there are many, the next token is but a
fraction of a millisecond away, and a message for each would take most of both ends' time.
"""

import asyncio
from collections.abc import Callable

CROWD_STREAMS = 32
"""From so many open streams on, frames are gathered."""

GATHER_S = 0.001
"""For so long after the last departure. The first frame after a longer silence leaves at once."""

FULL_FRAMES = 64
"""Nobody waits for more than so many."""


class Departures:
    """Calls ``leave`` when it is time: in the same turn of the loop, or with what is gathered."""

    __slots__ = ("_gathered", "_last_s", "_leave", "_loop", "_next", "_streams", "held")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, leave: Callable[[], None], streams: Callable[[], int]
    ) -> None:
        self.held = False
        """Nothing may leave for now."""
        self._loop = loop
        self._leave = leave
        self._streams = streams
        self._next: asyncio.Handle | None = None
        self._gathered = 0
        self._last_s = float("-inf")

    def wake(self) -> None:
        """Something may be ready. Called for every frame."""
        if self._next is not None:
            self._gathered += 1
            if self._gathered == FULL_FRAMES:
                self._next.cancel()
                self._next = self._loop.call_soon(self._leave)
        elif not self.held:
            self._gathered = 1
            loop = self._loop
            if self._streams() < CROWD_STREAMS or loop.time() - self._last_s >= GATHER_S:
                self._next = loop.call_soon(self._leave)
            else:
                self._next = loop.call_later(GATHER_S, self._leave)

    def depart(self) -> None:
        """It leaves now."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._last_s = self._loop.time()
