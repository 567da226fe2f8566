"""How runs of jobs end: their result becomes the job's, or the job is queued again; and when all that a job
has is removed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from gateway.domain.jobs import JobOutcome, JobRecord, JobState
from gateway.domain.webhooks import RESPONSE_ID
from gateway.jobs.leases import RunningJob
from gateway.jobs.object_names import JOBS, job_prefix, output_prefix
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import PartialOutput
from gateway.jobs.responses import end_event, response_end
from gateway.jobs.runs import Publish, TryAgain
from gateway.storage.errors import ObjectMissing, StateError
from gateway.storage.jobs import JobClaims, JobStore

T = TypeVar("T")

_log = structlog.get_logger(__name__)

DAY_S = 86_400.0
REMOVED_AT_ONCE = 200

ORPHANS_S = 6 * 3600.0
"""Between two searches for objects of jobs that are no more."""

ORPHAN_AGE_S = DAY_S
"""Younger objects may be of a job that is just being submitted."""

_RETRY_S = (0.5, 10.0)
"""Before the store is asked again to keep how a job ended: at first, and at most."""


@dataclass(frozen=True, slots=True)
class EndSettings:
    """How long what is kept."""

    kept_s: float = 30 * DAY_S
    """Jobs that have ended, with their results."""


class JobEnds:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        claims: JobClaims,
        jobs: JobStore,
        objects: ObjectOpener,
        settings: EndSettings = EndSettings(),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.kept_s = settings.kept_s
        self._claims = claims
        self._jobs = jobs
        self._objects = objects
        self._wall = wall
        self.on_ended: Callable[[JobRecord, JobOutcome], None] = lambda job, outcome: None
        """Told of each job whose end is kept, as it was when its last run began."""
        self._orphans_due_s = wall() + ORPHANS_S / 12
        """Not while everything starts."""

    async def publish(self, running: RunningJob, output: PartialOutput, end: Publish) -> bool:
        """The job has ended so. False: it is another run's by now, or this process stops and the store does
        not answer."""
        job, outcome, result = running.job, end.outcome, None
        if end.with_result:
            result = await self._kept_trying(running, output.finish)
            if result is None:
                return False
            outcome = replace(outcome, result=result[0], result_bytes=result[1])
            if job.id.startswith(RESPONSE_ID) and outcome.state is JobState.SUCCEEDED:
                event = await self._kept_trying(running, partial(self._event, outcome))
                if event is None:
                    return False
                outcome = replace(outcome, event=event or None)
        else:
            await output.abandon()
        published = await self._kept_trying(running, lambda: self._publish(running, outcome))
        if published:
            self.on_ended(job, outcome)
            await self._remove(*await self._names(output_prefix(job.id)))
        elif result is not None and published is False:
            await self._remove(result[0])
        return bool(published)

    async def _publish(self, running: RunningJob, outcome: JobOutcome) -> bool:
        now_s = self._wall()
        return await asyncio.to_thread(
            self._claims.publish, running.job.id, running.lease, outcome, now_s, now_s + self.kept_s
        ) or await asyncio.to_thread(self._is_published, running, outcome)

    def _is_published(self, running: RunningJob, outcome: JobOutcome) -> bool:
        """Whether it ended so when the store was asked before, and its answer was lost."""
        job = self._jobs.get_many([running.job.id]).get(running.job.id)
        if job is None or job.outcome is None or job.lease != running.lease:
            return False
        return (job.state, job.outcome.result) == (outcome.state, outcome.result)

    async def _event(self, outcome: JobOutcome) -> str:
        """What tells of a background response that was answered, but not to success; else empty."""
        try:
            return end_event(await response_end(await self._objects(), outcome)) or ""
        except ObjectMissing:  # it is another run's by now
            return ""

    async def give_back(self, running: RunningJob, output: PartialOutput, again: TryAgain) -> bool:
        """Queue the job again; what there is of its answer is kept, unless going on with it led nowhere."""
        job = running.job
        in_vain = again.counts and output.went_on_in_vain
        if in_vain:
            await output.abandon()
            await self._remove(*await self._names(output_prefix(job.id)))
        else:
            await self._kept_trying(running, lambda: _true(output.close()))

        async def give_back() -> bool:
            not_before_s = self._wall() + again.after_s if again.after_s else 0.0
            return await asyncio.to_thread(
                lambda: self._claims.give_back(job.id, running.lease, not_before_s, counts=again.counts)
            )

        return bool(await self._kept_trying(running, give_back))

    async def _kept_trying(self, running: RunningJob, act: Callable[[], Awaitable[T]]) -> T | None:
        """What ``act`` gives, once the store lets it. None: the job is no concern of this process's any
        more."""
        wait_s, most_s = _RETRY_S
        while True:
            try:
                return await act()
            except StateError as error:
                _log.warning("job_end_not_kept", job=running.job.id, error=str(error), retry_s=wait_s)
                if running.given_up:
                    return None
                await asyncio.sleep(wait_s)
                wait_s = min(most_s, 2 * wait_s)

    # --- What is no longer kept ---

    async def sweep(self) -> None:
        """Remove jobs whose time is over, with all they have; now and then, what was left behind. Several
        processes may do so at once. Raises StateError."""
        while True:
            now_s = self._wall()
            removed = await asyncio.to_thread(self._jobs.remove_kept, now_s, REMOVED_AT_ONCE)
            for job in removed:
                await self._remove(*await self._names(job_prefix(job.id)))
            if len(removed) < REMOVED_AT_ONCE:
                break
        if now_s >= self._orphans_due_s:
            self._orphans_due_s = now_s + ORPHANS_S
            await self.remove_orphans()

    async def remove_orphans(self) -> int:
        """Remove objects of jobs that are no more, and partial output of those that have ended: what a crash
        left between two steps. How many. Raises StateError."""
        found: dict[str, list[str]] = {}
        before_s, removed, names = self._wall() - ORPHAN_AGE_S, 0, 0
        async for each in (await self._objects()).each_listed(JOBS):
            job_id = each.name.removeprefix(f"{JOBS}/").partition("/")[0]
            if each.modified_s < before_s:
                found.setdefault(job_id, []).append(each.name)
                names += 1
            if names >= 10 * REMOVED_AT_ONCE:
                removed += await self._remove_orphans(found)
                found, names = {}, 0
        return removed + await self._remove_orphans(found)

    async def _remove_orphans(self, found: dict[str, list[str]]) -> int:
        jobs = await asyncio.to_thread(self._jobs.get_many, list(found))
        names = [name for job_id, its in found.items() for name in its if _is_orphan(name, jobs.get(job_id))]
        await (await self._objects()).delete(*names)
        return len(names)

    async def _names(self, prefix: str) -> list[str]:
        try:
            return list(await (await self._objects()).names(prefix))
        except StateError as error:
            _log.warning("job_objects_not_removed", error=str(error))
            return []

    async def _remove(self, *names: str) -> None:
        """What fails here is found when orphans are looked for."""
        try:
            await (await self._objects()).delete(*names)
        except StateError as error:
            _log.warning("job_objects_not_removed", error=str(error))


def _is_orphan(name: str, job: JobRecord | None) -> bool:
    if job is None:
        return True
    if not job.state.is_final or job.outcome is None:
        return False
    of_run = name.startswith((f"{output_prefix(job.id)}/", f"{job_prefix(job.id)}/result/"))
    return of_run and name != job.outcome.result


async def _true(act: Awaitable[None]) -> bool:
    await act
    return True
