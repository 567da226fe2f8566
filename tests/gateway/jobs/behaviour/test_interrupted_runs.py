"""Runs that end before their answer does: a process stops or dies, a lease is lost, somebody cancels."""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest

from gateway.domain.errors import StreamBroken
from gateway.domain.jobs import JobLease, JobState
from gateway.jobs.object_names import job_prefix
from gateway.jobs.runs import JobAnswer, JobRun
from gateway.storage.jobs import RenewedLeases
from shared.protocol.errors import ErrorCode
from tests.gateway.jobs.shop import FAST, HEAD, Shop, Slow, until


async def test_a_stopped_process_gives_its_jobs_back_with_what_they_have(shop: Shop) -> None:
    shop.engine = slow = Slow()
    job_id = await shop.submit()
    first = shop.start("p")
    await until(lambda: slow.kept)
    await until(lambda: shop.has_a_piece(job_id))
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
    await until(lambda: shop.has_a_piece(job_id))
    shop.start("p", 2)  # while the first one hangs, as far as anybody can tell
    job = await shop.until(job_id, JobState.SUCCEEDED)
    assert await shop.result(job) == b"front part, and the rest"
    assert job.attempts == 2


async def test_a_process_that_takes_a_job_again_whose_lease_it_lost_ends_its_earlier_run(shop: Shop) -> None:
    shop.engine = slow = Slow()
    job_id = await shop.submit()
    runner = shop.start("p", 1)
    await until(lambda: slow.kept)
    await until(lambda: shop.has_a_piece(job_id))
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
