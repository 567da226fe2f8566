"""A run with queues: messages of a broker are answered though gateways and agents are killed.

For comparison a plain worker loop (:mod:`tests.chaos.jobs.plain_worker`) has the same messages under the same
kills.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import pytest

from gateway.domain.queues import QueueKind
from gateway.tools.quickstart.processes import Child
from tests.chaos.jobs.brokers import BROKERS, Broker, redis_lists
from tests.chaos.jobs.house import KEY_NAME, SLOTS, JobsHouse, kill_child
from tests.chaos.jobs.lines import BatchLine, JobsPlan, Kill
from tests.chaos.jobs.replies import ReplyFindings
from tests.chaos.logs import defects_in

POLL_S = 0.05
STILL_S = 120.0
"""No reply came for so long: those that are missing are lost. What a dead gateway held comes again after a
minute and a quarter."""
PLAIN_STILL_S = 3.0
"""The same of the plain worker, whose messages come to nobody again."""
PLAIN = "plain worker"
_PREFETCH = 32


@dataclass(frozen=True, slots=True)
class QueuesPlan:
    """What is sent and who is killed; the rest follows from the seed."""

    seed: int
    messages: int = 10_000
    kills: int = 10
    gateways: int = 1
    kinds: tuple[QueueKind, ...] = tuple(BROKERS)
    kills_gateways: bool = True
    """Every second kill is a gateway's, the others are agents'; False: all are agents'."""
    linger_s: float = 80.0
    """So long after the last kill it is looked whether anything comes twice."""

    @property
    def jobs(self) -> JobsPlan:
        return JobsPlan(self.seed, self.messages, self.kills, self.gateways, demo=False, refused_share=0.0)

    def lines(self) -> tuple[BatchLine, ...]:
        """What is asked by each message, by its id."""
        (lines,) = self.jobs.batches()
        return lines


Strike = Callable[[int, Kill], Awaitable[None]]
"""Carries out a kill, the how manyth it is."""


async def run_queues(plan: QueuesPlan, directory: Path, say: Callable[[str], None]) -> list[str]:
    """Every source, then the plain worker. Returns what is wrong, in words; logs lie in ``directory``."""
    wrong = []
    for kind in plan.kinds:
        try:
            findings = await _run_source(plan, kind, directory / kind.value)
        except pytest.skip.Exception as skipped:
            say(f"{kind}: not run: {skipped}")
            wrong.append(f"{kind} was not run: {skipped}")
            continue
        say(f"{kind}: {findings}")
        wrong += [f"{kind}: {each}" for each in findings.wrong]
    plain = await _run_plain(plan, directory / "plain")
    say(f"{PLAIN}: {plain}")
    for each in wrong:
        say(f"WRONG: {each}")
    return wrong


async def _run_source(plan: QueuesPlan, kind: QueueKind, directory: Path) -> ReplyFindings:
    async with BROKERS[kind](_made(directory)) as broker:
        settings = {"CONFIG": str(_write_settings(directory, kind, broker))}
        async with JobsHouse(directory, gateways=plan.gateways, settings=settings) as house:

            async def strike(number: int, kill: Kill) -> None:
                if plan.kills_gateways and number % 2 == 0:
                    await house.kill_gateway(kill.gateway, kill.away_s)
                else:
                    posts = house.town.posts
                    await house.kill_agent(posts[number // 2 % len(posts)], kill.away_s)

            findings = await _carry_out(plan, broker, strike, STILL_S, plan.linger_s)
            findings.computed = await asyncio.to_thread(house.computed_tokens)
            findings.note("dead letters", await broker.dead_letters())
            for each in house.died():
                findings.note(each, 1)
    for each in defects_in(directory):
        findings.note(each, 1)
    return findings


async def _run_plain(plan: QueuesPlan, directory: Path) -> ReplyFindings:
    """Its losses are no failure of the run: they are told."""
    async with redis_lists(_made(directory)) as broker, JobsHouse(directory, gateways=0) as house:
        engines = [engine.url for engine in house.engines.values()]
        words = (broker.url, broker.queue, broker.answers, str(SLOTS * len(engines)), *engines)
        worker = [await _start_worker(house, *words)]

        async def strike(number: int, kill: Kill) -> None:
            await asyncio.to_thread(kill_child, worker.pop())
            await asyncio.sleep(kill.away_s)
            worker.append(await _start_worker(house, *words))

        findings = await _carry_out(plan, broker, strike, PLAIN_STILL_S, 0.0)
        findings.computed = await asyncio.to_thread(house.computed_tokens)
        return findings


async def _start_worker(house: JobsHouse, *words: str) -> Child:
    """Returns when it works."""
    worker = house.start("worker", "tests.chaos.jobs.plain_worker", *words)

    async def works() -> bool:
        worker.check()
        return "working" in worker.log.read_text()

    await house.until("the plain worker works", works)
    return worker


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _write_settings(directory: Path, kind: QueueKind, broker: Broker) -> Path:
    """The gateways' file."""
    lines = [
        "[[jobs.queues]]",
        'name = "messages"',
        f'kind = "{kind.value}"',
        f'url = "{broker.url}"',
        f'queue = "{broker.queue}"',
        f'key = "{KEY_NAME}"',
        f"prefetch = {_PREFETCH}",
    ]
    path = directory / "gateway.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


async def _carry_out(
    plan: QueuesPlan, broker: Broker, strike: Strike, still_s: float, linger_s: float
) -> ReplyFindings:
    """Send all messages, kill, and collect replies until all are there and none has come twice for
    ``linger_s`` after the last kill, or until no more come for ``still_s``."""
    lines, began_s = plan.lines(), monotonic()
    findings = ReplyFindings({line.custom_id: line for line in lines})
    await broker.put([_message(line, broker.answers) for line in lines])
    async with asyncio.TaskGroup() as tasks:
        killing = tasks.create_task(_kill(plan, findings, strike))
        moved_s = struck_s = monotonic()
        while True:
            for reply in await broker.replies():
                findings.take(reply)
                moved_s = monotonic()
                findings.took_s = moved_s - began_s
            if not killing.done():
                moved_s = struck_s = monotonic()
            quiet_s, allowed_s = (struck_s, linger_s) if findings.is_complete else (moved_s, still_s)
            if killing.done() and monotonic() - quiet_s > allowed_s:
                break
            await asyncio.sleep(POLL_S)
    return findings


def _message(line: BatchLine, reply_to: str) -> bytes:
    message: dict[str, Any] = {"id": line.custom_id, "body": line.body(), "reply_to": reply_to}
    return orjson.dumps(message)


async def _kill(plan: QueuesPlan, findings: ReplyFindings, strike: Strike) -> None:
    """Each when so many are answered, or when no more answers come."""
    kills: Sequence[Kill] = plan.jobs.kill_times()
    for number, kill in enumerate(kills):
        seen, seen_s = findings.answered, monotonic()
        while findings.answered < kill.after and monotonic() - seen_s < STILL_S:
            await asyncio.sleep(POLL_S)
            if findings.answered != seen:
                seen, seen_s = findings.answered, monotonic()
        await strike(number, kill)
