"""What is in memory stays as fresh as the store, which is read in a thread: the event loop does not wait for
a disk, nor for ten thousand keys to be made of their rows."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gateway.storage.changes import ChangeCounter
from gateway.storage.errors import StateUnreachable

Apply = Callable[[], None]
"""Takes up what was read. Short: it is called on the event loop."""

Read = Callable[[], Apply]
"""Reads what has changed, in any thread, one call at a time. Changes nothing itself. Raises StateError."""


class StoreRefresher:
    """Reads again when anybody, in any process, has changed the store. All that was read at once is taken up
    at once, or none of it. Belongs to the event loop's thread."""

    def __init__(self, changes: ChangeCounter, thread: str) -> None:
        """``changes`` tells of the store's. ``thread`` names the thread that reads."""
        self._changes = changes
        self._known: int | None = None
        self._reads: list[Read] = []
        self._reading: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        """What the latest reading failed with."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=thread)

    def add(self, read: Read) -> None:
        """``read`` is called, too, from the next change on."""
        self._reads.append(read)

    def is_fresh(self) -> bool:
        """Whether nobody is known to have changed anything since it was read. Raises StateError."""
        known = self._changes.cached()
        return known is not None and known == self._known

    def refresh_here(self) -> None:
        """Read what has changed, in this thread. Raises StateError. Not while :meth:`refresh` is awaited."""
        if not self.is_fresh():
            self._take_up(*self._read())

    async def refresh(self) -> None:
        """All that is known to have been changed before this call counts when it returns. Raises StateError.

        Who comes while it is being read waits for that, and for another reading if something has been changed
        since it began: for two at most.
        """
        if self.is_fresh():
            return
        if self._reading is not None:
            await asyncio.wait((self._reading,))
            if self.is_fresh():
                return
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._refresh())
            self._reading.add_done_callback(self._reading_done)
        reading = self._reading
        await asyncio.wait((reading,))  # who leaves takes it from nobody else
        reading.result()

    def close(self) -> None:
        """Nothing more is read."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _refresh(self) -> None:
        self._take_up(*await asyncio.get_running_loop().run_in_executor(self._threads, self._read))

    def _read(self) -> tuple[int, Sequence[Apply]]:
        number = self._changes.read()
        if number == self._known:
            return number, ()
        try:
            return number, [read() for read in self._reads]
        except StateUnreachable:
            self._changes.read()  # raises once what is known is too old
            if self._known is None or self._changes.away is None:
                raise
            return self._known, ()

    def _take_up(self, number: int, found: Sequence[Apply]) -> None:
        for apply in found:
            apply()
        self._known = number

    def _reading_done(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        self.error = None if reading.cancelled() else reading.exception()  # whoever waits is told
