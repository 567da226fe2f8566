"""Brings batches from state to state. Every gateway process does so; a lease says whose a batch is just now.

Each step can be cut off anywhere and begun again by another process: a file that is being read is read anew,
lines become jobs together with the note of how far that is, and what a batch publishes appears at once or not
at all.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.domain.batches import BatchRecord, BatchState
from gateway.jobs.batches.publication import BatchPublisher
from gateway.jobs.batches.submission import BatchReader, GoodFile
from gateway.jobs.batches.window import WindowCheck
from gateway.jobs.runs_here import NothingRunsHere, RunsHere
from gateway.jobs.service import RESULT_KEPT_S
from gateway.storage.batches import BatchLost, BatchStore
from gateway.storage.errors import StateError
from gateway.storage.jobs import JobBounds, JobStore, TooManyJobs

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How batches are worked on."""

    lease_s: float = 30.0
    rest_s: float = 1.0
    """Between two looks at a batch that waits for its jobs, and at whether there are batches to take up."""
    idle_s: float = 10.0
    """The latter while there is none."""
    grace_s: float = 30.0
    """After the end of its window a batch waits so long for its jobs to expire by themselves."""
    kept_s: float = RESULT_KEPT_S
    """So long lines are kept as jobs after they were cancelled with their batch."""
    at_once: int = 4
    chunk_lines: int = 500


class BatchWorker:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        batches: BatchStore,
        jobs: JobStore,
        reader: BatchReader,
        publisher: BatchPublisher,
        process: str,
        bounds: JobBounds,
        wall: Callable[[], float],
        settings: BatchSettings = BatchSettings(),
        runs: RunsHere | None = None,
        window: WindowCheck | None = None,
    ) -> None:
        """``process`` names this one in the store, and is the same when it is started again; ``runs`` is what
        runs jobs in it; ``window`` refuses batches that would take too long; None: none are."""
        self._window = window
        self._runs = NothingRunsHere() if runs is None else runs
        self._batches = batches
        self._jobs = jobs
        self._reader = reader
        self._publisher = publisher
        self._process = process
        self._bounds = bounds
        self._wall = wall
        self._settings = settings
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """There is something to do."""
        self._wanted.set()

    async def run(self) -> None:
        """Work until this is cancelled."""
        await self._end_earlier_leases()
        while True:
            wait_s = self._settings.idle_s
            self._wanted.clear()
            try:
                await self.look()
                if await asyncio.to_thread(self._batches.any_open):
                    wait_s = self._settings.rest_s
            except StateError as error:
                _log.warning("batches_not_seen", error=str(error))
            try:
                await asyncio.wait_for(self._wanted.wait(), wait_s)
            except TimeoutError:
                continue

    async def _end_earlier_leases(self) -> None:
        """A process of this name that was killed works on nothing any more."""
        try:
            ended = await asyncio.to_thread(self._batches.end_leases_of, self._process)
        except StateError as error:  # they end by themselves
            _log.warning("batches_not_seen", error=str(error))
        else:
            if ended:
                _log.info("batches_left_behind", batches=ended)

    async def look(self) -> None:
        """Take up what nobody works on, and bring each as far as it comes now."""
        settings = self._settings
        while True:
            late_s = self._wall() - settings.grace_s
            claim = (self._process, settings.lease_s, settings.at_once, late_s)
            found = await asyncio.to_thread(self._batches.claim, *claim)
            async with asyncio.TaskGroup() as tasks:
                for batch in found:
                    tasks.create_task(self._work_on(batch))
            if len(found) < settings.at_once:
                return

    async def _work_on(self, batch: BatchRecord) -> None:
        rest_s = self._settings.rest_s
        try:
            await self._advance(batch)
            return
        except BatchLost:
            return
        except TooManyJobs:
            pass  # some of the tenant's have to end first
        except StateError as error:
            _log.warning("batch_waits", batch=batch.id, error=str(error))
            rest_s = self._settings.idle_s
        except Exception:
            _log.exception("batch_failed", batch=batch.id)
            rest_s = self._settings.lease_s
        await self._rest(batch, rest_s)

    async def _advance(self, batch: BatchRecord) -> None:
        """Raises StateError, BatchLost, TooManyJobs."""
        lease = _Lease(self._batches, batch, self._settings.lease_s)
        if batch.state is BatchState.VALIDATING:
            verdict = await self._reader.check(batch, lease.renew)
            if not isinstance(verdict, GoodFile):
                await asyncio.to_thread(self._batches.fail, batch, verdict, self._wall())
                return
            if self._window is not None:
                refusal = await self._window(batch, verdict.model, verdict.work)
                if refusal is not None:
                    await asyncio.to_thread(self._batches.fail, batch, (refusal,), self._wall())
                    return
            begun = (batch, verdict.total, verdict.model, self._wall())
            batch = await asyncio.to_thread(self._batches.begin, *begun)
        if not batch.is_submitted:
            batch = await self._submit(batch, lease)
        if batch.state in (BatchState.IN_PROGRESS, BatchState.CANCELLING):
            now_s = self._wall()
            late = now_s >= batch.new.expires_s + self._settings.grace_s
            if late or batch.state is BatchState.CANCELLING:
                await asyncio.to_thread(
                    self._jobs.cancel_group, batch.id, now_s, now_s + self._settings.kept_s
                )
                self._runs.cancel_group(batch.id)
            if await asyncio.to_thread(self._batches.waits, batch):
                await self._rest(batch, self._settings.rest_s)
                return
            batch = await asyncio.to_thread(self._batches.begin_finalizing, batch, now_s)
        await self._publish(batch, lease)

    async def _submit(self, batch: BatchRecord, lease: "_Lease") -> BatchRecord:
        """Make jobs of the lines that are none yet. Those of a batch that has no time left, or is being
        cancelled, become jobs, too: they end as such at once."""
        settings = self._settings
        async for jobs, read_bytes in self._reader.chunks(batch, settings.chunk_lines, lease.renew):
            now_s = self._wall()
            over = batch.state is BatchState.CANCELLING or now_s >= batch.new.expires_s
            bounds = None if over else self._bounds
            chunk = (batch, jobs, read_bytes, bounds, settings.lease_s, now_s)
            batch = await asyncio.to_thread(self._batches.submit, *chunk)
            self._runs.wake()
        return batch

    async def _publish(self, batch: BatchRecord, lease: "_Lease") -> None:
        made = await self._publisher.write(batch, lease.renew)
        publish = self._publisher.publish(made)
        output, errors = (None if each is None else each[0].id for each in (made.output, made.errors))
        try:
            await asyncio.to_thread(
                self._batches.finish,
                batch,
                made.state,
                made.counts,
                made.usage.to_dict(),
                (output, errors),
                publish,
                self._wall(),
            )
        except BatchLost:
            await self._publisher.discard(made.output, made.errors)
            raise

    async def _rest(self, batch: BatchRecord, rest_s: float) -> None:
        """Somebody looks again after so long. What fails here ends with the lease."""
        try:
            await asyncio.to_thread(self._batches.release, batch, rest_s)
        except StateError as error:
            _log.warning("batch_waits", batch=batch.id, error=str(error))


class _Lease:
    """Keeps a batch this process's while it is being worked on."""

    def __init__(self, batches: BatchStore, batch: BatchRecord, lease_s: float) -> None:
        self._batches = batches
        self._batch = batch
        self._lease_s = lease_s
        self._clock = asyncio.get_running_loop().time
        self._renewed = self._clock()

    async def renew(self) -> None:
        """Costs nothing while the lease is young. Raises BatchLost, StateError."""
        if self._clock() - self._renewed > self._lease_s / 3:
            self._renewed = self._clock()
            await asyncio.to_thread(self._batches.renew, self._batch, self._lease_s)
