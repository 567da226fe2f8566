"""Decides when frames that are ready leave a tunnel (PROTOCOL §2.2).

A message costs both ends as much as many tokens: two system calls, a WebSocket frame, a turn of each loop.
With few streams nothing is gained by waiting. With many, the next token comes within a fraction of a
millisecond, and a message for each would take most of both ends' time. What somebody waits for who has
nothing yet, a request or the first of its response, is hastened: it leaves with what is gathered so far.
"""

import asyncio
import time
from collections.abc import Callable, Sized

CROWD_STREAMS = 32
"""Frames are gathered when so many streams are open."""

GATHER_S = 0.001
"""Frames are gathered for so long after the last ones left. After a longer pause one leaves at once."""

HASTE_S = 0.0002
"""Nothing is hastened so soon after a message: then many ask for it, and one waits for the next."""

FULL_FRAMES = 64
"""So many frames leave at once, without waiting longer."""


class WriteScheduler:
    """Calls ``flush`` once the present turn of the loop is over, or later when frames are gathered."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        flush: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` is finer than the loop's may be, and is looked at for what is hastened."""
        self.held = False
        """The socket is full, so nothing may leave."""
        self.streams: Sized = ()
        """Those that are open; the tunnel sets it."""
        self.at_turn_end: Callable[[Callable[[], None]], object] = loop.call_soon
        """Has something called once the present turn of the loop is over; the tunnel may set it."""
        self._loop = loop
        self._clock = clock
        self._flush = flush
        self._soon = False
        """``flush`` is called at the end of this turn."""
        self._later: asyncio.TimerHandle | None = None
        """Calls ``flush`` with what is gathered until then."""
        self._gathered = 0
        self._last_s = float("-inf")
        """When the last ones left, on the loop's clock."""
        self._left_s = float("-inf")
        """The same on the finer one."""

    def wake(self) -> None:
        """Notes that a frame may be ready. Called for every frame."""
        if self._soon:
            return
        if self._later is not None:
            self._gathered += 1
            if self._gathered < FULL_FRAMES:
                return
            self._later.cancel()
            self._later = None
        elif self.held:
            return
        elif len(self.streams) >= CROWD_STREAMS and self._loop.time() - self._last_s < GATHER_S:
            self._gathered = 1
            self._later = self._loop.call_later(GATHER_S, self._flush)
            return
        self._soon = True
        self.at_turn_end(self._flush)

    def hasten(self) -> None:
        """Notes that somebody waits for what is ready: it is not to be gathered for as long."""
        if self._later is not None and self._clock() - self._left_s >= HASTE_S:
            self._later.cancel()
            self._later = None
            self._soon = True
            self.at_turn_end(self._flush)

    @property
    def woken(self) -> bool:
        """``flush`` is going to be called."""
        return self._soon or self._later is not None

    def note_flushed(self) -> None:
        """Notes that everything leaves now."""
        self._soon = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._last_s = self._loop.time()
        self._left_s = self._clock()
