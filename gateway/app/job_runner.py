"""What runs the jobs of the store in one gateway process."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.job_exchange import JobSources
from gateway.api.exchange.job_runs import JobBooks, JobPipeline
from gateway.api.jobs.deferral import Deferral
from gateway.api.jobs.pages import JobAccess
from gateway.app.factories import http_settings
from gateway.app.pipelines import PipelineParts
from gateway.auth.jobs import JobKeys
from gateway.auth.keys import KeyRing
from gateway.dispatch.dispatcher import Dispatcher
from gateway.jobs.ends import EndSettings, JobEnds
from gateway.jobs.fleet_room import FleetRoom
from gateway.jobs.metrics import JobMetrics
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.runner import JobRunner
from gateway.jobs.runner_settings import RunnerSettings
from gateway.jobs.runs import RetrySettings
from gateway.pipeline.bodies.reader import BodyReader
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.runtime.config import Settings
from gateway.storage import Store
from gateway.storage.job_notices import JobEvent, JobNotice

STOP_S = 10.0
"""For giving back what runs, when the gateway stops."""


def process_name(settings: Settings, store: Store) -> str:
    """What this process is called in the leases of jobs and batches: the same when it is started again."""
    return settings.cluster.process or store.process_name or "gateway"


class RunningParts:
    """Jobs go the way of clients' requests."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        objects: ObjectOpener,
        pipelines: PipelineParts,
        dispatcher: Dispatcher,
        ring: KeyRing,
        memory: tuple[BufferBudget, BodyReader],
        books: JobBooks,
        models_of: Callable[[str], Sequence[str]],
        weights: Callable[[], Mapping[str, float]],
    ) -> None:
        """``memory`` is for their bodies; ``models_of`` says what an alias stands for."""
        table, index = settings.jobs, dispatcher.index
        ends = JobEnds(store.job_claims, store.jobs, objects, EndSettings(table.kept_days * 86_400.0))
        if books.traces is not None:
            ends.on_ended = books.traces.job_ended
        keys, (budget, reader) = JobKeys(ring), memory
        run = JobPipeline(
            pipelines.pipeline(keys, accumulates=True),
            pipelines.pipeline(keys, reuse=False, accumulates=True),
            JobSources(objects, budget, http_settings(settings).body, reader, time.time),
            books,
            settings.dispatch.record_bytes,
        )
        self.runner = JobRunner(
            store.job_claims,
            objects,
            FleetRoom(index, dispatcher.room.depth, models_of),
            run,
            ends,
            (process_name(settings, store), secrets.randbits(53)),
            RunnerSettings(
                lease_s=table.lease_s,
                poll_s=2.0 * table.look_s,
                busy_poll_s=table.look_s,
                at_once=table.at_once,
                tenant_at_once=table.tenant_at_once,
                retry=RetrySettings(table.attempts, table.retry_s, table.retry_most_s),
            ),
            weights=weights,
            metrics=JobMetrics(dispatcher.metrics.registry),
        )
        self._pipelines, self._books, self._budget = pipelines, books, budget
        index.subscribe(self.runner.slots_free, slots=True)
        self._notices = store.job_notices
        self._running: asyncio.Task[None] | None = None

    def deferral(self, keys: KeyAuthenticator, access: JobAccess) -> Deferral:
        """What answers requests of clients, known by ``keys``, that may become jobs of this process."""
        pipeline = self._pipelines.pipeline(keys, accumulates=True)
        return Deferral(access, pipeline, self.runner, self._books, self._budget)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run jobs in a task of ``tasks`` until :meth:`stop`."""
        self._notices.listen(partial(self._pass_on, asyncio.get_running_loop()))
        self._running = tasks.create_task(self.runner.run())

    def _pass_on(self, loop: asyncio.AbstractEventLoop, notice: JobNotice) -> None:
        """In a thread of the store's."""
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            loop.call_soon_threadsafe(self._hear, notice)

    def _hear(self, notice: JobNotice) -> None:
        """Another process, or this one, has told it."""
        if notice.event is JobEvent.QUEUED:
            self.runner.wake()
        elif notice.event is JobEvent.CANCELLED:
            self.runner.cancel(notice.name)
        else:
            self.runner.cancel_group(notice.name)

    async def stop(self) -> None:
        """Give back the jobs that run, for another process to go on with."""
        self._notices.listen(None)
        self.runner.stop()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=STOP_S)
