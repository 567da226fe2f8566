"""Runs the jobs of the store: claims them as the fleet has room, keeps their leases, publishes how they end.

Any number of processes may do so with one store. A job belongs to whoever claimed it last; publishing and
giving back are compare-and-set on its lease, so what a process does that was frozen meanwhile counts nowhere.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import structlog

from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewLease
from gateway.domain.running_clock import running_s
from gateway.jobs.budget_waits import BudgetWaits
from gateway.jobs.ends import JobEnds
from gateway.jobs.fleet_room import FleetRoom
from gateway.jobs.leases import RunEnd, RunningJob, RunningJobs
from gateway.jobs.live_answer import FollowRun, followed_by_nobody
from gateway.jobs.metrics import JobMetrics
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import PartialOutput
from gateway.jobs.output_reader import OutputReader
from gateway.jobs.runner_settings import RunnerSettings
from gateway.jobs.runs import (
    EXPECTED,
    EXPIRED,
    JobAnswer,
    JobRun,
    Publish,
    RunJob,
    TryAgain,
    Verdict,
    log_fields,
    verdict,
)
from gateway.storage.errors import StateError
from gateway.storage.jobs import JobClaim, JobClaims

_log = structlog.get_logger(__name__)

LOST_ATTEMPTS = 3
"""So many times the attempts of other failures are those that end without a word: gateways are restarted."""


class JobRunner:
    """Of one process. Belongs to the event loop's thread."""

    def __init__(
        self,
        claims: JobClaims,
        objects: ObjectOpener,
        room: FleetRoom,
        run: RunJob,
        ends: JobEnds,
        process: tuple[str, int],
        settings: RunnerSettings,
        *,
        weights: Callable[[], Mapping[str, float]] = dict,
        metrics: JobMetrics | None = None,
        clock: Callable[[], float] = running_s,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``process`` is its name and its incarnation; ``weights`` gives those of tenants."""
        self.settings = settings
        self.metrics = metrics or JobMetrics()
        self.running = RunningJobs(clock, settings.lease_s)
        self._claims = claims
        self._objects = objects
        self._reader = OutputReader(objects)
        self._room = room
        self._run = run
        self._ends = ends
        self._process, self._incarnation = process
        self._weights = weights
        self._clock = clock
        self._wall = wall
        self._jitter = jitter
        self.follow: FollowRun = followed_by_nobody
        """Who passes on answers while they are written."""
        self._woken = asyncio.Event()
        self._look = True  # the store may have jobs that it did not say last
        self._stopping = asyncio.Event()
        self._waiting: Mapping[str, int] = {}
        """As the store said last, by model."""
        self._failing = False
        self._budget_waits = BudgetWaits(clock)
        self._runs: asyncio.TaskGroup | None = None
        """Of all runs, while there may be new ones."""

    # --- From others ---

    def wake(self) -> None:
        """Jobs were submitted in this process, or another one has said so."""
        self._look = True
        self._woken.set()

    def slots_free(self, model: str) -> None:
        """What serves ``model`` has changed, or a slot of it was given back."""
        if self._waiting:
            self._woken.set()

    def cancel(self, job_id: str) -> None:
        """The store has noted that the job is to end: end it at once if it runs here."""
        running = self.running.get(job_id)
        if running is not None:
            running.stop(RunEnd.CANCELLED)

    def cancel_group(self, group: str) -> None:
        """The same of all jobs of a group."""
        for running in self.running:
            if running.job.new.group == group:
                running.stop(RunEnd.CANCELLED)

    def stop(self) -> None:
        """Claim nothing more, and give back what runs: :meth:`run` returns soon. Idempotent."""
        self._stopping.set()
        self.wake()
        for each in self.running:
            each.stop(RunEnd.STOPPED)

    # --- Jobs that run here from their submission on ---

    def new_lease(self) -> NewLease | None:
        """For a job that is to be submitted as one that runs here; None: this process begins no more."""
        if self._runs is None or self._stopping.is_set():
            return None
        return NewLease(self._process, self._incarnation, self.settings.lease_s, self._clock())

    async def held_output(self, job_id: str) -> PartialOutput:
        """For what may become a job: nothing is written before :meth:`adopt`, unless it is long."""
        return PartialOutput(await self._objects(), job_id, 1, self.settings.output, held=True)

    def begin(self, job: JobRecord, lease: NewLease) -> asyncio.Task[None] | None:
        """Run a job that was submitted with ``lease``. The task ends with its run; None where this process
        has been stopped meanwhile: the lease ends by itself."""
        running = RunningJob(job)
        return self._take_on(running, lease, self._see_through(running))

    def adopt(
        self, job: JobRecord, lease: NewLease, output: PartialOutput, task: asyncio.Task[JobAnswer]
    ) -> RunningJob:
        """See a job to its end that was submitted with ``lease`` while ``task`` has it answered already, into
        ``output``, which is written out from now on."""
        running = RunningJob(job, answering=True, task=task)
        output.write_out()
        if self._take_on(running, lease, self._see_adopted(running, output)) is None:
            running.stop(RunEnd.LOST)
        return running

    def _take_on(
        self, running: RunningJob, lease: NewLease, run: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None] | None:
        if self._runs is None:
            run.close()
            return None
        self.running.add(running, lease.asked_s)
        if self._stopping.is_set():
            running.stop(RunEnd.STOPPED)
        self._woken.set()
        return self._runs.create_task(run)

    # --- Loops ---

    async def run(self) -> None:
        """Run jobs until :meth:`stop`; then what runs is given back. Cancelling leaves it to the sweep."""
        await self._end_earlier_leases()
        async with asyncio.TaskGroup() as runs:
            self._runs = runs
            swept, kept = runs.create_task(self._keep_swept()), runs.create_task(self._keep_leases())
            timed = runs.create_task(self.running.keep_time(self._wall, self.settings.busy_poll_s))
            while not self._stopping.is_set():
                await self._claim_all(runs)
                await self._pause()
            for each in self.running:  # claimed while it was being stopped
                each.stop(RunEnd.STOPPED)
            swept.cancel()
            await self.running.wait_none()
            self._runs = None
            kept.cancel()
            timed.cancel()

    async def _pause(self) -> None:
        """Until there may be something to claim."""
        busy = self._waiting or self.running
        pause_s = self.settings.busy_poll_s if busy else self.settings.poll_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._woken.wait()
                while not (self._look or any(self._most(model) > 0 for model in self._waiting)):
                    self._woken.clear()
                    await self._woken.wait()
                    await asyncio.sleep(self.settings.gap_s)
        if not self._stopping.is_set():
            await asyncio.sleep(self.settings.gap_s)
        self._woken.clear()
        self._look = False

    def _most(self, model: str) -> int:
        """So many jobs of a model may be claimed."""
        left = self.settings.at_once - len(self.running)
        return min(left, self._room.most(model, self.running.pending(model)))

    async def _claim_all(self, runs: asyncio.TaskGroup) -> None:
        """One look at the store, and a claim for each model that has jobs and room."""
        try:
            self._waiting = await asyncio.to_thread(self._claims.waiting, self._wall())
            self.metrics.queued.set(sum(self._waiting.values()))
            for model in self._waiting:
                if not self._stopping.is_set():
                    await self._claim(runs, model)
            self._failing = False
        except StateError as error:
            if self._fails_anew():
                _log.warning("jobs_not_claimed", error=str(error))

    async def _claim(self, runs: asyncio.TaskGroup, model: str) -> None:
        settings, most = self.settings, self._most(model)
        if most < 1:
            return
        asked_s, now_s = self._clock(), self._wall()
        claim = JobClaim(
            self._process,
            self._incarnation,
            model,
            most,
            settings.lease_s,
            self._weights(),
            settings.tenant_at_once,
            self._budget_waits.tenants,
        )
        for job in (jobs := await asyncio.to_thread(self._claims.claim, claim, now_s)):
            self.metrics.claim_s.observe(max(0.0, now_s - max(job.created_s, job.new.not_before_s)))
            running = RunningJob(job)
            self.running.add(running, asked_s)
            runs.create_task(self._see_through(running))
        self._waiting = Counter(self._waiting) - Counter({model: len(jobs)})

    async def _keep_leases(self) -> None:
        """Renew all leases in one statement, and end what others want to end."""
        renew_s, due_s = self.settings.lease_s / 3.0, 0.0
        while True:
            await asyncio.sleep(min(self.settings.busy_poll_s, renew_s))
            self.metrics.running.set(len(self.running))
            if not self.running.is_busy:
                continue
            try:
                await self.running.note_progress(self._claims.note_progress)
                if self._clock() >= due_s:
                    due_s = self._clock() + renew_s
                    await self._renew()
                else:
                    self._end_cancelled(
                        await asyncio.to_thread(self._claims.cancelling, self._process, self._incarnation)
                    )
                self._failing = False
            except StateError as error:
                if self._fails_anew():
                    _log.warning("job_leases_not_renewed", error=str(error))

    async def _renew(self) -> None:
        asked_s, leases = self._clock(), self.running.leases
        renewed = await asyncio.to_thread(self._claims.renew, leases, self.settings.lease_s)
        self.running.renewed(asked_s)
        for job_id in renewed.lost:
            running = self.running.get(job_id)
            if running is not None and running.lease == leases[job_id]:
                running.stop(RunEnd.LOST)
        self._end_cancelled(renewed.cancelling)

    def _end_cancelled(self, ids: frozenset[str]) -> None:
        for job_id in ids:
            self.cancel(job_id)

    async def _keep_swept(self) -> None:
        """Queue again what others left behind, and remove what is no longer kept."""
        settings, most = self.settings, LOST_ATTEMPTS * self.settings.retry.attempts
        while True:
            try:
                now_s = self._wall()
                kept_until_s = now_s + self._ends.kept_s
                if await asyncio.to_thread(self._claims.sweep, now_s, kept_until_s, settings.lease_s, most):
                    self.wake()
                await self._ends.sweep()
                self._failing = False
            except StateError as error:
                if self._fails_anew():
                    _log.warning("jobs_not_swept", error=str(error))
            await asyncio.sleep(min(10.0, settings.lease_s / 2.0))

    async def _end_earlier_leases(self) -> None:
        """A process of this name that ended without giving its jobs back is no more."""
        try:
            ended = await asyncio.to_thread(self._claims.end_leases_of, self._process, self._incarnation)
        except StateError as error:
            if self._fails_anew():
                _log.warning("jobs_not_swept", error=str(error))
        else:
            if ended:
                _log.info("jobs_left_behind", jobs=ended)

    # --- One job ---

    async def _see_through(self, running: RunningJob) -> None:
        """From its claim until it is published, given back or another one's."""
        await self._until_ended(running, self._run_once(running))

    async def _see_adopted(self, running: RunningJob, output: PartialOutput) -> None:
        """The same of one that is answered already."""
        await self._until_ended(running, self._follow(running, output))

    async def _until_ended(self, running: RunningJob, run: Awaitable[None]) -> None:
        try:
            await run
        except Exception as error:  # its lease ends, and it is tried again
            _log.error("job_failed_here", job=running.job.id, exc_info=error)
        finally:
            self.running.remove(running)
            self.wake()  # it may be queued again

    async def _run_once(self, running: RunningJob) -> None:
        job, follower = running.job, self.follow(running.job)
        try:
            objects = await self._objects()
            output = PartialOutput(objects, job.id, running.lease.generation, self.settings.output, follower)
            running.task = asyncio.create_task(self._answer(running, output))
            await self._follow(running, output)
        finally:
            if follower is not None:
                follower.end()

    async def _follow(self, running: RunningJob, output: PartialOutput) -> None:
        """Wait for its answer, and tell the store of it."""
        task = running.task
        assert task is not None
        async with output:
            if running.end is not None:
                task.cancel()
            await asyncio.wait({task})
            running.task = None
            ended: JobAnswer | Exception | None = None
            if not task.cancelled():
                error = task.exception()
                ended = error if isinstance(error, Exception) else task.result()
            await self._end(running, output, ended)

    async def _answer(self, running: RunningJob, output: PartialOutput) -> JobAnswer:
        kept = await self._reader.progress(running.job.id) if running.lease.generation > 1 else None

        def answering() -> None:
            running.answering = True
            self._woken.set()

        run = JobRun(running.job, output, kept, answering, running.tell, lambda: running.given_up)
        return await self._run(run)

    async def _end(
        self, running: RunningJob, output: PartialOutput, ended: JobAnswer | Exception | None
    ) -> None:
        """Tell the store what became of the run; ``ended`` is None where it was ended from here."""
        job, end = running.job, running.end
        if end is RunEnd.LOST:
            self.metrics.attempts("lost")
            await output.abandon()
            return
        if end is RunEnd.CANCELLED and not isinstance(ended, JobAnswer):
            result: Verdict = Publish(JobOutcome(JobState.CANCELLED))
        elif end is RunEnd.EXPIRED and not isinstance(ended, JobAnswer):
            result = Publish(JobOutcome(JobState.EXPIRED, error=EXPIRED))
        elif ended is None or (end is RunEnd.STOPPED and not isinstance(ended, JobAnswer)):
            result = TryAgain(0.0, counts=False, why="stopped")
        else:
            if isinstance(ended, Exception) and not isinstance(ended, EXPECTED):
                _log.error("job_run_failed", job=job.id, exc_info=ended)
            result = verdict(job, ended, self.settings.retry, self._wall(), self._jitter)
        self._note(job, result)
        if isinstance(result, Publish):
            await self._ends.publish(running, output, result)
        else:
            await self._ends.give_back(running, output, result)

    def _note(self, job: JobRecord, result: Verdict) -> None:
        self._budget_waits.note(job.new.tenant, result)
        if isinstance(result, Publish):
            self.metrics.attempts("ended")
            self.metrics.ended(result.outcome.state.value)
        else:
            self.metrics.attempts("tried_again" if result.counts else "waits")
        event, fields = log_fields(job, result)
        _log.info(event, **fields)

    def _fails_anew(self) -> bool:
        """The store does not answer. Whether it is to be told: once, until it answers again."""
        anew, self._failing = not self._failing, True
        return anew
