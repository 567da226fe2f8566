"""Lines are never lost and never doubled, wherever whoever works on a batch is killed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.domain.batches import BatchRecord, BatchState
from gateway.jobs.batches.worker import BatchSettings, BatchWorker
from gateway.storage.batches import BatchEnded, BatchStore
from gateway.storage.errors import ObjectStorageFull, UnknownRecord
from gateway.storage.jobs import JobBounds
from tests.gateway.jobs.batches.workshop import Workshop, jsonl, request_line


def content(lines: int = 8) -> bytes:
    return jsonl(*(request_line(f"c{number}") for number in range(lines)))


async def ids_in(workshop: Workshop, file_id: str | None) -> list[str]:
    return [line["custom_id"] for line in await workshop.lines_of(file_id)]


ALL = [f"c{number}" for number in range(8)]


async def test_a_batch_is_done_in_the_order_of_its_lines(workshop: Workshop) -> None:
    batch, worker = await workshop.create(content()), workshop.worker()
    assert batch.state is BatchState.VALIDATING
    await worker.look()
    await workshop.answer(3)
    await worker.look()
    seen = await workshop.see(batch)
    assert (seen.state, seen.counts.total, seen.counts.completed) == (BatchState.IN_PROGRESS, 8, 3)
    await workshop.answer(1, status=400)
    await workshop.answer()
    await worker.look()
    done = await workshop.see(batch)
    assert (done.state, done.counts.completed, done.counts.failed) == (BatchState.COMPLETED, 7, 1)
    assert set(done.times) == {BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.COMPLETED}
    lines = await workshop.lines_of(done.output_file_id)
    assert [line["custom_id"] for line in lines] == [each for each in ALL if each != "c3"]
    assert lines[0]["id"] == batch.new.line_id(1)
    assert lines[0]["response"]["body"]["said"] == "c0"
    (wrong,) = await workshop.lines_of(done.error_file_id)
    assert (wrong["custom_id"], wrong["response"]["status_code"], wrong["error"]) == ("c3", 400, None)
    assert done.usage == {
        "input_tokens": 21,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 14,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 35,
    }
    for each in (done.output_file_id, done.error_file_id):
        file = await workshop.files.get(str(each), "t")
        assert (file.new.purpose, file.new.expires_s) == ("batch_output", workshop.now_s + 30 * 86_400)


class Killed(BaseException):
    """The process is no more."""


KILLS: list[tuple[str, bool, int]] = [
    *(
        (name, after, nth)
        for name in ("begin", "begin_finalizing", "finish")
        for after in (False, True)
        for nth in (1,)
    ),
    *(("submit", after, nth) for after in (False, True) for nth in (1, 2, 3)),
    ("waits", False, 1),
]


@pytest.mark.parametrize(("method", "after", "nth"), KILLS)
async def test_another_process_goes_on_where_one_was_killed(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, method: str, after: bool, nth: int
) -> None:
    batch, calls = await workshop.create(content()), 0
    real: Callable[..., Any] = getattr(BatchStore, method)

    def killing(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != nth:
            return real(*given, **more)
        if after:
            real(*given, **more)
        raise Killed

    monkeypatch.setattr(BatchStore, method, killing)
    clock = FrozenLeases(workshop, monkeypatch)
    ended = False
    for turn in range(4):
        try:
            await workshop.worker(f"process {turn}").look()
        except* Killed:
            held = await workshop.see(batch)
            await workshop.worker("too early").look()
            assert await workshop.see(batch) == held, "its lease is not over"
        clock.pass_s(31)
        await workshop.answer()
        ended = (await workshop.see(batch)).has_ended
    assert ended
    assert calls >= nth, "it was killed"
    done = await workshop.see(batch)
    assert done.state is BatchState.COMPLETED
    assert [job.id for job in workshop.jobs(batch)] == [batch.new.line_id(n) for n in range(1, 9)]
    assert await ids_in(workshop, done.output_file_id) == ALL
    assert (done.counts.completed, done.error_file_id) == (8, None)


class FrozenLeases:
    """The clock of leases stands until it is moved on."""

    def __init__(self, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(workshop.store.database, "interval_s", lambda connection: self.now_s)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


async def test_who_wakes_up_too_late_changes_nothing(workshop: Workshop) -> None:
    """Two processes write the results of a batch; one of them publishes them."""
    batch = await workshop.create(content())
    await workshop.worker().look()
    await workshop.answer()
    slow, quick = workshop.worker("slow"), workshop.worker("quick")
    real, written, go = slow._publisher.write, asyncio.Event(), asyncio.Event()

    async def slowly(*given: Any) -> Any:
        made = await real(*given)
        written.set()
        await go.wait()
        return made

    slow._publisher.write = slowly  # type: ignore[method-assign,assignment]
    (claimed,) = workshop.store.batches.claim("slow", -1.0, 1)
    late = asyncio.create_task(slow._work_on(claimed))
    await written.wait()
    await quick.look()
    done = await workshop.see(batch)
    assert done.state is BatchState.COMPLETED
    go.set()
    await late
    assert await workshop.see(batch) == done
    assert workshop.kept() == {batch.new.input_file_id, done.output_file_id}


async def test_cancelling_keeps_what_is_done(workshop: Workshop) -> None:
    batch, worker = await workshop.create(content()), workshop.worker()
    await worker.look()
    await workshop.answer(3)
    assert (await workshop.service.cancel(batch.id, "t")).state is BatchState.CANCELLING
    assert (await workshop.service.cancel(batch.id, "t")).state is BatchState.CANCELLING
    await worker.look()
    done = await workshop.see(batch)
    assert (done.state, done.counts.completed, done.counts.failed) == (BatchState.CANCELLED, 3, 5)
    assert set(done.times) == {BatchState.IN_PROGRESS, BatchState.CANCELLING, BatchState.CANCELLED}
    assert await ids_in(workshop, done.output_file_id) == ALL[:3]
    errors = await workshop.lines_of(done.error_file_id)
    assert [line["custom_id"] for line in errors] == ALL[3:]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert (await workshop.service.cancel(batch.id, "t")).state is BatchState.CANCELLED


async def test_a_batch_can_be_cancelled_before_its_file_was_read_and_while_its_lines_become_jobs(
    workshop: Workshop,
) -> None:
    early = await workshop.create(content())
    assert (await workshop.service.cancel(early.id, "t")).state is BatchState.CANCELLED
    batch, store = await workshop.create(content()), workshop.store.batches
    (claimed,) = store.claim("one", -1.0, 5)
    store.begin(claimed, 8, "m", workshop.now_s)
    await workshop.service.cancel(batch.id, "t")
    await workshop.worker().look()
    assert workshop.jobs(early) == ()
    done = await workshop.see(batch)
    assert (done.state, done.counts.failed, done.output_file_id) == (BatchState.CANCELLED, 8, None)
    assert await ids_in(workshop, done.error_file_id) == ALL


async def test_lines_that_ran_out_say_so(workshop: Workshop) -> None:
    batch, worker = await workshop.create(content()), workshop.worker()
    await worker.look()
    await workshop.answer(2)
    workshop.now_s += 86_400
    workshop.store.job_claims.sweep(workshop.now_s, workshop.now_s + 1, 30.0)
    await worker.look()
    done = await workshop.see(batch)
    assert (done.state, done.counts.completed, done.counts.failed) == (BatchState.EXPIRED, 2, 6)
    errors = await workshop.lines_of(done.error_file_id)
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert len(errors) == 6


async def test_a_batch_without_time_is_submitted_all_the_same_and_expires(workshop: Workshop) -> None:
    """The gateways were all down for longer than its window."""
    workshop.bounds = JobBounds(queued=0)
    batch, worker = await workshop.create(content()), workshop.worker()
    workshop.now_s += 86_400 + 31
    await worker.look()
    done = await workshop.see(batch)
    assert (done.state, done.counts.failed) == (BatchState.EXPIRED, 8)
    assert len(await workshop.lines_of(done.error_file_id)) == 8


async def test_lines_wait_until_the_tenant_has_room(workshop: Workshop) -> None:
    workshop.bounds = JobBounds(queued=4)
    batch, worker = await workshop.create(content()), workshop.worker()
    await worker.look()
    assert (await workshop.see(batch)).submitted == 3
    for _ in range(3):
        await workshop.answer()
        await worker.look()
    assert (await workshop.see(batch)).state is BatchState.COMPLETED


async def test_a_store_without_room_is_waited_for(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, worker = await workshop.create(content()), workshop.worker()
    await worker.look()
    await workshop.answer()

    async def full(*given: object, **more: object) -> object:
        raise ObjectStorageFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(workshop.objects, "put", full)
        await worker.look()
        assert (await workshop.see(batch)).state is BatchState.FINALIZING
    with pytest.raises(BatchEnded, match="is finalizing"):
        await workshop.service.cancel(batch.id, "t")
    await worker.look()
    done = await workshop.see(batch)
    assert await ids_in(workshop, done.output_file_id) == ALL
    assert workshop.kept() == {batch.new.input_file_id, done.output_file_id}


async def test_a_file_that_is_deleted_is_read_to_the_end(workshop: Workshop) -> None:
    batch, worker = await workshop.create(content()), workshop.worker()
    await workshop.files.delete(batch.new.input_file_id, "t")
    with pytest.raises(UnknownRecord):
        await workshop.files.get(batch.new.input_file_id, "t")
    assert await workshop.files.sweep() == 0
    await worker.look()
    await workshop.answer()
    await worker.look()
    assert (await workshop.see(batch)).state is BatchState.COMPLETED
    assert await workshop.files.sweep() == 1
    assert batch.new.input_file_id not in workshop.kept()


async def test_a_file_that_is_deleted_makes_no_batch(workshop: Workshop) -> None:
    batch = await workshop.create(content())
    await workshop.files.delete(batch.new.input_file_id, "t")
    with pytest.raises(UnknownRecord, match="no file"):
        await workshop.service.create(BatchRecord(1, batch.new, batch.state).new)


async def test_an_answer_that_is_gone_leaves_its_line(workshop: Workshop) -> None:
    batch, worker = await workshop.create(content()), workshop.worker()
    await worker.look()
    await workshop.answer()
    gone = workshop.jobs(batch)[2]
    assert gone.outcome is not None
    await workshop.objects.delete(str(gone.outcome.result))
    await worker.look()
    lines = await workshop.lines_of((await workshop.see(batch)).output_file_id)
    assert [line["custom_id"] for line in lines] == ALL
    assert lines[2]["error"]["code"] == "result_missing"


async def test_answers_of_any_length_come_in_their_order(workshop: Workshop) -> None:
    batch, worker = await workshop.create(content()), workshop.worker()
    await worker.look()
    for size in (10, 700_000, 700_000, 3_000_000, 10, 20_000, 20_000, 10):
        await workshop.answer(1, text="x" * size)
    await worker.look()
    lines = await workshop.lines_of((await workshop.see(batch)).output_file_id)
    assert [line["response"]["body"]["said"] for line in lines] == ALL
    assert len(lines[3]["response"]["body"]["text"]) == 3_000_000


async def test_the_end_is_told_with_it(workshop: Workshop) -> None:
    batch = await workshop.create(b"", webhook="https://example.com/hook")
    await workshop.worker().look()
    assert (await workshop.see(batch)).state is BatchState.FAILED
    (told,) = workshop.store.webhooks.list(object_id=batch.id)
    assert (told.event.type, told.event.url) == ("batch.failed", "https://example.com/hook")


@asynccontextmanager
async def running_until_one_fails(
    worker: BatchWorker, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """Has ``worker`` run during the block and after it, until a batch has failed."""
    failed, loop, real = asyncio.Event(), asyncio.get_running_loop(), workshop.store.batches.fail

    def noted(*given: Any) -> None:
        real(*given)
        loop.call_soon_threadsafe(failed.set)

    monkeypatch.setattr(workshop.store.batches, "fail", noted)
    running = asyncio.create_task(worker.run())
    yield
    async with asyncio.timeout(30):
        await failed.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_who_runs_looks_when_it_is_woken(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = workshop.worker(settings=BatchSettings(idle_s=3600.0))
    async with running_until_one_fails(worker, workshop, monkeypatch):
        batch = await workshop.create(b"")
        worker.wake()
    assert (await workshop.see(batch)).state is BatchState.FAILED


async def test_a_process_that_was_killed_goes_on_at_its_next_start(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    FrozenLeases(workshop, monkeypatch)
    batch = await workshop.create(b"")
    assert workshop.store.batches.claim("one", 30.0, 1), "it was being read when the process was killed"
    async with running_until_one_fails(workshop.worker("one"), workshop, monkeypatch):
        pass
    assert (await workshop.see(batch)).state is BatchState.FAILED
