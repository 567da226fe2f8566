"""Batches for their clients: made, listed, shown, cancelled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial

from gateway.domain.batches import BatchRecord, BatchState, NewBatch
from gateway.domain.line_ranges import LineRanges
from gateway.jobs.batches.result_lines import FinishedLines
from gateway.storage.batches import BatchStore
from gateway.storage.submissions import OnceKey


class BatchService:
    """Belongs to the event loop's thread. Methods raise StateError."""

    def __init__(
        self,
        batches: BatchStore,
        wake: Callable[[], None],
        wall: Callable[[], float],
        finished: FinishedLines,
        admit: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """``wake`` tells who works on batches here that there is something to do; ``admit`` raises where a
        tenant may submit nothing more (:meth:`gateway.jobs.kept_results.KeptResults.check`)."""
        self._admit = admit
        self._finished = finished
        self.wall = wall
        self._batches = batches
        self._wake = wake

    async def create(self, batch: NewBatch, once: OnceKey | None = None) -> BatchRecord:
        """Where the same was asked for with the same idempotency key before, it is the batch of then. Raises
        UnknownRecord, UnfitFile, IdempotencyConflict, and what ``admit`` raises."""
        if self._admit is not None:
            await self._admit(batch.tenant)
        made = await asyncio.to_thread(self._batches.create, batch, once)
        self._wake()
        return made

    async def get(self, batch_id: str, tenant: str) -> BatchRecord:
        """Raises UnknownRecord."""
        return await asyncio.to_thread(self._batches.get, batch_id, tenant)

    def results(self, batch: BatchRecord, ranges: LineRanges) -> AsyncIterator[bytes]:
        """Those of its lines that have ended (:meth:`FinishedLines.of`)."""
        return self._finished.of(batch, ranges)

    async def list(
        self,
        tenant: str | None,
        after: str | None,
        limit: int,
        states: Collection[BatchState] = (),
    ) -> tuple[BatchRecord, ...]:
        """``tenant``: None for those of all. Raises UnknownRecord for an ``after`` that the tenant does not
        have."""
        read = partial(self._batches.list, tenant, after=after, limit=limit, states=states)
        return await asyncio.to_thread(read)

    async def cancel(self, batch_id: str, tenant: str | None) -> BatchRecord:
        """``tenant``: only if it is that one's. Raises UnknownRecord, BatchEnded."""
        found = await asyncio.to_thread(self._batches.cancel, batch_id, tenant, self.wall())
        self._wake()
        return found
