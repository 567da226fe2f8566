"""The end of a run: nothing is wrong any more, so nothing may be left over and everybody must serve."""

import asyncio
from collections import Counter
from time import monotonic

from tests.chaos.asks import Ask, Behaviour, draw_demo_ask
from tests.chaos.house import ChaosHouse
from tests.chaos.load import Load
from tests.chaos.outcome import Outcome
from tests.chaos.town import DEMO

QUIET_S = 60.0
"""Longer than a session is kept for a lost agent (30 s), and than an agent spares an engine out of memory."""
_PROOF_AT_ONCE = 24
_DEMO_AT_ONCE = 6
"""More than one: of two idle deployments the same one is always chosen."""
_GAUGES = (
    "trunkline_requests_in_flight",
    "trunkline_queue_requests",
    "trunkline_streams_open",
    "trunkline_unread_bytes",
    "trunkline_unread_disk_bytes",
    "trunkline_answers_held_up",
)


async def leaks_of(house: ChaosHouse, load: Load, proof: "Proof", seed: int) -> list[str]:
    """What is left over once everything is healed; empty when nothing is. In words."""
    left = await _unquiet(house, load)
    left += await proof.missing(seed)
    return list(dict.fromkeys(left + await _unquiet(house, load)))


async def _unquiet(house: ChaosHouse, load: Load) -> list[str]:
    left = []
    if not await load.until_idle(QUIET_S):
        left.append(f"{load.in_flight} requests whose client still waits after {QUIET_S:.0f} s")
    for what, condition in (
        ("slots in use, streams open or requests queued", lambda: _gateway_idle(house)),
        ("requests running in engines", lambda: _engines_idle(house)),
    ):
        try:
            await house.until(what, condition, QUIET_S)
        except TimeoutError:
            left.append(f"{what}: {await _figures(house)}")
    return left


async def everything_is_idle(house: ChaosHouse) -> bool:
    """Whether nothing runs or waits in the gateway or in an engine."""
    return await _gateway_idle(house) and await _engines_idle(house)


async def _gateway_idle(house: ChaosHouse) -> bool:
    metrics = await house.metrics()
    return bool(metrics) and not any(
        value for name, value in metrics.items() if name.partition("{")[0] in _GAUGES
    )


async def _engines_idle(house: ChaosHouse) -> bool:
    running = await asyncio.gather(*(asyncio.to_thread(engine.running) for engine in house.engines.values()))
    return not any(running)


async def _figures(house: ChaosHouse) -> str:
    names = (*_GAUGES, "trunkline_slots_granted", "trunkline_agents_connected", "trunkline_circuits")
    metrics = await house.metrics()
    shown = {name: value for name, value in metrics.items() if name.partition("{")[0] in names and value}
    engines = {name: await asyncio.to_thread(engine.running) for name, engine in house.engines.items()}
    return f"{shown}; engines { ({name: count for name, count in engines.items() if count}) }"


class Proof:
    """Requests after everything is healed, until each deployment has served some."""

    def __init__(self, house: ChaosHouse, load: Load) -> None:
        self.served: Counter[str] = Counter()
        """Answers by agent."""
        self._house = house
        self._load = load

    def saw(self, outcome: Outcome) -> None:
        """To be told of every outcome."""
        if outcome.agent:
            self.served[outcome.agent.partition("/")[0]] += 1

    async def missing(self, seed: int) -> list[str]:
        """What does not come back although there is work for it; sent until it does, or too long."""
        number, deadline_s = 10**9, monotonic() + QUIET_S
        while True:
            unproved = [post for post in self._house.town.posts if not self.served[post.name]]
            complete = await self._house.everything_is_served()
            if (complete and not unproved) or monotonic() > deadline_s:
                break
            for model in self._house.town.models:
                for _ in range(0 if model == DEMO else _PROOF_AT_ONCE):
                    number += 1
                    self._load.send(_short_ask(model, seed, number))
            for _ in range(_DEMO_AT_ONCE if any(post.is_demo for post in unproved) else 0):
                number += 1
                self._load.send(draw_demo_ask(seed, number))
            await self._load.until_idle(QUIET_S)
        missing = [f"{post.name} serves nothing" for post in unproved]
        return missing + ([] if complete else [f"slots missing: {await _figures(self._house)}"])


def _short_ask(model: str, seed: int, number: int) -> Ask:
    return Ask(
        number=number,
        model=model,
        route="chat",
        prompt=f"proof {number} of run {seed}",
        tokens=10,
        stopped=False,
        stream=True,
        tokens_per_s=20.0,
        behaviour=Behaviour.PLAIN,
    )
