"""Jobs of the store are run: claimed, kept, published once, and given back when their process stops."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.domain.errors import BadRequest, NoDeployment, QuotaExceeded, RateLimited
from gateway.domain.jobs import JobRecord, JobState
from gateway.jobs.ends import JobEnds
from gateway.jobs.object_names import job_prefix
from gateway.jobs.runs import JobAnswer, JobRun
from gateway.storage.errors import StateUnreachable
from tests.gateway.jobs.shop import FAST, Shop, until
from tests.support.clock import ManualClock


async def test_a_job_runs_and_its_result_is_published(shop: Shop) -> None:
    job_id = await shop.submit()
    shop.start()
    job = await shop.until(job_id, JobState.SUCCEEDED)
    assert await shop.result(job) == b"answer to job-1"
    assert job.attempts == 1
    assert shop.runs[job_id] == 1


async def test_a_result_stays_though_the_store_keeps_it_and_does_not_say_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, asked = shop.store.job_claims.publish, list[bool]()

    def publish_unheard(*given: Any) -> bool:
        asked.append(publish(*given))
        if len(asked) == 1:
            raise StateUnreachable("it went away")
        return asked[-1]

    monkeypatch.setattr(shop.store.job_claims, "publish", publish_unheard)
    job_id = await shop.submit()
    runner = shop.start()
    job = await shop.until(job_id, JobState.SUCCEEDED)
    await until(lambda: not len(runner.running))
    assert asked == [True, False]
    assert await shop.result(job) == b"answer to job-1"


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
