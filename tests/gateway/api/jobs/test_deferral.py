"""A request whose client prefers not to wait for long becomes a job while it is being answered."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from gateway.api.jobs import deferral
from gateway.domain.errors import QueueFull
from gateway.domain.jobs import JobRecord, JobState
from gateway.domain.request import Tier
from gateway.storage.errors import StateUnreachable
from shared.protocol.progress import Preview, Progress
from tests.gateway.api.jobs.deferral_shop import BODY, PIECES, Shop, streamed, until
from tests.gateway.api.support import ASK, CHAT, EVENTS, STREAM, FakeResponse, error_in, json_response


def said_in(content: bytes) -> str:
    text: str = orjson.loads(content)["choices"][0]["message"]["content"]
    return text


async def test_what_is_answered_in_time_is_no_job(shop: Shop) -> None:
    answer = streamed(shop)
    call = shop.post(60)
    await until(lambda: shop.dispatched)
    answer.feed(*PIECES)
    answer.end()
    await call.done(30)
    assert (call.status, said_in(call.content)) == (200, "Good day")
    assert call.headers["content-type"] == "application/json"
    assert not {"location", "preference-applied"} & call.headers.keys()
    assert (shop.jobs(), await shop.kept()) == ((), [])
    (request,) = shop.dispatched
    assert request.tier is Tier.STANDARD, "as it is without the preference"
    assert "prefer" not in dict(request.headers)


async def test_what_takes_longer_is_a_job_on_the_same_stream(shop: Shop) -> None:
    answer = streamed(shop)
    call = shop.post(1)
    await until(lambda: shop.dispatched)
    answer.feed(PIECES[0])
    await shop.deferred(call)
    made = orjson.loads(call.content)
    assert (call.status, call.headers["location"]) == (202, f"/v1/jobs/{made['id']}")
    assert call.headers["preference-applied"] == "respond-async, wait=1"
    assert (made["status"], made["tier"]) == ("running", "standard")
    (job,) = shop.jobs()
    assert (job.state, job.attempts, job.new.model, job.new.path) == (JobState.RUNNING, 1, "m", CHAT)
    assert await shop.doer.objects.read_bytes(job.new.body.name, 1000) == BODY
    assert not answer.aborted

    answer.feed(*PIECES[1:])
    answer.end()
    job = await shop.ended(made["id"])
    assert said_in(await shop.result(job)) == "Good day"
    assert len(shop.dispatched) == 1, "it was asked once"
    assert job.outcome is not None
    assert ("content-type", "application/json") in job.outcome.headers
    assert shop.surface.finished[-1][1] == 202


async def test_a_request_that_still_waits_for_a_slot_becomes_a_job_too(shop: Shop) -> None:
    held = shop.surface.dispatcher.hold()
    call = await shop.deferred(shop.post(1))
    assert call.status == 202
    held.set_result(json_response(b'{"late":1}'))
    assert await shop.result(await shop.ended(orjson.loads(call.content)["id"])) == b'{"late":1}'


async def test_what_its_engine_says_of_its_progress_before_and_after_is_the_jobs(shop: Shop) -> None:
    held, picture = shop.surface.dispatcher.hold(), Preview("image/png", b"picture")
    call = shop.post(1)
    await until(lambda: shop.dispatched)
    tell = shop.dispatched[0].on_progress
    assert tell is not None
    tell(Progress(0.25, "step 1", picture))
    made = orjson.loads((await shop.deferred(call)).content)
    await until(lambda: shop.store.jobs.get(made["id"]).progress_text == "step 1")
    assert shop.store.jobs.preview(made["id"]) == picture
    tell(Progress(0.5, "step 2"))
    await until(lambda: shop.store.jobs.get(made["id"]).progress_text == "step 2")
    held.set_result(json_response())
    await shop.ended(made["id"])
    await until(lambda: shop.store.jobs.preview(made["id"]) is None)


async def test_a_stream_that_begins_in_time_is_a_stream(shop: Shop) -> None:
    answer = streamed(shop)
    call = shop.post(1, STREAM)
    await until(lambda: shop.dispatched)
    answer.feed(PIECES[0])
    await call.until(lambda each: PIECES[0] in each.content)
    shop.patience.over.set()
    answer.feed(*PIECES[1:])
    answer.end()
    await call.done(30)
    assert (call.status, call.content) == (200, b"".join(PIECES))
    assert shop.jobs() == ()


async def test_a_stream_that_does_not_begin_in_time_is_a_job_with_its_events(shop: Shop) -> None:
    held = shop.surface.dispatcher.hold()
    call = await shop.deferred(shop.post(1, STREAM))
    assert call.status == 202, "and no comment before"
    held.set_result(FakeResponse(200, EVENTS, tuple(PIECES)))
    job = await shop.ended(orjson.loads(call.content)["id"])
    assert await shop.result(job) == b"".join(PIECES)


async def test_a_client_that_leaves_in_time_takes_its_request_along(shop: Shop) -> None:
    answer = streamed(shop)
    call = shop.post(60)
    await until(lambda: shop.dispatched)
    answer.feed(PIECES[0])
    call.disconnect()
    await call.done(30)
    assert answer.aborted
    assert shop.surface.finished[-1][1] == 499
    assert (shop.jobs(), await shop.kept()) == ((), [])


async def test_an_answer_that_is_long_leaves_nothing_behind_when_it_is_no_job(shop: Shop) -> None:
    answer = streamed(shop)
    call = shop.post(60)
    await until(lambda: shop.dispatched)
    long = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 50_000 + b'"}}]}\n\n'
    for _ in range(8):
        answer.feed(long)
        await asyncio.sleep(0)
    await until(lambda: answer.consumed_bytes >= 8 * len(long))
    answer.feed(*PIECES)
    answer.end()
    await call.done(30)
    assert len(said_in(call.content)) == 400_000 + len("Good day")
    assert await shop.kept() == []


async def test_an_error_in_time_is_the_clients(shop: Shop) -> None:
    shop.surface.dispatcher.fail(QueueFull("too many"))
    call = await shop.post(60).done(30)
    assert (call.status, shop.jobs()) == (429, ())


async def test_an_error_after_that_is_the_jobs(shop: Shop) -> None:
    held = shop.surface.dispatcher.hold()
    call = await shop.deferred(shop.post(1))
    shop.surface.dispatcher.answer(json_response())
    held.set_exception(QueueFull("too many"))
    job_id = orjson.loads(call.content)["id"]
    job = shop.store.jobs.get(job_id)
    assert not job.state.is_final, "it waits for its turn"


async def test_a_job_that_was_a_request_is_cancelled_as_any_other(shop: Shop) -> None:
    answer = streamed(shop)
    call = await shop.deferred(shop.post(1))
    await shop.access.service.cancel(orjson.loads(call.content)["id"], "default")
    shop.runner.cancel(orjson.loads(call.content)["id"])
    job = await shop.ended(orjson.loads(call.content)["id"])
    assert job.state is JobState.CANCELLED
    await until(lambda: answer.aborted)


async def test_a_stopped_process_gives_back_a_job_that_was_a_request_with_what_it_has(shop: Shop) -> None:
    answer = streamed(shop)
    call = shop.post(1)
    await until(lambda: shop.dispatched)
    answer.feed(PIECES[0])
    await until(lambda: answer.consumed_bytes)
    await shop.deferred(call)
    shop.runner.stop()
    job_id = orjson.loads(call.content)["id"]
    await until(lambda: shop.store.jobs.get(job_id).state is JobState.QUEUED)
    assert shop.store.jobs.get(job_id).attempts == 0
    progress = await shop.access.output.progress(job_id)
    assert progress is not None
    assert (progress.accumulated, progress.size_bytes) == (True, len(PIECES[0]))
    request = shop.dispatched[0]
    assert request.counted_later is not None
    assert request.counted_later(), "what was used is counted with the rest"


async def is_answered_as_no_job(shop: Shop, failed: Sequence[object]) -> None:
    """A client gets its answer although the store was asked to take its request, and has ``failed``."""
    answer = streamed(shop)
    call = shop.post(1)
    await until(lambda: shop.dispatched)
    shop.patience.over.set()
    await until(lambda: failed)
    answer.feed(*PIECES)
    answer.end()
    await call.done(30)
    assert (call.status, said_in(call.content)) == (200, "Good day")


async def test_a_store_that_takes_no_job_keeps_the_client_waiting_for_its_answer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def refuse(*given: object) -> tuple[str, ...]:
        refused.append(given)
        raise StateUnreachable("away")

    monkeypatch.setattr(shop.store.jobs, "submit", refuse)
    await is_answered_as_no_job(shop, refused)


async def test_a_job_of_which_the_store_does_not_say_that_it_has_it_is_not_run_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, cancel, failed = shop.store.jobs.submit, shop.store.jobs.cancel, list[str]()

    def submit_unheard(*given: Any) -> tuple[str, ...]:
        submit(*given)
        failed.append("submit")
        raise StateUnreachable("away")

    def cancel_later(*given: Any) -> JobRecord:
        if "cancel" not in failed:
            failed.append("cancel")
            raise StateUnreachable("still away")
        return cancel(*given)

    monkeypatch.setattr(deferral, "_AGAIN_S", 0.0)
    monkeypatch.setattr(shop.store.jobs, "submit", submit_unheard)
    monkeypatch.setattr(shop.store.jobs, "cancel", cancel_later)
    await is_answered_as_no_job(shop, failed)
    await until(lambda: shop.jobs()[0].cancelling)
    assert failed == ["submit", "cancel"]


async def test_with_a_key_it_is_a_job_from_the_beginning_and_asked_once(shop: Shop) -> None:
    answer = streamed(shop)
    first = shop.post(60, key=b"once")
    await until(lambda: shop.dispatched)
    (job,) = shop.jobs()
    assert (job.state, job.new.tier) == (JobState.RUNNING, "standard")
    again = shop.post(60, key=b"once")
    answer.feed(*PIECES)
    answer.end()
    for call in (await first.done(30), await again.done(30)):
        assert (call.status, said_in(call.content)) == (200, "Good day")
        assert call.headers["preference-applied"] == "respond-async, wait=60"
        assert call.headers["content-location"] == f"/v1/jobs/{job.id}/result"
    assert again.headers["idempotent-replayed"] == "true"
    other = await shop.post(60, STREAM, key=b"once").done(30)
    assert (other.status, error_in(other.content)["code"]) == (422, "idempotency_key_reused")
    assert (len(shop.dispatched), len(shop.jobs())) == (1, 1)


async def test_with_a_key_a_client_may_leave_and_come_back(shop: Shop) -> None:
    answer = streamed(shop)
    call = shop.post(60, key=b"later")
    await until(lambda: shop.dispatched)
    call.disconnect()
    await call.done(30)
    assert not answer.aborted
    waiting = await shop.post(1, key=b"later").done(30)
    assert waiting.status == 202
    answer.feed(*PIECES)
    answer.end()
    await shop.ended(orjson.loads(waiting.content)["id"])
    found = await shop.post(1, key=b"later").done(30)
    assert (found.status, said_in(found.content)) == (200, "Good day")


async def test_what_cannot_be_asked_for_is_no_job_with_a_key(shop: Shop) -> None:
    call = await shop.post(60, b"{", key=b"bad").done(30)
    assert (call.status, shop.jobs()) == (400, ())
    assert (await shop.post(60, ASK, key=b"bad").done(30)).status == 200, "the key is free"
