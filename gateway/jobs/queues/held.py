"""Messages that a broker lends for a while only: they are borrowed on until they are done with."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import structlog

from gateway.jobs.queues.source import BrokerAway, SourceError

_log = structlog.get_logger(__name__)


class HeldMessages:
    """What one source has taken and not settled, by the handles that its broker gave. Messages are settled
    within a moment, so there is a task only where they are not. Belongs to the event loop's thread."""

    def __init__(
        self, renew: Callable[[Sequence[str]], Awaitable[None]], first_s: float, every_s: float
    ) -> None:
        """``renew`` has the broker lend some for longer; it raises SourceError. ``first_s``: how soon after
        they were taken it is called, ``every_s``: how often then."""
        self._renew = renew
        self._first_s, self._every_s = first_s, every_s
        self._handles: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def handles(self) -> list[str]:
        return sorted(self._handles)

    def add(self, handles: Collection[str]) -> None:
        """They were taken just now."""
        self._handles |= set(handles)
        if self._handles and self._task is None:
            self._task = asyncio.create_task(self._keep())

    def settle(self, handle: str) -> None:
        """It is done with."""
        self._handles.discard(handle)
        if not self._handles:
            self.drop()

    def drop(self) -> None:
        """They come again."""
        self._handles.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @contextlib.contextmanager
    def dropped_when_away(self) -> Iterator[None]:
        """Where taking or settling fails, nobody here goes on with what was taken."""
        try:
            yield
        except BrokerAway:
            self.drop()
            raise

    async def _keep(self) -> None:
        wait_s = self._first_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self._every_s
            try:
                await self._renew(self.handles)
            except SourceError as error:  # they come again, and make no second job
                _log.info("queue_messages_not_kept", messages=len(self._handles), error=str(error))
