"""What comes of a job reaches its reader, at least once and told apart by its sequence, whatever dies."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.domain.jobs import JobRecord
from gateway.jobs.queues.replies import ReplyDeliverer
from gateway.storage.errors import StateUnreachable
from tests.gateway.jobs.queues.fakes import KilledError, QueueWorld

LEASE_S = 60.0


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, world: QueueWorld) -> list[float]:
    """Whoever dies is dead for longer than its lease: the store's clock is what stands here."""
    now = [1000.0]
    monkeypatch.setattr(type(world.store.database), "interval_s", lambda *_: now[0])
    return now


async def begun(world: QueueWorld, **given: Any) -> JobRecord:
    """A job of the queue that runs."""
    world.source.put({"id": "7", "reply_to": "answers", "body": {"messages": []}, **given})
    await world.intake().step()
    return world.begin()


def text(world: QueueWorld) -> str:
    """What a reader has who drops doubles."""
    found, seen = "", 0
    for _, said in world.source.replies:
        if said["sequence"] <= seen:
            continue
        seen = said["sequence"]
        found = "" if said["type"] == "restart" else found + said.get("data", "")
    return found


async def step(deliverer: ReplyDeliverer, world: QueueWorld, seconds: float = 0.5) -> int:
    world.now_s += seconds
    return await deliverer.step()


async def test_the_result_goes_where_the_message_says_and_once(world: QueueWorld) -> None:
    job = await begun(world)
    deliverer = world.deliverer()
    assert await step(deliverer, world) == 0
    await world.end(job, await world.write(job, b'{"a": 1}'), "application/json")
    assert (await step(deliverer, world), await step(deliverer, world)) == (1, 0)
    ((to, said),) = world.source.replies
    assert (to, said["id"], said["job"], said["sequence"]) == ("answers", "7", job.id, 1)
    assert (said["status"], said["http_status"], said["body"]) == ("succeeded", 200, {"a": 1})
    assert world.counted("trunkline_queue_replies", "sent") == 1


async def test_failures_are_told_too(world: QueueWorld) -> None:
    await world.end(await begun(world))
    await step(world.deliverer(), world)
    ((_, said),) = world.source.replies
    assert (said["status"], said["error"], said["body"]) == ("failed", {"message": "no luck"}, "")


async def test_a_long_answer_is_left_where_it_is(world: QueueWorld) -> None:
    job = await begun(world)
    await world.end(job, await world.write(job, b"x" * 1001))
    await step(world.deliverer(), world)
    ((_, said),) = world.source.replies
    assert (said["result"], said["body_bytes"]) == (f"/v1/jobs/{job.id}/result", 1001)
    assert "body" not in said


async def test_who_dies_between_result_and_reply_is_followed_by_another(
    world: QueueWorld, later: list[float]
) -> None:
    job = await begun(world)
    await world.end(job, await world.write(job, b"x"))
    (lost,) = world.store.queue_jobs.claim(["orders"], 1, LEASE_S, world.now_s)
    other = world.deliverer()
    assert await step(other, world) == 0, "it may still be at it"
    later[0] += LEASE_S + 1
    assert await step(other, world) == 1
    assert [said["body"] for _, said in world.source.replies] == ["x"]
    assert not world.store.queue_jobs.finish(lost)


async def test_an_answer_is_sent_while_it_is_written(world: QueueWorld) -> None:
    job, deliverer = await begun(world, stream=True), world.deliverer()
    await step(deliverer, world)
    assert world.source.replies == []
    output = await world.write(job, b"data: 1\n\nda")
    await step(deliverer, world)
    assert text(world) == "data: 1\n\n"
    assert (await step(deliverer, world), text(world)) == (1, "data: 1\n\n")
    await output.append(b"ta: 2\n\nend")
    await world.end(job, output)
    await step(deliverer, world)
    assert text(world) == "data: 1\n\ndata: 2\n\nend"
    said = [each for _, each in world.source.replies]
    assert [each["sequence"] for each in said] == list(range(1, len(said) + 1))
    assert [each["offset"] for each in said[:2]] == [0, 9]
    assert (said[-1]["type"], said[-1]["status"]) == ("result", "succeeded")
    assert "body" not in said[-1]
    assert await step(deliverer, world) == 0


async def test_what_may_have_arrived_is_sent_again_just_so(world: QueueWorld, later: list[float]) -> None:
    job = await begun(world, stream=True)
    output = await world.write(job, b"one\n")
    world.source.dies_after_reply = 1
    with pytest.raises(ExceptionGroup):
        await step(world.deliverer(), world)
    await output.append(b"two\n")
    await output._store()
    later[0] += LEASE_S + 1
    await step(world.deliverer(), world)
    said = [(each["sequence"], each["data"]) for _, each in world.source.replies]
    assert said[:2] == [(1, "one\n"), (1, "one\n")]
    assert text(world) == "one\ntwo\n"


async def test_an_answer_that_begins_anew_says_so(world: QueueWorld, later: list[float]) -> None:
    job, deliverer = await begun(world, stream=True), world.deliverer()
    await world.write(job, b"old\n")
    await step(deliverer, world)
    assert job.lease is not None
    assert world.store.job_claims.give_back(job.id, job.lease, 0.0)
    job = world.begin()
    output = await world.write(job, b"new\n")
    world.source.dies_after_reply = 2
    with pytest.raises(ExceptionGroup):
        await step(deliverer, world)
    later[0] += LEASE_S + 1
    await world.end(job, output)
    await step(world.deliverer(), world)
    kinds = [(said["sequence"], said["type"]) for _, said in world.source.replies]
    assert kinds == [(1, "output"), (2, "restart"), (2, "restart"), (3, "output"), (4, "result")]
    assert text(world) == "new\n"


async def test_what_was_begun_and_is_no_more_is_void(world: QueueWorld, later: list[float]) -> None:
    job = await begun(world, stream=True)
    await world.write(job, b"old\n")
    world.source.dies_after_reply = 1
    with pytest.raises(ExceptionGroup):
        await step(world.deliverer(), world)
    assert job.lease is not None
    assert world.store.job_claims.give_back(job.id, job.lease, 0.0)
    job = world.begin()
    await world.end(job, await world.write(job, b"new\n"))
    later[0] += LEASE_S + 1
    await step(world.deliverer(), world)
    assert [said["sequence"] for _, said in world.source.replies] == [1, 2, 3, 4]
    assert text(world) == "new\n"


async def test_a_broker_that_is_away_gets_its_replies_when_it_is_back(world: QueueWorld) -> None:
    await world.end(await begun(world))
    world.source.away = True
    deliverer = world.deliverer(refused_s=10.0)
    for _ in range(20):
        await step(deliverer, world, 20.0)
    world.source.away = False
    assert await step(deliverer, world, 20.0) == 1
    assert len(world.source.replies) == 1
    assert world.counted("trunkline_queue_replies", "retried") == 20


async def test_a_reply_that_is_refused_for_days_is_given_up(world: QueueWorld) -> None:
    await world.end(await begun(world))
    world.source.refused = True
    deliverer = world.deliverer(refused_s=100.0)
    with capture_logs() as lines:
        for _ in range(10):
            await step(deliverer, world, 40.0)
    assert [line["event"] for line in lines] == ["queue_reply_retried", "queue_reply_failed"]
    assert world.counted("trunkline_queue_replies", "failed") == 1
    world.source.refused = False
    assert await step(deliverer, world, 1000.0) == 0


async def test_a_store_that_is_away_is_told_once(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        if len(world.slept) < 5:
            raise StateUnreachable("away")
        monkeypatch.undo()

    monkeypatch.setattr(world.store.queue_jobs, "forget", away)
    with capture_logs() as lines, pytest.raises(ExceptionGroup) as ended:
        await world.deliverer().run()
    assert ended.group_contains(KilledError)
    assert [line["event"] for line in lines] == ["queue_replies_not_read", "queue_replies_read_again"]
