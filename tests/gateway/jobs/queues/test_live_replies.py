"""Each token goes out as it comes, without the store; whoever follows a process that died goes on from where
the answer stands, and a reader who goes by sequence and offset has every token once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.domain.jobs import JobRecord
from gateway.jobs.live_answer import LiveAnswer
from gateway.jobs.output import AnswerHead, OutputProgress, OutputSettings, PartialOutput
from gateway.jobs.queues.replies import ReplyDeliverer
from gateway.storage.queue_jobs import QueueJobStore
from tests.gateway.jobs.queues.fakes import QueueWorld

LIMIT_S = 60.0
NEVER = OutputSettings(interval_s=3600.0, piece_bytes=10**9)
HEAD = AnswerHead(200, (("content-type", "text/event-stream"),))


@dataclass
class Run:
    """A job that runs in a process, which sends its answer."""

    world: QueueWorld
    deliverer: ReplyDeliverer
    job: JobRecord
    live: LiveAnswer
    output: PartialOutput
    sent: int = 0

    async def begin(self, kept: OutputProgress | None = None) -> None:
        await self.output.begin(HEAD, kept)

    async def write(self, *tokens: str) -> None:
        for token in tokens:
            await self.output.append(f"data: {token}\n\n".encode())

    async def end(self) -> None:
        await self.world.end(self.job, self.output)
        self.live.end()


@asynccontextmanager
async def process(world: QueueWorld, **given: Any) -> AsyncIterator[ReplyDeliverer]:
    """What sends replies in a process, until it is killed."""
    deliverer = world.deliverer(**given)
    deliverer._sleep = asyncio.sleep
    deliverer.live._sleep = asyncio.sleep
    running = asyncio.create_task(deliverer.live.run())
    try:
        yield deliverer
        assert not running.done(), running.result()
    finally:
        running.cancel()
        await asyncio.wait([running])


async def asked(world: QueueWorld, **given: Any) -> None:
    world.source.put({"id": "7", "reply_to": "answers", "stream": True, "body": {"messages": []}, **given})
    await world.intake().step()


def begin_run(world: QueueWorld, deliverer: ReplyDeliverer, settings: OutputSettings = NEVER) -> Run:
    job = world.begin()
    assert job.lease is not None
    live = deliverer.live.follow(job)
    output = PartialOutput(world.objects, job.id, job.lease.generation, settings, live)
    return Run(world, deliverer, job, live, output)


def text(world: QueueWorld) -> str:
    """What a reader has who goes by sequence and offset, in whatever order replies come."""
    found = b""
    seen = 0
    for _, said in sorted(world.source.replies, key=lambda each: each[1]["sequence"]):
        if said["sequence"] == seen or said["type"] == "result":
            continue
        seen = said["sequence"]
        offset = said.get("offset", 0)
        assert offset <= len(found), "something is missing"
        found = found[:offset] + said.get("data", "").encode()
    return found.decode()


def events(*tokens: str) -> str:
    return "".join(f"data: {token}\n\n" for token in tokens)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 (nobody tells us)
            await asyncio.sleep(0.002)


async def until_text(world: QueueWorld, end: str) -> None:
    await until(lambda: text(world).endswith(end))


@dataclass
class CountedStore:
    """How often each method of the store was called."""

    calls: dict[str, int] = field(default_factory=dict)

    def watch(self, monkeypatch: pytest.MonkeyPatch, target: type, *names: str) -> None:
        for name in names:
            monkeypatch.setattr(target, name, self._counted(name, getattr(target, name)))

    def _counted(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **more: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            return act(*given, **more)

        return counted


async def test_each_token_goes_out_as_it_comes_and_the_store_is_not_asked(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked(world)
    counted = CountedStore()
    names = ("claim", "take_over", "note_plan", "note_plans", "release", "note_failure", "finish")
    counted.watch(monkeypatch, QueueJobStore, *names)
    counted.watch(monkeypatch, type(world.answers), "read", "progress")
    async with process(world) as deliverer:
        run = begin_run(world, deliverer)
        await run.begin()
        for number in range(30):
            await run.write(str(number))
            await until_text(world, f" {number}\n\n")
        assert counted.calls == {"take_over": 1, "note_plans": 1}
        await run.end()
        await until(lambda: world.source.replies[-1][1]["type"] == "result")
        await until(lambda: "finish" in counted.calls)
    assert counted.calls == {"take_over": 1, "note_plans": 2, "read": 1, "finish": 1}
    assert text(world) == events(*map(str, range(30)))
    sequences = [said["sequence"] for _, said in world.source.replies]
    assert sequences == list(range(1, 32))


async def test_half_an_event_waits_for_its_other_half(world: QueueWorld) -> None:
    await asked(world)
    async with process(world) as deliverer:
        run = begin_run(world, deliverer)
        await run.begin()
        await run.output.append(b"event: a\nda")
        await run.output.append(b"ta: 1\n\ndata: 2")
        await until(lambda: text(world))
        assert text(world) == "event: a\ndata: 1\n\n"
        await run.end()
        await until(lambda: world.source.replies[-1][1]["type"] == "result")
    assert text(world) == "event: a\ndata: 1\n\ndata: 2"


async def test_jobs_that_no_message_asked_for_are_left_alone(world: QueueWorld) -> None:
    await asked(world, stream=False)
    async with process(world) as deliverer:
        run = begin_run(world, deliverer)
        await run.begin()
        await until(lambda: not run.live._is_wanted)
        await run.write("1")
        await run.end()
        assert not deliverer.live._lives
        assert world.source.replies == []
        await deliverer.step()
    assert [said["type"] for _, said in world.source.replies] == ["result"]


async def kill(run: Run) -> None:
    """Its process dies: what waits to be written is lost."""
    run.output._waiting.clear()
    await run.output.abandon()


@pytest.mark.parametrize("stored", [0, 3, 5])
async def test_another_process_goes_on_from_where_the_answer_stands(world: QueueWorld, stored: int) -> None:
    """Five tokens were sent, of which the store has some; the engine writes others after those."""
    await asked(world)
    async with process(world) as deliverer:
        first = begin_run(world, deliverer)
        await first.begin()
        for number in range(5):
            await first.write(f"old-{number}")
            await until_text(world, f"-{number}\n\n")
            if number + 1 == stored:
                await first.output._store()
    await kill(first)
    assert first.job.lease is not None
    assert world.store.job_claims.give_back(first.job.id, first.job.lease, 0.0)
    kept = await world.answers.progress(first.job.id)
    assert (kept is None) == (stored == 0)
    async with process(world) as deliverer:
        second = begin_run(world, deliverer)
        await second.begin(kept)
        await second.write("new-1", "new-2")
        await second.end()
        await until(lambda: world.source.replies[-1][1]["type"] == "result")
    olds = [f"old-{number}" for number in range(stored)]
    assert text(world) == events(*olds, "new-1", "new-2")
    job = world.store.jobs.get(first.job.id)
    assert job.outcome is not None
    assert job.outcome.result is not None
    assert await world.objects.read_bytes(job.outcome.result, 10_000) == text(world).encode()


async def test_a_frozen_process_that_sends_late_changes_nothing(world: QueueWorld) -> None:
    await asked(world)
    async with process(world) as frozen, process(world) as other:
        first = begin_run(world, frozen)
        await first.begin()
        await first.write("one")
        await until(lambda: text(world))
        assert first.job.lease is not None
        assert world.store.job_claims.give_back(first.job.id, first.job.lease, 0.0)
        second = begin_run(world, other)
        await second.begin()
        await second.write("two")
        await until(lambda: text(world) == events("two"))
        await first.write("late")
        await until(lambda: any("late" in said.get("data", "") for _, said in world.source.replies))
        assert text(world) == events("two")
        await second.end()
        await until(lambda: world.source.replies[-1][1]["type"] == "result")
        await first.output.abandon()
    assert text(world) == events("two")


async def test_a_broker_that_was_away_gets_what_it_missed_and_then_each_token(world: QueueWorld) -> None:
    await asked(world)
    async with process(world) as deliverer:
        run = begin_run(world, deliverer)
        await run.begin()
        await run.write("1")
        await until(lambda: text(world))
        world.source.away = True
        await run.write("2")
        await until(lambda: world.counted("trunkline_queue_replies", "retried"))
        await run.write("3")
        await run.output._store()
        world.source.away = False
        world.now_s += 20.0
        assert await deliverer.step() == 1
        await until(lambda: text(world) == events("1", "2", "3"))
        await run.write("4")
        await until(lambda: text(world) == events("1", "2", "3", "4"))
        await run.end()
        await until(lambda: world.source.replies[-1][1]["type"] == "result")


async def test_who_is_too_slow_reads_on_in_the_store(world: QueueWorld) -> None:
    await asked(world)
    async with process(world) as deliverer:
        run = begin_run(world, deliverer)
        run.live._most = 100
        await run.begin()
        tokens = [str(number) * 30 for number in range(8)]
        await run.write(*tokens)
        await run.output._store()
        await run.write("last")
        await until(lambda: text(world) == events(*tokens, "last"))
        await run.end()
        await until(lambda: world.source.replies[-1][1]["type"] == "result")


async def test_leases_are_renewed_together_and_one_that_is_lost_is_left(world: QueueWorld) -> None:
    await asked(world)
    async with process(world, lease_s=0.03) as deliverer:
        run = begin_run(world, deliverer)
        await run.begin()
        await run.write("1")
        await until(lambda: text(world))
        (followed,) = deliverer.live._following.values()
        (taken,) = world.store.queue_jobs.take_over([run.job.id], ["orders"], 60.0)
        assert taken.plan.sequence > 1000
        await until(lambda: followed.lost)
        await run.write("2")
        await until(lambda: not deliverer.live._following)
    assert text(world) == events("1")
    await run.output.abandon()
