"""Each message becomes one job, whatever dies; what is none lies with the dead letters; nothing is taken that
cannot begin soon."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.domain.errors import QueueFull, Unauthenticated
from gateway.domain.request import Principal
from gateway.domain.scopes import limited
from gateway.storage.errors import BadValue, ObjectStorageError, StateUnreachable, UnknownRecord
from gateway.storage.jobs import Submission
from gateway.storage.objects import ObjectStore
from tests.gateway.jobs.queues.fakes import KilledError, QueueWorld

BODY: dict[str, Any] = {"messages": []}


def message(number: int = 1, **given: Any) -> dict[str, Any]:
    return {"id": f"{number}", "body": BODY, **given}


async def test_a_message_is_a_job_before_it_is_acknowledged(world: QueueWorld) -> None:
    world.source.put(message(metadata={"a": "b"}))
    assert await world.intake().step()
    (job,) = world.listed()
    assert (job.new.tenant, job.new.key_id, job.new.model) == ("t", "k", "m")
    assert await world.objects.read_bytes(job.new.body.name, 1000) == b'{"messages":[],"model":"m"}'
    assert (world.source.held, world.source.dead) == ({}, [])
    assert world.counted("trunkline_queue_messages", "submitted") == 1


async def test_who_dies_between_persisting_and_acknowledging_leaves_no_second_job(world: QueueWorld) -> None:
    world.source.put(message())
    world.source.dies_before_acknowledging = True
    with pytest.raises(KilledError):
        await world.intake().step()
    assert len(world.listed()) == 1
    world.source.dies_before_acknowledging = False
    world.source.lose_consumer()
    await world.intake().step()
    assert (len(world.listed()), world.source.held) == (1, {})
    assert await world.objects.names("jobs") == [f"jobs/{world.listed()[0].id}/body"]
    assert world.counted("trunkline_queue_messages", "repeated") == 1


async def test_no_more_is_taken_than_can_begin_soon(world: QueueWorld) -> None:
    for number in range(9):
        world.source.put(message(number))
    intake = world.intake(ahead=4)
    assert await intake.step()
    assert not await intake.step()
    world.begin()
    assert await intake.step()
    assert (world.source.asked, len(world.source.waiting)) == ([4, 1], 4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no json", "no JSON"),
        (message(path="/v1/nothing"), "No job can ask for /v1/nothing"),
        (message(body={"model": "secret"}), "secret"),
        (b" " * 20_000, "20000 bytes"),
    ],
)
async def test_poison_lies_with_the_dead_letters_and_holds_up_nothing(
    world: QueueWorld, content: object, reason: str
) -> None:
    world.principal = Principal("k", "key", "t", scopes=limited(models=["m"]))
    world.source.put(content)
    world.source.put(message())
    with capture_logs() as lines:
        await world.intake().step()
    ((_, told),) = world.source.dead
    assert reason in told
    assert (len(world.listed()), world.source.held) == (1, {})
    assert [line["event"] for line in lines] == ["queue_message_rejected"]
    assert world.counted("trunkline_queue_messages", "rejected") == 1


async def test_another_message_of_the_same_id_is_poison(world: QueueWorld) -> None:
    world.source.put(message())
    world.source.put(message(body={"messages": [1]}))
    await world.intake().step()
    assert "had the id '1' before" in world.source.dead[0][1]
    assert len(world.listed()) == 1


async def run(world: QueueWorld, **given: Any) -> list[Any]:
    """Until it has slept often enough."""
    with capture_logs() as lines, pytest.raises(KilledError):
        await world.intake(**given).run()
    return [line["event"] for line in lines]


async def test_a_broker_that_is_away_is_told_once_and_asked_ever_more_seldom(world: QueueWorld) -> None:
    world.source.away = True
    assert await run(world) == ["queue_broker_away"]
    first, last = world.slept[0], world.slept[-1]
    assert 0.5 <= first <= 1.0
    assert 15.0 <= last <= 30.0
    assert world.metrics.registry.get_sample_value("trunkline_queue_away", {"source": "orders"}) == 1.0


async def test_a_broker_that_is_back_is_told_once_and_nothing_is_lost(world: QueueWorld) -> None:
    world.source.put(message())
    world.source.away = True
    comes_back = world._sleep

    async def sleep(seconds: float) -> None:
        world.source.away = len(world.slept) < 3
        await comes_back(seconds)

    world._sleep = sleep  # type: ignore[method-assign]
    assert await run(world, ahead=1) == ["queue_broker_away", "queue_taken_again"]
    assert (len(world.listed()), world.source.held) == (1, {})
    assert world.metrics.registry.get_sample_value("trunkline_queue_away", {"source": "orders"}) == 0.0


@pytest.mark.parametrize(
    "error",
    [
        StateUnreachable("the store is away"),
        UnknownRecord("there is no active key named 'q'"),
        Unauthenticated("The key has expired."),
    ],
)
async def test_where_no_job_can_be_made_nothing_is_taken(world: QueueWorld, error: Exception) -> None:
    async def identify() -> Principal:
        raise error

    world.source.put(message())
    assert await run(world, identify=identify) == ["queue_not_taken"]
    assert (world.source.asked, world.source.dead) == ([], [])


async def test_a_body_that_cannot_be_written_now_is_kept_for_later(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object, **__: object) -> None:
        raise ObjectStorageError("the bucket is away")

    world.source.put(message())
    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "put", failing)
        assert await run(world) == ["queue_not_taken"]
    assert (len(world.source.held), world.source.dead, len(world.listed())) == (1, [], 0)
    world.source.lose_consumer()
    await world.intake().step()
    assert len(world.listed()) == 1


async def test_what_the_gateway_cannot_take_now_is_kept_for_later(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.source.put(message())
    intake, prepare = world.intake(), world.jobs.prepare
    errors: list[Exception] = [QueueFull("too much"), StateUnreachable("away")]

    async def failing(*given: Any) -> Any:
        if errors:
            raise errors.pop()
        return await prepare(*given)

    monkeypatch.setattr(world.jobs, "prepare", failing)
    for error in (StateUnreachable, QueueFull):
        with pytest.raises(error):
            await intake.step()
    assert (len(world.source.held), world.source.dead) == (1, [])
    await intake.step()
    assert (len(world.listed()), world.source.held, len(world.source.asked)) == (1, {}, 1)


async def test_a_message_with_what_the_store_cannot_hold_is_poison(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PostgreSQL cannot hold the character with the number 0."""
    submit = world.store.jobs.submit

    def refusing(submission: Submission, *given: Any) -> Any:
        if "\0" in str(submission.key):
            raise BadValue("a value cannot be stored")
        return submit(submission, *given)

    monkeypatch.setattr(world.store.jobs, "submit", refusing)
    world.source.put({"body": BODY}, id="the broker's\0")
    world.source.put(message(2))
    await world.intake().step()
    assert [reason for _, reason in world.source.dead] == ["a value cannot be stored"]
    assert (len(world.listed()), world.source.held) == (1, {})
    assert len(await world.objects.names("jobs")) == 1
