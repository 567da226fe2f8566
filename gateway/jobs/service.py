"""Jobs for their clients: made of requests, listed, shown, cancelled, tried again.

The bytes of a request lie in the object store before there is a row of its job, so whoever finds the row
finds them. Of a submission that fails nothing stays.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from gateway.domain.errors import Forbidden
from gateway.domain.jobs import JobEstimate, JobRecord, JobState, NewJob, NewLease, ObjectSlice
from gateway.domain.queues import QueueOrigin
from gateway.domain.request import Principal, Request, Tier
from gateway.jobs.kept_results import KeptResults
from gateway.jobs.object_names import body_name, job_prefix
from gateway.jobs.predictions import running_until_s, waiting_until_s
from gateway.jobs.responses import response_end
from gateway.jobs.runs_here import NothingRunsHere, RunsHere
from gateway.storage.errors import ObjectMissing, ObjectStorageFull, StateError, StateUnreachable
from gateway.storage.jobs import JobBounds, JobStore, Submission
from shared.protocol.progress import Preview

if TYPE_CHECKING:  # its library is loaded at the first use
    from gateway.storage.objects import ObjectStore

_log = structlog.get_logger(__name__)

DAY_S = 86_400.0
RESULT_KEPT_S = 30 * DAY_S
"""So long a job is kept after its end, with its result, unless the settings say otherwise."""
KEYS_KEPT_S = DAY_S
"""So long an idempotency key is known."""
DEADLINE_S = 7 * DAY_S
"""A job that names no deadline has this one."""
MOST_DEADLINE_S = 30 * DAY_S
_FORGOTTEN_EVERY_S = 600.0
_WRITTEN_AT_ONCE = 16
"""Bodies on their way to the object store."""

Body = bytes | AsyncIterable[bytes]


@dataclass(frozen=True, slots=True)
class JobTerms:
    """What a client says of a job besides its request. Times are seconds since 1970."""

    tier: Tier | None = None
    """None: what the request itself asks for, else batch."""
    deadline_s: float | None = None
    """None: :data:`DEADLINE_S` from now."""
    group: str | None = None
    custom_id: str | None = None
    webhook: str | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A request that is to become a job."""

    path: str
    """With its query, as clients write it: ``/v1/chat/completions``, ``/engines/m/render?x=1``."""
    headers: Sequence[tuple[str, str]] = ()
    """As its client sent them; those that are not for engines or limits are left out of the job."""
    terms: JobTerms = field(default_factory=JobTerms)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job asks for, once it was understood."""

    request: Request
    """As it would be dispatched now; its tier is the job's."""
    path: str
    headers: tuple[tuple[str, str], ...]
    """Those to keep."""


class RequestReader(Protocol):
    """Understands a request without a client (:class:`gateway.pipeline.job_requests.JobRequestReader`)."""

    async def __call__(
        self,
        job_id: str,
        principal: Principal,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        tier: Tier | None,
    ) -> JobRequest:
        """Raises RequestError."""
        ...


class FleetOutlook(Protocol):
    """What is known of how fast the fleet is (:class:`gateway.dispatch.outlook.DispatchOutlook`)."""

    def estimate(self, request: Request) -> JobEstimate:
        """Of one request; it is not changed."""
        ...

    def slots(self, model: str) -> int:
        """How many requests for a model, or an alias, run at once."""
        ...


class JobService:
    """Belongs to the event loop's thread. Methods raise StateError, of which ObjectStorageError is one."""

    def __init__(
        self,
        jobs: JobStore,
        objects: Callable[[], Awaitable["ObjectStore"]],
        read: RequestReader,
        outlook: FleetOutlook,
        bounds: JobBounds,
        wall: Callable[[], float] = time.time,
        *,
        runs: RunsHere | None = None,
        kept_s: float = RESULT_KEPT_S,
    ) -> None:
        """``runs`` is what runs jobs in this process; ``kept_s``: so long a job is kept after its end."""
        self.wall = wall
        self.kept = KeptResults(jobs, bounds.result_bytes, time.monotonic)
        self._runs = NothingRunsHere() if runs is None else runs
        self._kept_s = kept_s
        self.outlook = outlook
        self._jobs = jobs
        self._objects = objects
        self._read = read
        self._bounds = bounds

    # --- Submitting ---

    async def prepare(
        self, principal: Principal, draft: JobDraft, body: bytes, at: ObjectSlice | None = None
    ) -> NewJob:
        """The job of a request whose body is JSON. ``at`` is where the body lies; None: it will lie in an
        object of its own, which :meth:`submit` writes.

        Nothing is stored, and only long bodies are waited for: for many lines of a file this is called for
        each, in slices. Raises RequestError for what the key may not ask for, or nobody could answer.
        """
        job_id = new_job_id()
        asked = await self._read(job_id, principal, draft.path, draft.headers, body, draft.terms.tier)
        return self.job_of(job_id, asked, draft.terms, at)

    def job_of(
        self, job_id: str, asked: JobRequest, terms: JobTerms, at: ObjectSlice | None = None
    ) -> NewJob:
        """:meth:`prepare` for a request that was understood already."""
        request, estimate = asked.request, self.outlook.estimate(asked.request)
        deadline_s = self.wall() + DEADLINE_S if terms.deadline_s is None else terms.deadline_s
        return NewJob(
            job_id,
            request.principal.tenant,
            request.principal.key_id,
            request.model,
            asked.path,
            at or ObjectSlice(body_name(job_id)),
            asked.headers,
            request.tier.value,
            deadline_s,
            0.0,
            terms.group,
            terms.custom_id,
            terms.webhook,
            estimate.seconds,
            estimate.cost,
            terms.metadata,
        )

    async def submit(
        self,
        tenant: str,
        jobs: Sequence[NewJob],
        bodies: Mapping[str, Body] | None = None,
        *,
        key: str | None = None,
        fingerprint: Callable[[], bytes] = bytes,
        origin: QueueOrigin | None = None,
        lease: NewLease | None = None,
    ) -> tuple[str, ...]:
        """All of them, or none; their ids. Where the same was submitted with the same idempotency ``key``
        before, the ids are those of then. ``bodies``: by the ids of jobs whose bodies are to be written.
        ``fingerprint`` gives what two of one key have in common; it is asked when the bodies are written.
        ``origin``: the message of a queue that the one job was made of. ``lease``: who runs them already.

        Raises TooManyJobs, ResultsFull, IdempotencyConflict, and whatever ``bodies`` raise.
        """
        written = bodies or {}
        try:
            await self._write(written)
        except BaseException:
            await asyncio.shield(self._remove(written))
            raise
        said = b"" if key is None else fingerprint()
        submission = Submission(tenant, tuple(jobs), key, said, origin, lease)
        inserting = asyncio.ensure_future(self._insert(submission, written))
        try:
            return await asyncio.shield(inserting)
        except asyncio.CancelledError:  # the thread that inserts goes on: its end says what is to be removed
            await asyncio.wait([inserting])
            raise

    async def _write(self, bodies: Mapping[str, Body]) -> None:
        if not bodies:
            return
        objects, todo = await self._objects(), list(bodies.items())
        try:
            for at in range(0, len(todo), _WRITTEN_AT_ONCE):
                async with asyncio.TaskGroup() as tasks:
                    for job_id, body in todo[at : at + _WRITTEN_AT_ONCE]:
                        tasks.create_task(_put(objects, body_name(job_id), body))
        except ExceptionGroup as group:
            raise (group.subgroup(ObjectStorageFull) or group).exceptions[0] from None

    async def _insert(self, submission: Submission, bodies: Collection[str]) -> tuple[str, ...]:
        try:
            full = await self.kept.full(submission.tenant)
            made = await asyncio.to_thread(self._jobs.submit, submission, self._bounds, self.wall(), full)
        except StateUnreachable:  # they may have been inserted
            self._runs.wake()
            raise
        except BaseException:
            await self._remove(bodies)
            raise
        self._runs.wake()
        if set(made).isdisjoint(bodies):
            await self._remove(bodies)
        return made

    async def _remove(self, bodies: Collection[str]) -> None:
        if not bodies:
            return
        try:
            await (await self._objects()).delete(*map(body_name, bodies))
        except StateError as error:
            _log.warning("job_bodies_not_removed", jobs=len(bodies), error=str(error))

    # --- Looking, and changing ---

    async def get(self, job_id: str, tenant: str | None) -> JobRecord:
        """Raises UnknownRecord."""
        return await asyncio.to_thread(self._jobs.get, job_id, tenant)

    async def preview(self, job: JobRecord) -> Preview | None:
        """What there is so far of its answer, where it runs and its engine has shown it."""
        if not job.previews or job.state is not JobState.RUNNING:
            return None
        return await asyncio.to_thread(self._jobs.preview, job.id)

    async def get_many(self, ids: Sequence[str], tenant: str) -> tuple[JobRecord, ...]:
        """Those there are, in this order."""
        found = await asyncio.to_thread(self._jobs.get_many, ids, tenant)
        return tuple(found[job_id] for job_id in ids if job_id in found)

    async def list(
        self,
        tenant: str | None,
        *,
        key_id: str | None = None,
        model: str | None = None,
        group: str | None = None,
        prefix: str | None = None,
        states: Collection[JobState] = (),
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> tuple[JobRecord, ...]:
        """``tenant``: None for all; ``key_id``: only those that this key submitted; ``prefix``: those whose
        ids begin so. Raises UnknownRecord for an ``after`` that the tenant does not have."""

        def read() -> tuple[JobRecord, ...]:
            return self._jobs.list(
                tenant=tenant,
                key_id=key_id,
                model=model,
                group=group,
                prefix=prefix,
                states=states,
                after=after,
                limit=limit,
                newest_first=newest_first,
            )

        return await asyncio.to_thread(read)

    async def cancel(self, job_id: str, tenant: str | None) -> JobRecord:
        """One that runs ends soon; one that has ended stays as it is. Raises UnknownRecord."""
        now_s = self.wall()
        job = await asyncio.to_thread(self._jobs.cancel, job_id, now_s, now_s + self._kept_s, tenant)
        self._runs.cancel(job_id)
        return job

    async def remove(self, job_id: str, tenant: str) -> None:
        """Take away one that has ended, with all it has. Raises UnknownRecord; RecordError where it has not
        ended."""
        await asyncio.to_thread(self._jobs.remove, job_id, tenant)
        try:
            objects = await self._objects()
            await objects.delete(*await objects.names(job_prefix(job_id)))
        except StateError as error:  # they are found when orphans are looked for
            _log.warning("job_objects_not_removed", error=str(error))

    async def retry(self, job_id: str, tenant: str | None) -> JobRecord:
        """Queue a failed one again. Raises UnknownRecord; RecordError where it has not failed."""
        job = await asyncio.to_thread(self._jobs.retry, job_id, tenant)
        self._runs.wake()
        return job

    async def result(self, job: JobRecord, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """The body of its answer from ``start`` up to ``stop`` (None: its end), in pieces. Raises
        ObjectMissing where it is gone."""
        if job.outcome is not None and job.outcome.result is not None:
            async for piece in (await self._objects()).read(job.outcome.result, start, stop):
                yield piece

    async def response_end(self, job: JobRecord) -> Mapping[str, Any] | None:
        """Of one that is a background response: :func:`gateway.jobs.responses.response_end`. Raises
        ObjectMissing where its result is gone."""
        return None if job.outcome is None else await response_end(await self._objects(), job.outcome)

    async def body(self, job: JobRecord, most_bytes: int) -> bytes | None:
        """Of its request; None for one that is longer, or that is gone."""
        at, objects = job.new.body, await self._objects()
        try:
            stop = await objects.size_bytes(at.name) if at.stop is None else at.stop
            if stop - at.start > most_bytes:
                return None
            return b"".join([piece async for piece in objects.read(at.name, at.start, stop)])
        except ObjectMissing:
            return None

    async def body_pieces(self, job: JobRecord, most_bytes: int | None = None) -> AsyncIterator[bytes]:
        """The body of its request, or its first ``most_bytes``. Raises ObjectMissing where it is gone."""
        at = job.new.body
        stop = at.stop
        if most_bytes is not None:
            stop = at.start + most_bytes if stop is None else min(stop, at.start + most_bytes)
        async for piece in (await self._objects()).read(at.name, at.start, stop):
            yield piece

    async def completions(self, jobs: Sequence[JobRecord]) -> dict[str, float]:
        """When those of the jobs that have not ended will be done, as far as that can be predicted, in
        seconds since 1970, by id. One that runs is judged by its own progress; one that waits by the jobs of
        its model before it, which the fleet runs side by side in all the slots it has now."""
        now_s = self.wall()
        found = {job.id: at_s for job in jobs if (at_s := running_until_s(job, now_s)) is not None}
        waiting: dict[str, list[JobRecord]] = {}
        for job in jobs:
            if job.state is JobState.QUEUED and job.new.predicted_s is not None:
                waiting.setdefault(job.new.model, []).append(job)
        for model, queued in waiting.items():
            slots = self.outlook.slots(model)
            if slots:
                numbers = [job.number for job in queued]
                work = await asyncio.to_thread(self._jobs.ahead, model, numbers, now_s)
                found |= waiting_until_s(queued, work, slots, now_s)
        return found

    async def forget_keys(self) -> None:
        """Forget idempotency keys that are too old."""
        await asyncio.to_thread(self._jobs.forget_submissions, self.wall() - KEYS_KEPT_S)

    async def keep_forgetting(self) -> None:
        """Forget old idempotency keys every ten minutes until this is cancelled."""
        while True:
            try:
                await self.forget_keys()
            except StateError as error:
                _log.warning("idempotency_keys_not_forgotten", error=str(error))
            await asyncio.sleep(_FORGOTTEN_EVERY_S)


def check_lasting(principal: Principal) -> None:
    """Raises Forbidden for who cannot have jobs: the holder of a token, which would be over when they run."""
    if not principal.lasting:
        raise Forbidden(
            "Jobs and batches need an API key of this gateway: they run in the name of whoever submits them, "
            "long after a token has ended.",
            code="api_key_needed",
        )


def new_job_id() -> str:
    return f"job-{secrets.token_hex(12)}"


async def _put(objects: "ObjectStore", name: str, body: Body) -> None:
    if isinstance(body, bytes):
        await objects.put_bytes(name, body)
    else:
        await objects.put(name, body)
