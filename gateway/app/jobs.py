"""What of long work a gateway is made of: files, webhooks, and whatever runs and shows jobs."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.api.admin.jobs import JobsAdmin
from gateway.api.jobs.pages import JobAccess, jobs_pages
from gateway.api.jobs.respond_async import AsyncRequests
from gateway.api.jobs.responses import responses_pages
from gateway.api.jobs.videos import videos_pages
from gateway.api.openai.batches import batches_pages
from gateway.api.openai.files import files_pages
from gateway.api.openai.handlers import KeyedPage
from gateway.api.openai.uploads import uploads_pages
from gateway.app.job_runner import RunningParts, process_name
from gateway.app.queues import QueueParts
from gateway.auth.keys import KeyRing
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.outlook import DispatchOutlook
from gateway.domain.quotas import Price
from gateway.domain.state_dir import OBJECTS_NAME
from gateway.jobs.batches.publication import BatchPublisher
from gateway.jobs.batches.result_lines import FinishedLines, ResultLines
from gateway.jobs.batches.service import BatchService
from gateway.jobs.batches.submission import BatchReader
from gateway.jobs.batches.window import WindowCheck
from gateway.jobs.batches.worker import BatchSettings, BatchWorker
from gateway.jobs.files import FileBounds, FileService
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output_reader import OutputReader
from gateway.jobs.runs_here import RunsHere
from gateway.jobs.service import DAY_S, JobService
from gateway.jobs.uploads import UploadService
from gateway.jobs.watch import JobWatch
from gateway.jobs.webhooks.deliverer import WebhookDeliverer
from gateway.jobs.webhooks.guard import WebhookGuard
from gateway.jobs.webhooks.sender import WebhookSender
from gateway.jobs.webhooks.service import WebhookService
from gateway.observability.metrics import Metrics
from gateway.pipeline.aliases import AliasCache, AliasCatalog
from gateway.pipeline.bodies.reader import BodyReader
from gateway.pipeline.job_requests import JobRequestReader
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.runtime.config import Settings
from gateway.storage import Store
from gateway.storage.errors import UnknownRecord
from gateway.storage.jobs import JobBounds

if TYPE_CHECKING:  # its library is loaded at the first use
    from gateway.storage.objects import ObjectStore


class JobParts:
    """Of one gateway process."""

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        table = settings.jobs
        self._store, self._bounds = store, JobBounds(table.queued, table.result_bytes)
        self._kept_s, self._look_s = table.kept_days * DAY_S, table.look_s
        self._tenant_at_once = table.tenant_at_once
        self.process = process_name(settings, store)
        self.objects = make_objects(settings, store)
        """Bytes of files and jobs."""
        self.files = FileService(store.files, self.objects, FileBounds(table.file_bytes, table.tenant_bytes))
        self.uploads = UploadService(store.uploads, store.files, self.files)
        guard = WebhookGuard(table.webhook_rules)
        self.webhooks = WebhookService(guard, store.webhook_secrets)
        sender = WebhookSender(guard, table.webhook_ca_file)
        self.deliverer = WebhookDeliverer(store.webhooks, self.webhooks.signers, sender, metrics)
        self.jobs: JobAccess | None = None
        self.running: RunningParts | None = None
        """What runs jobs, where this process does."""
        self.batches: BatchParts | None = None
        """Once they are offered, as jobs are."""
        self.queues: QueueParts | None = None
        """What makes jobs of messages, where the settings name queues."""
        self._queue_tables = table.queues
        self._knows: Callable[[str], bool] = lambda name: False
        """Whether there is a model or an alias of a name."""

    def pages(self, keys: KeyAuthenticator) -> dict[str, KeyedPage]:
        """What clients reach of it, by path."""
        found: dict[str, KeyedPage] = {}
        found |= files_pages(keys, self.files) | uploads_pages(keys, self.uploads)
        if self.batches is not None:
            found |= batches_pages(keys, self.batches.service, self.webhooks.accept)
        if self.jobs is not None:
            found |= jobs_pages(keys, self.jobs) | responses_pages(keys, self.jobs)
            found |= videos_pages(keys, self.jobs, self._knows)
        return found

    def offer(
        self,
        keys: KeyAuthenticator,
        dispatcher: Dispatcher,
        price: Callable[[str], Price],
        known: "KnownModels",
        reader: BodyReader,
        ring: KeyRing,
        weights: Callable[[], Mapping[str, float]],
    ) -> AsyncRequests:
        """From now on there are jobs and batches, too. Returns what makes jobs of requests whose clients
        prefer to be answered later. ``weights`` gives those of tenants. Raises ConfigError."""
        reading = JobRequestReader(dispatcher.timers.time, known.knows, reader)
        outlook = DispatchOutlook(dispatcher.index, dispatcher.scheduling, price, known.meant)
        runs = None if self.running is None else self.running.runner
        more: dict[str, Any] = {"runs": runs, "kept_s": self._kept_s}
        jobs = JobService(self._store.jobs, self.objects, reading, outlook, self._bounds, **more)
        watch = JobWatch(self._store.jobs.get_many)
        answers = OutputReader(self.objects)
        self.jobs, self._knows = JobAccess(jobs, answers, watch, self.webhooks.accept), known.knows
        if self._queue_tables:
            registry = dispatcher.metrics.registry
            parts = (self._store, jobs, answers, ring, registry, self.process)
            self.queues = QueueParts(self._queue_tables, *parts)
            if self.running is not None:
                self.running.runner.follow = self.queues.follow
        settings = BatchSettings(rest_s=self._look_s, idle_s=10.0 * self._look_s, kept_s=self._kept_s)
        window = WindowCheck(
            self._store.batches, outlook, self.files.wall, weights=weights, tenant_slots=self._tenant_at_once
        )
        self.batches = BatchParts(self, self._store, (self._bounds, settings, runs, window), jobs, known)
        deferral = None if self.running is None else self.running.deferral(keys, self.jobs)
        return AsyncRequests(keys, self.jobs, known.knows, deferral)

    def admin(self, ring: KeyRing) -> JobsAdmin:
        """What operators reach of it. Jobs must be offered."""
        assert self.jobs is not None
        assert self.batches is not None

        def key_id(name: str) -> str | None:
            with contextlib.suppress(UnknownRecord):
                return self._store.keys.get(name).id
            return None

        return JobsAdmin(self.jobs.service, self.batches.service, key_id, ring.name_of)

    async def run(self) -> None:
        """Work beside the requests, until this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.files.keep_swept())
            tasks.create_task(self.uploads.keep_swept())
            tasks.create_task(self.deliverer.run())
            if self.jobs is not None:
                tasks.create_task(self.jobs.service.keep_forgetting())
            if self.running is not None:
                self.running.start(tasks)
            if self.batches is not None:
                tasks.create_task(self.batches.worker.run())
            if self.queues is not None:
                tasks.create_task(self.queues.run())

    async def stop(self) -> None:
        """Give back the jobs that run, for another process to go on with."""
        if self.running is not None:
            await self.running.stop()


@dataclass(frozen=True)
class KnownModels:
    """The models and aliases that clients can ask for."""

    aliases: AliasCache
    catalog: AliasCatalog

    def knows(self, name: str) -> bool:
        return self.catalog.model(name) is not None

    def meant(self, name: str) -> Sequence[str]:
        """The models that a name stands for, the likeliest first."""
        choice = self.aliases.choices.get(name)
        return (name,) if choice is None else [target.model for target in choice.ranked("")]


class BatchParts:
    """What makes and works on batches in one gateway process."""

    def __init__(
        self,
        parts: JobParts,
        store: Store,
        rules: tuple[JobBounds, BatchSettings, RunsHere | None, WindowCheck],
        jobs: JobService,
        known: KnownModels,
    ) -> None:
        bounds, settings, runs, window = rules
        self.worker = BatchWorker(
            store.batches,
            store.jobs,
            BatchReader(jobs, parts.objects, known.knows),
            BatchPublisher(store.jobs, store.files, parts.files),
            parts.process,
            bounds,
            parts.files.wall,
            settings,
            runs,
            window,
        )
        wall, admit = parts.files.wall, jobs.kept.check
        finished = FinishedLines(store.jobs, ResultLines(parts.objects), wall)
        self.service = BatchService(store.batches, self.worker.wake, wall, finished, admit)


def make_objects(settings: Settings, store: Store) -> ObjectOpener:
    """The object store is opened when it is needed first."""

    def open_objects() -> "ObjectStore":
        from gateway.storage.objects import ObjectStore

        if settings.jobs.objects is None:
            return ObjectStore.in_directory(store.state_dir / OBJECTS_NAME)
        return ObjectStore.at(settings.jobs.objects)

    return ObjectOpener(open_objects)
