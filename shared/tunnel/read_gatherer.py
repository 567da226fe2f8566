"""Reads many tunnels together while much comes of them (PROTOCOL §2.2).

What costs most about a message of one token is that the process wakes for it: with a thousand agents each
token wakes it anew. While that happens often, tunnels are looked at once in a millisecond, and what came
meanwhile is taken in one turn of the event loop. An agent gathers what it sends for as long.
"""

import asyncio
import select
import time
from collections.abc import Callable
from typing import Protocol

from shared.speedups import read_ready
from shared.speedups.read_path import MOST_EVENTS

GATHER_S = 0.001
"""While input is gathered, tunnels are looked at so often."""

GATHER_FROM_PER_S = 2000.0
"""Messages are gathered when the process wakes for some so often: twice in the time between two looks."""

GATHER_TO_PER_S = 1000.0
"""They are no longer gathered when there are fewer: a look for each would be more work."""

SAMPLE_MESSAGES = 16
"""Their rate is determined when so many have come."""

SAMPLE_LOOKS = 8
"""And after so many looks, while they are gathered."""

SHORT_BYTES = 4096
"""Longer input is that of large bodies, which waiting would slow down."""

MOST_BYTES = 1024 * 1024
"""Taken in one turn of the event loop, from at most ``MOST_EVENTS`` tunnels."""


class ReadPace:
    """Decides whether input is gathered. Times are seconds of one monotonic clock."""

    def __init__(self, now: float) -> None:
        self.gathers = False
        self._since = now

    def sampled(self, now: float, messages: int) -> None:
        """So many messages have come since this was called last, or so many wake-ups for them."""
        least_per_s = GATHER_TO_PER_S if self.gathers else GATHER_FROM_PER_S
        self.gathers = messages >= least_per_s * (now - self._since)
        self._since = now

    def came_long(self, now: float) -> None:
        """Part of a large body has come."""
        self.gathers = False
        self._since = now


class GatheredReader(Protocol):
    """Whose input is gathered."""

    def data_received(self, data: bytes) -> None: ...

    def read_by_transport(self) -> None:
        """It is gathered no longer: its end has come, or an error, and perhaps something before."""

    def failed(self, error: Exception) -> None:
        """It raised this at what came."""


class ReadGatherer:
    """Reads the sockets of those that were added. All calls belong to the event loop's thread.

    To be made by :func:`read_gatherer`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poll: "select.epoll",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._poll = poll
        self._clock = clock
        self._pace = ReadPace(clock())
        self._members: dict[int, GatheredReader] = {}
        self._timer: asyncio.Handle | None = None
        """The next look; None: the loop watches whether something comes."""
        self._counted = 0
        """Wake-ups since the rate was determined last, or messages while they are gathered. A process that
        wakes seldom, because others have the processor, finds many messages at once anyhow."""
        self._looks = 0
        loop.add_reader(poll.fileno(), self._look)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, descriptor: int, reader: GatheredReader) -> None:
        """From now on what comes on that socket, which does not block, is given to ``reader``.

        Nobody else may read it, until :meth:`GatheredReader.read_by_transport` is called. It is to be
        discarded before it is closed. Raises :class:`OSError` when it cannot be watched.
        """
        self._poll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)
        self._members[descriptor] = reader

    def discard(self, descriptor: int) -> bool:
        """Reads it no longer. False when it was not read here."""
        if self._members.pop(descriptor, None) is None:
            return False
        self._poll.unregister(descriptor)
        return True

    def close(self) -> None:
        """Gives all back to their transports. Idempotent."""
        if self._poll.closed:
            return
        for descriptor, reader in list(self._members.items()):
            self.discard(descriptor)
            reader.read_by_transport()
        if self._timer is None:
            self._loop.remove_reader(self._poll.fileno())
        else:
            self._timer.cancel()
            self._timer = None
        self._poll.close()

    def _look(self) -> None:
        """Takes what has come."""
        found, messages, size_bytes = read_ready(self._poll, self._members, MOST_EVENTS, MOST_BYTES)
        for reader, data in found:
            try:
                if data is None:
                    reader.read_by_transport()
                else:
                    reader.data_received(data)
            except Exception as error:
                self._report(reader, error)
        self._counted += 1 if self._timer is None else messages
        if self._timer is not None or self._counted >= SAMPLE_MESSAGES or size_bytes > SHORT_BYTES:
            self._settle_pace(messages, size_bytes)

    def _settle_pace(self, messages: int, size_bytes: int) -> None:
        """Decides when to look again after a look that found so much, where that may change."""
        if self._poll.closed:
            return
        self._looks += 1
        if size_bytes > SHORT_BYTES * messages:
            self._pace.came_long(self._clock())
            self._counted = self._looks = 0
        elif self._counted >= SAMPLE_MESSAGES or self._looks >= SAMPLE_LOOKS:
            self._pace.sampled(self._clock(), self._counted)
            self._counted = self._looks = 0
        if self._pace.gathers or self._timer is not None:
            self._look_again(at_once=messages == MOST_EVENTS or size_bytes >= MOST_BYTES)

    def _look_again(self, *, at_once: bool) -> None:
        gathered = self._timer is not None
        self._timer = None
        if self._pace.gathers:
            if not gathered:
                self._loop.remove_reader(self._poll.fileno())
            if at_once:
                self._timer = self._loop.call_soon(self._look)
            else:
                self._timer = self._loop.call_later(GATHER_S, self._look)
        elif gathered:
            self._loop.add_reader(self._poll.fileno(), self._look)

    def _report(self, reader: GatheredReader, error: Exception) -> None:
        context = {"message": "a tunnel failed at what came", "exception": error}
        self._loop.call_exception_handler(context)
        try:
            reader.failed(error)
        except Exception as further:  # the others are read all the same
            context = {"message": "a tunnel that failed could not be ended in order", "exception": further}
            self._loop.call_exception_handler(context)


def read_gatherer(loop: asyncio.AbstractEventLoop) -> ReadGatherer | None:
    """A gatherer on that loop; None where the system or the loop has no means for it."""
    if not hasattr(select, "epoll"):
        return None
    poll = select.epoll()
    try:
        return ReadGatherer(loop, poll)
    except NotImplementedError:
        poll.close()
        return None
