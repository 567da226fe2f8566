"""Jobs in a store, and runners on it whose engine the test plays."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gateway.domain.jobs import JobRecord, JobState, NewJob, ObjectSlice
from gateway.domain.running_clock import running_s
from gateway.jobs.ends import EndSettings, JobEnds
from gateway.jobs.fleet_room import FleetRoom
from gateway.jobs.object_names import body_name, job_prefix
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import AnswerHead, OutputSettings
from gateway.jobs.runner import JobRunner
from gateway.jobs.runner_settings import RunnerSettings
from gateway.jobs.runs import JobAnswer, JobRun, RetrySettings
from gateway.storage import Store
from gateway.storage.jobs import JobBounds, Submission
from gateway.storage.objects import ObjectStore

FAST = RunnerSettings(
    lease_s=600.0,
    poll_s=0.01,
    busy_poll_s=0.01,
    gap_s=0.0,
    retry=RetrySettings(attempts=3, first_s=0.0),
    output=OutputSettings(interval_s=0.001),
)


HEAD = AnswerHead(200, (("content-type", "text/event-stream"),))


class AnyRoom(FleetRoom):
    """As much as is wanted."""

    def __init__(self) -> None:
        self.free = 100

    def most(self, name: str, pending: int) -> int:
        return self.free - pending


class Shop:
    """A store with jobs, and runners on it whose engine is ``engine``."""

    def __init__(self, directory: Path) -> None:
        self.store = Store.open(directory / "state")
        self.objects = ObjectStore.in_directory(directory / "objects")
        self.opener = ObjectOpener(lambda: self.objects)
        self.engine: Callable[[JobRun], object] = self.answer
        self.runs: Counter[str] = Counter()
        self.room = AnyRoom()
        self.now_s = 1_800_000_000.0
        self._made = 0
        self._tasks: list[tuple[JobRunner, asyncio.Task[None]]] = []

    async def answer(self, run: JobRun) -> JobAnswer:
        await run.output.begin(HEAD)
        await run.output.append(b"answer to " + run.job.id.encode())
        return JobAnswer(200, HEAD.headers)

    async def _run(self, run: JobRun) -> JobAnswer:
        self.runs[run.job.id] += 1
        run.answering()
        found = self.engine(run)
        assert asyncio.iscoroutine(found)
        answer: JobAnswer = await found
        return answer

    def start(
        self,
        name: str = "p",
        incarnation: int = 1,
        settings: RunnerSettings = FAST,
        clock: Callable[[], float] = running_s,
    ) -> JobRunner:
        claims, wall = self.store.job_claims, lambda: self.now_s
        ends = JobEnds(claims, self.store.jobs, self.opener, EndSettings(kept_s=100.0), wall)
        process = (name, incarnation)
        runner = JobRunner(
            claims, self.opener, self.room, self._run, ends, process, settings, clock=clock, wall=wall
        )
        self._tasks.append((runner, asyncio.create_task(runner.run())))
        return runner

    async def stop(self, runner: JobRunner) -> None:
        task = next(task for each, task in self._tasks if each is runner)
        runner.stop()
        async with asyncio.timeout(60):
            await task

    async def close(self) -> None:
        for runner, task in self._tasks:
            runner.stop()
            async with asyncio.timeout(60):
                await asyncio.wait({task})
            if not task.cancelled():
                task.result()
        self.store.close()

    async def submit(self, **given: object) -> str:
        self._made += 1
        job_id = f"job-{self._made}"
        await self.objects.put_bytes(body_name(job_id), b"{}")
        job = NewJob(job_id, "t", "k", "m", "/v1/completions", ObjectSlice(body_name(job_id)))
        job = replace(job, **given)  # type: ignore[arg-type]
        self.store.jobs.submit(Submission("t", (job,)), JobBounds(), self.now_s)
        return job_id

    async def until(self, job_id: str, *states: JobState) -> JobRecord:
        async def there() -> bool:
            return self.store.jobs.get(job_id).state in states

        await until(there)
        return self.store.jobs.get(job_id)

    async def has_a_piece(self, job_id: str) -> bool:
        """Whether something of the answer is kept: its head, which comes first, and a piece."""
        return len(await self.objects.names(f"{job_prefix(job_id)}/output")) > 1

    async def result(self, job: JobRecord) -> bytes:
        assert job.outcome is not None
        assert job.outcome.result is not None
        return await self.objects.read_bytes(job.outcome.result, 1 << 20)


async def until(condition: Callable[[], object]) -> None:
    deadline_s = asyncio.get_running_loop().time() + 60.0
    while True:
        found = condition()
        if (await found) if asyncio.iscoroutine(found) else found:
            return
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.002)


class Slow:
    """An engine that writes the front part of an answer, then nothing."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    async def __call__(self, run: JobRun) -> JobAnswer:
        kept = 0 if run.kept is None else run.kept.size_bytes
        self.kept.append(kept)
        await run.output.begin(HEAD, run.kept)
        if not kept:
            await run.output.append(b"front part, ")
            await asyncio.Event().wait()
        await run.output.append(b"and the rest")
        return JobAnswer(200, HEAD.headers)
