"""Decides when frames that are ready leave a tunnel (PROTOCOL §2.2).

A message costs both ends as much as many tokens: two system calls, a WebSocket frame, a turn of each loop.
With few streams nothing is gained by waiting. With many, the next token comes within a fraction of a
millisecond, and a message for each would take most of both ends' time.
"""

import asyncio
from collections.abc import Callable, Sized

CROWD_STREAMS = 32
"""Frames are gathered when so many streams are open."""

GATHER_S = 0.001
"""Frames are gathered for so long after the last ones left. After a longer pause one leaves at once."""

FULL_FRAMES = 64
"""So many frames leave at once, without waiting longer."""


class WriteScheduler:
    """Calls ``flush`` in the next turn of the loop, or later when frames are gathered."""

    def __init__(self, loop: asyncio.AbstractEventLoop, flush: Callable[[], None]) -> None:
        self.held = False
        """The socket is full, so nothing may leave."""
        self.streams: Sized = ()
        """Those that are open; the tunnel sets it."""
        self._loop = loop
        self._flush = flush
        self._next: asyncio.Handle | None = None
        self._gathered = 0
        self._last_s = float("-inf")

    def wake(self) -> None:
        """Notes that a frame may be ready. Called for every frame."""
        if self._next is not None:
            self._gathered += 1
            if self._gathered == FULL_FRAMES:
                self._next.cancel()
                self._next = self._loop.call_soon(self._flush)
        elif not self.held:
            self._gathered = 1
            loop = self._loop
            if len(self.streams) < CROWD_STREAMS or loop.time() - self._last_s >= GATHER_S:
                self._next = loop.call_soon(self._flush)
            else:
                self._next = loop.call_later(GATHER_S, self._flush)

    def note_flushed(self) -> None:
        """Notes that everything leaves now."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._last_s = self._loop.time()
