"""A job's answer on its way: what its run has heard of its engine, for whoever passes it on at once.

The store has the same bytes up to a second later (:mod:`gateway.jobs.output`). Whoever is too slow for what
is held here reads the rest there.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.domain.jobs import JobRecord

HELD_BYTES = 64 * 1024
"""Of one answer, for who passes it on."""


class AnswerFollower(Protocol):
    """Hears of an answer while it is written. Every method returns at once and raises nothing."""

    def begin(self, since: int, offset: int) -> None:
        """Bytes follow behind the first ``offset`` ones of an earlier run, which began in ``since``."""
        ...

    def append(self, data: bytes) -> None: ...

    def stored(self, offset: int) -> None:
        """The store has the first ``offset`` bytes."""
        ...

    def end(self) -> None:
        """The run is over, and the store knows what became of it. Comes once, whatever came before."""
        ...


FollowRun = Callable[[JobRecord], AnswerFollower | None]
"""Who follows the answer of a run that begins; None: nobody does."""


class LiveAnswer:
    """The last bytes of one run's answer, for one reader. Belongs to the event loop's thread."""

    def __init__(self, job: JobRecord, ended: "Callable[[LiveAnswer], None]", most: int = HELD_BYTES) -> None:
        """``ended`` is called at its end."""
        self.job = job
        self.since: int | None = None
        """None: it has not begun."""
        self.begin_offset = 0
        """Where this run began to write."""
        self.stored_offset = 0
        """So many bytes of the answer are in the store."""
        self.sent_offset: int | None = None
        """How far the reader has come in this run, if it has begun; the reader sets it."""
        self.ended = False
        self._ended = ended
        self._most = most
        self._start = 0
        self._held = bytearray()
        self._is_wanted = True
        self._changed = asyncio.Event()

    # --- The run ---

    def begin(self, since: int, offset: int) -> None:
        self.since = since
        self._start = self.begin_offset = self.stored_offset = offset
        self._changed.set()

    def append(self, data: bytes) -> None:
        """What is too much is dropped: the reader is behind, and finds it in the store."""
        if not self._is_wanted:
            return
        self._held += data
        if len(self._held) > self._most:
            self._start += len(self._held)
            self._held.clear()
        self._changed.set()

    def stored(self, offset: int) -> None:
        self.stored_offset = offset

    def end(self) -> None:
        self.ended = True
        self._changed.set()
        self._ended(self)

    # --- Its reader ---

    def decline(self) -> None:
        """Nobody reads it."""
        self._is_wanted = False
        self._held.clear()

    async def changed(self) -> None:
        """Returns when there is more, or when this has begun or ended; at once where it was so since this
        was called last."""
        await self._changed.wait()
        self._changed.clear()

    def after(self, offset: int) -> bytes | None:
        """The bytes from ``offset`` on; None where they are in the store only. What lies before is
        forgotten."""
        if offset < self._start:
            return None
        del self._held[: offset - self._start]
        self._start = offset
        return bytes(self._held)


def followed_by_nobody(job: JobRecord) -> None:
    """A :data:`FollowRun` where answers are only stored."""
