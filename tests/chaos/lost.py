"""Engines that take requests and never answer, one after the other, with the gateway's default budgets.

Everything else is well, so the rule is strict: each request ends with its whole answer within ``WITHIN_S`` of
the moment in which the gateway hears of the loss. A realtime request in one piece ends in time though nobody
ever says that the engine is lost: a second copy of it is sent elsewhere.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from time import monotonic

import orjson

from gateway.runtime.config.settings import DispatchTable
from tests.chaos.asks import PATHS, Ask
from tests.chaos.checks import Verdict
from tests.chaos.house import ChaosHouse
from tests.chaos.load import Load
from tests.chaos.outcome import Outcome
from tests.chaos.settle import everything_is_idle
from tests.chaos.town import build_town
from tests.support.scripted_engine import Trouble

WITHIN_S = 15.0
"""A silent answer is gone on with after 5 s; the rest is for answers themselves, and for slow machines."""
DECLARED_S = 60.0
"""An agent looks every 2 s, and takes an engine with requests for lost after 15 s of silence."""
HEDGED_S = DispatchTable().stall_s + WITHIN_S
_MODEL = "alpha"
_RUNNING_S = 1.0
"""So long before the loss the first requests are sent: the heads of their streams are out then."""


class Loss(StrEnum):
    """How an engine is lost. It takes every request."""

    UNNOTICED = "answers its agent and no request"
    """Nobody says that it is lost. The first, for by default there is one second copy to begin with, and then
    one for fifty requests."""
    UNWELL = "says that it is not well"
    SILENT = "answers nothing at all"
    FROZEN = "is stopped by a signal"


@dataclass(slots=True)
class Findings:
    """What one loss did."""

    loss: Loss
    outcomes: list[Outcome] = field(default_factory=list)
    unended: int = 0
    declared_s: float | None = None
    """How long it took until the gateway heard of the loss."""
    ended_s: float = 0.0
    """How long after the loss the last request ended."""
    left: str = ""
    """What was left over once the engine was well again."""

    @property
    def held(self) -> int:
        """How many ended that the lost engine had kept waiting."""
        return sum(
            each.attempts != "1" or each.ended_s - each.began_s > each.ask.lasts_s + 1
            for each in self.outcomes
        )

    @property
    def failures(self) -> list[str]:
        """What is wrong; empty when nothing is."""
        wrong = [each for each in self.outcomes if each.finding.verdict is not Verdict.RIGHT]
        found = [str(each) for each in wrong]
        if self.unended:
            since = "the loss" if self.declared_s is None else "the gateway heard of it"
            found.append(f"{self.unended} requests without an end {self._allowed_s:.0f} s after {since}")
        if self.declared_s is None and self.loss is not Loss.UNNOTICED:
            found.append(f"not declared within {DECLARED_S:.0f} s")
        elif not self.held and not self.unended:
            found.append("no request was at the engine, so nothing was shown")
        found += [self.left] if self.left else []
        return [f"an engine that {self.loss}: {what}" for what in found]

    @property
    def _allowed_s(self) -> float:
        return HEDGED_S if self.loss is Loss.UNNOTICED else WITHIN_S

    def __str__(self) -> str:
        declared = "never declared" if self.declared_s is None else f"declared after {self.declared_s:.1f} s"
        verdicts = (
            f"{len(self.outcomes)} requests ended, {self.held} of them elsewhere, {self.unended} did not"
        )
        return (
            f"engine {self.loss}: {declared}, {verdicts}; the last ended {self.ended_s:.1f} s after the loss"
        )


def asks_at_a_loss(loss: Loss, number: int) -> tuple[Sequence[Ask], Sequence[Ask]]:
    """Requests that run when the engine is lost, and those that come just then; from ``number`` on."""
    if loss is Loss.UNNOTICED:
        return (), [_ask(number + place, "chat", stream=False, realtime=True) for place in range(3)]
    running = [_ask(number + place, "chat", stream=True, seconds=4.0) for place in range(6)]
    kinds = [(route, stream) for route in PATHS for stream in (False, True)]
    coming = [
        _ask(number + 6 + place, route, stream=stream, realtime=place < len(kinds))
        for place, (route, stream) in enumerate(kinds * 2)
    ]
    return running, coming


def _ask(number: int, route: str, *, stream: bool, seconds: float = 0.5, realtime: bool = False) -> Ask:
    pace = 25.0
    return Ask(
        number=number,
        model=_MODEL,
        route=route,
        prompt=f"request {number} at an engine that is lost",
        tokens=int(pace * seconds),
        stopped=False,
        stream=stream,
        tokens_per_s=pace,
        realtime=realtime,
    )


async def run_losses(losses: Sequence[Loss], directory: Path, say: Callable[[str], None]) -> list[str]:
    """Each of ``losses`` once, at one engine after the other, for one that was lost gets less for a while.

    Returns what is wrong, in words; logs lie in ``directory``.
    """
    failures: list[str] = []
    async with ChaosHouse(directory, build_town(demo=False, small=True), short_budgets=False) as house:
        for place, loss in enumerate(losses):
            name = house.town.posts[place % len(house.town.posts)].name
            findings = await _lose(house, loss, name, 1000 * place)
            say(str(findings))
            failures += findings.failures
        failures += house.died()
    return failures


async def _lose(house: ChaosHouse, loss: Loss, name: str, number: int) -> Findings:
    findings = Findings(loss)
    clock, running, coming = monotonic, *asks_at_a_loss(loss, number)
    async with Load(house, number, clock, findings.outcomes.append) as load:
        for ask in running:
            load.send(ask)
        await asyncio.sleep(_RUNNING_S if running else 0.0)
        async with lost(house, loss, name):
            began_s = clock()
            for ask in coming:
                load.send(ask)
            allowed_s = HEDGED_S
            if loss is not Loss.UNNOTICED:
                await _until(lambda: _is_declared(house, name), DECLARED_S)
                if await _is_declared(house, name):
                    findings.declared_s = clock() - began_s
                allowed_s = WITHIN_S
            await load.until_idle(allowed_s)
            findings.unended, findings.ended_s = load.in_flight, clock() - began_s
        await load.until_idle(WITHIN_S)
    for what, condition in (
        ("slots in use, streams open or requests queued", lambda: everything_is_idle(house)),
        ("slots are missing", house.everything_is_served),
    ):
        if not await _until(condition, DECLARED_S):
            findings.left = what
    return findings


@asynccontextmanager
async def lost(house: ChaosHouse, loss: Loss, name: str) -> AsyncIterator[None]:
    """Meanwhile the engine of the agent ``name`` is lost; then it is well again."""
    engine = house.engines[name]
    if loss is Loss.FROZEN:
        engine.child.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            engine.child.signal(signal.SIGCONT)
        return
    trouble = {Loss.UNWELL: Trouble.UNWELL, Loss.SILENT: Trouble.SILENT, Loss.UNNOTICED: Trouble.HANG}[loss]
    await asyncio.to_thread(engine.suffer, trouble)
    try:
        yield
    finally:
        await asyncio.to_thread(engine.suffer, Trouble.NONE)


async def _is_declared(house: ChaosHouse, name: str) -> bool:
    """Whether the gateway knows that the engine is lost."""
    status, text = await house.get("/admin/agents", house.admin_key)
    if status != 200:
        return False
    agents = {agent["name"]: agent for agent in orjson.loads(text)["agents"]}
    claims = agents[name].get("deployments", [])
    return bool(claims) and all(claim["status"] == "failed" for claim in claims)


async def _until(condition: Callable[[], Awaitable[bool]], timeout_s: float) -> bool:
    """Whether it holds in time."""
    deadline_s = monotonic() + timeout_s
    while not (holds := await condition()) and monotonic() < deadline_s:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return holds
