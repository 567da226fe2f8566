"""Jobs of the store are run: claimed, kept, published once, and given back when their process stops."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.domain.errors import BadRequest, NoDeployment, QuotaExceeded, RateLimited, StreamBroken
from gateway.domain.jobs import JobLease, JobRecord, JobState, NewJob, ObjectSlice
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
from gateway.storage.jobs import JobBounds, RenewedLeases, Submission
from gateway.storage.objects import ObjectStore
from shared.protocol.errors import ErrorCode
from tests.support.clock import ManualClock

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


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    await shop.close()


async def test_a_job_runs_and_its_result_is_published(shop: Shop) -> None:
    job_id = await shop.submit()
    shop.start()
    job = await shop.until(job_id, JobState.SUCCEEDED)
    assert await shop.result(job) == b"answer to job-1"
    assert job.attempts == 1
    assert shop.runs[job_id] == 1


async def test_who_follows_a_run_hears_of_its_end_when_the_store_has_it(shop: Shop) -> None:
    heard: list[object] = []

    class Follower:
        def __init__(self, job: JobRecord) -> None:
            self.job = job

        def begin(self, since: int, offset: int) -> None:
            heard.append((since, offset))

        def append(self, data: bytes) -> None:
            heard.append(data)

        def stored(self, offset: int) -> None:
            heard.append(offset)

        def end(self) -> None:
            heard.append(shop.store.jobs.get(self.job.id).state)

    first, second = await shop.submit(), await shop.submit(not_before_s=shop.now_s + 3600)
    runner = shop.start()
    runner.follow = Follower
    await until(lambda: JobState.SUCCEEDED in heard)
    assert heard == [(1, 0), f"answer to {first}".encode(), JobState.SUCCEEDED]
    heard.clear()

    async def fail(run: JobRun) -> JobAnswer:
        raise NoDeployment("m")

    shop.engine = fail
    shop.now_s += 3600
    runner.wake()
    await until(lambda: heard)
    assert heard == [JobState.QUEUED], second


async def test_many_jobs_on_two_runners_run_once_each(shop: Shop) -> None:
    ids = [await shop.submit() for _ in range(30)]
    shop.room.free = 3
    shop.start("p")
    shop.start("q")
    for job_id in ids:
        job = await shop.until(job_id, JobState.SUCCEEDED)
        assert await shop.result(job) == f"answer to {job_id}".encode()
    assert set(shop.runs.values()) == {1}


async def test_a_job_that_fails_is_tried_again_and_then_given_up(shop: Shop) -> None:
    async def refuse(run: JobRun) -> JobAnswer:
        return JobAnswer(503, (), b"no")

    shop.engine = refuse
    job_id = await shop.submit()
    shop.start()
    job = await shop.until(job_id, JobState.FAILED)
    assert (shop.runs[job_id], job.attempts) == (3, 3)
    assert job.outcome is not None
    assert job.outcome.error is not None
    assert job.outcome.error["message"] == "no"


async def test_a_refusal_of_the_gateway_ends_a_job_at_once(shop: Shop) -> None:
    async def refuse(run: JobRun) -> JobAnswer:
        raise BadRequest("no such thing")

    shop.engine = refuse
    job_id = await shop.submit()
    shop.start()
    job = await shop.until(job_id, JobState.FAILED)
    assert shop.runs[job_id] == 1
    assert job.outcome is not None
    assert job.outcome.status == 400


@pytest.mark.parametrize("error", [NoDeployment("gone"), RateLimited("a minute's worth", kind="requests")])
async def test_waiting_is_no_attempt(shop: Shop, error: Exception) -> None:
    async def refuse(run: JobRun) -> JobAnswer:
        raise error

    shop.engine = refuse
    job_id = await shop.submit()
    shop.start()
    for waits in range(1, 6):
        await until(lambda waits=waits: shop.runs[job_id] == waits)  # type: ignore[misc]
        job = await shop.until(job_id, JobState.QUEUED)
        assert job.attempts == 0
        assert job.new.not_before_s > shop.now_s
        shop.now_s = job.new.not_before_s
    shop.engine = shop.answer
    shop.now_s += 100.0
    await shop.until(job_id, JobState.SUCCEEDED)


async def test_jobs_of_models_without_room_stay_in_the_store(shop: Shop) -> None:
    shop.room.free = 0
    job_id = await shop.submit()
    runner = shop.start()
    await until(lambda: runner.metrics.queued._value.get() == 1)
    assert shop.store.jobs.get(job_id).state is JobState.QUEUED
    shop.room.free = 1
    runner.slots_free("m")
    await shop.until(job_id, JobState.SUCCEEDED)


async def test_the_store_is_asked_for_jobs_only_when_there_is_room_for_them(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, waiting = 0, shop.store.job_claims.waiting

    def count(now_s: float) -> dict[str, int]:
        nonlocal asked
        asked += 1
        return waiting(now_s)

    monkeypatch.setattr(shop.store.job_claims, "waiting", count)
    shop.room.free = 0
    job_id = await shop.submit()
    runner = shop.start(settings=replace(FAST, poll_s=600.0, busy_poll_s=600.0))
    await until(lambda: runner.metrics.queued._value.get() == 1)
    before = asked
    for _ in range(20):  # one would be asked for each if there were room
        runner.slots_free("m")
        await asyncio.sleep(0.01)
    shop.room.free = 1
    runner.slots_free("m")
    await shop.until(job_id, JobState.SUCCEEDED)
    assert asked <= before + 4  # as there was room, as the run had ended, and as sweeps found something


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


async def test_a_stopped_process_gives_its_jobs_back_with_what_they_have(shop: Shop) -> None:
    shop.engine = slow = Slow()
    job_id = await shop.submit()
    first = shop.start("p")
    await until(lambda: slow.kept)
    await until(lambda: shop.objects.names(f"{job_prefix(job_id)}/output"))
    await shop.stop(first)
    job = shop.store.jobs.get(job_id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)
    shop.start("q")
    job = await shop.until(job_id, JobState.SUCCEEDED)
    assert await shop.result(job) == b"front part, and the rest"
    assert slow.kept == [0, len(b"front part, ")]

    async def is_tidy() -> bool:
        return len(await shop.objects.names(job_prefix(job_id))) == 2

    await until(is_tidy)


async def test_a_process_that_died_is_followed_by_its_next_incarnation(shop: Shop) -> None:
    shop.engine = slow = Slow()
    job_id = await shop.submit()
    shop.start("p", 1)
    await until(lambda: slow.kept)
    await until(lambda: shop.objects.names(f"{job_prefix(job_id)}/output"))
    shop.start("p", 2)  # while the first one hangs, as far as anybody can tell
    job = await shop.until(job_id, JobState.SUCCEEDED)
    assert await shop.result(job) == b"front part, and the rest"
    assert job.attempts == 2


async def test_a_process_that_takes_a_job_again_whose_lease_it_lost_ends_its_earlier_run(shop: Shop) -> None:
    shop.engine = slow = Slow()
    job_id = await shop.submit()
    runner = shop.start("p", 1)
    await until(lambda: slow.kept)
    await until(lambda: shop.objects.names(f"{job_prefix(job_id)}/output"))
    assert shop.store.job_claims.end_leases_of("p", 2) == 1
    shop.store.job_claims.sweep(shop.now_s, shop.now_s, FAST.lease_s, 9)  # as another process may do
    job = await shop.until(job_id, JobState.SUCCEEDED)
    assert await shop.result(job) == b"front part, and the rest"
    await shop.stop(runner)  # which waits for every run


async def test_a_run_whose_lease_is_lost_publishes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, renewed, renew = asyncio.Event(), threading.Event(), shop.store.job_claims.renew

    def noted(leases: Mapping[str, JobLease], lease_s: float) -> RenewedLeases:
        found = renew(leases, lease_s)
        renewed.set()
        return found

    monkeypatch.setattr(shop.store.job_claims, "renew", noted)

    async def hangs_first(run: JobRun) -> JobAnswer:
        if shop.runs[run.job.id] == 1:
            await go.wait()
        return await shop.answer(run)

    shop.engine = hangs_first
    job_id = await shop.submit()
    shop.start("p", 1, replace(FAST, lease_s=600.0))
    await until(lambda: shop.runs[job_id] == 1)
    await until(renewed.is_set)  # it renews at once, then not for long: else it would keep what the next ends
    shop.start("p", 2)
    job = await shop.until(job_id, JobState.SUCCEEDED)
    go.set()
    await until(lambda: shop.runs[job_id] == 2)
    assert await shop.result(job) == b"answer to job-1"
    assert shop.store.jobs.get(job_id).outcome == job.outcome


async def test_jobs_wait_for_a_budget_that_is_reserved_without_being_tried_in_turn(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, done, waiting = 0, asyncio.Event(), shop.store.job_claims.waiting
    clock = ManualClock(0.0)

    def noted(now_s: float) -> dict[str, int]:
        nonlocal looks
        looks += 1
        return waiting(now_s)

    async def reserves(run: JobRun) -> JobAnswer:
        if run.job.id == ids[0]:
            await done.wait()
        elif not done.is_set():
            raise QuotaExceeded("another one has reserved it", passing=True)
        return await shop.answer(run)

    monkeypatch.setattr(shop.store.job_claims, "waiting", noted)
    shop.engine, shop.room.free = reserves, 3
    ids = [await shop.submit() for _ in range(20)]
    shop.start(clock=clock)
    await until(lambda: len(shop.runs) == 3)
    looks = 0
    await until(lambda: looks > 5)
    assert sum(shop.runs.values()) == 3, "the others have not begun"
    clock.advance(3.0)
    await until(lambda: len(shop.runs) > 3)
    done.set()

    def all_ended() -> bool:
        clock.advance(0.02)  # one that was refused before may be noted after the first has ended
        shop.now_s += 0.02
        return all(shop.store.jobs.get(each).state is JobState.SUCCEEDED for each in ids)

    await until(all_ended)
    assert {shop.store.jobs.get(each).attempts for each in ids} == {1}


async def test_cancelling_ends_a_run(shop: Shop) -> None:
    shop.engine = slow = Slow()
    job_id = await shop.submit()
    shop.start()
    await until(lambda: slow.kept)
    shop.store.jobs.cancel(job_id, shop.now_s, shop.now_s + 100.0)
    job = await shop.until(job_id, JobState.CANCELLED)
    assert job.outcome is not None
    assert job.outcome.result is None


async def test_a_deadline_ends_a_run(shop: Shop) -> None:
    shop.engine = slow = Slow()
    job_id = await shop.submit(deadline_s=shop.now_s + 10.0)
    shop.start()
    await until(lambda: slow.kept)
    shop.now_s += 11.0
    job = await shop.until(job_id, JobState.EXPIRED)
    assert job.outcome is not None
    assert job.outcome.error is not None
    assert job.outcome.error["code"] == "deadline_exceeded"


async def test_going_on_in_vain_starts_over(shop: Shop) -> None:
    seen: list[bool] = []

    async def breaks(run: JobRun) -> JobAnswer:
        seen.append(run.kept is not None)
        if len(seen) == 3:
            return await shop.answer(run)
        await run.output.begin(HEAD, run.kept)
        if run.kept is None:
            await run.output.append(b"front")
        raise StreamBroken(ErrorCode.ENGINE_FAILED, "it broke")

    shop.engine = breaks
    job_id = await shop.submit()
    shop.start()
    job = await shop.until(job_id, JobState.SUCCEEDED)
    assert seen == [False, True, False]
    assert await shop.result(job) == b"answer to job-1"


async def test_jobs_go_with_all_they_have_when_their_time_is_over(shop: Shop) -> None:
    job_id = await shop.submit()
    await shop.stop(shop.start())
    runner = shop.start("q")
    await shop.until(job_id, JobState.SUCCEEDED)
    await shop.stop(runner)
    shop.now_s += 101.0
    ends = JobEnds(shop.store.job_claims, shop.store.jobs, shop.opener, wall=lambda: shop.now_s)
    await ends.sweep()
    assert shop.store.jobs.get_many([job_id]) == {}
    assert await shop.objects.names(job_prefix(job_id)) == []
