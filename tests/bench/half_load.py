"""What gateway and agent add to latency at half of what they can carry, where a service is meant to run.

First the saturation rate is searched: requests for paced streams begin at random times (Poisson, open loop),
more a second each time, until tokens come later than they are sent. Then half of that rate is offered through
gateway and agent, and the same to the engine alone. Times count from the moment at which a request was meant
to begin, so none is left out because an earlier one was slow. Added is the difference of both percentiles.
One way is from right before the engine's write of a token to the client's read of it, on one clock.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

from tests.bench.peers.machine import pinned, usage
from tests.bench.peers.tools import PlainEngine, Tools, built, start_engine
from tests.bench.peers.workloads import MODEL
from tests.support.processes import House

FIRST_ADDED_P99_MS, ONE_WAY_P99_MS, UNARY_ADDED_P50_MS = 5.0, 3.0, 0.5
"""The goals."""
_KEPT_UP = 0.97
_STEPS = 3
"""How often the interval is halved in which the saturation rate lies: it is found within an eighth."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The cores of each. With four usable ones or more everybody has its own; with fewer they share."""

    gateway: int
    agent: int
    engine: int
    load: int

    def __str__(self) -> str:
        who: dict[int, list[str]] = {}
        for name, core in asdict(self).items():
            who.setdefault(core, []).append(name)
        return "; ".join(f"core {core}: {', '.join(names)}" for core, names in sorted(who.items()))


def placement(usable: Sequence[int], *, gateway_apart: bool = False) -> Placement:
    """Who runs where on these cores; gateway and agent are the last to share with engine and load.

    ``gateway_apart``: where there are two, the gateway has one to itself, and everybody else the other.
    """
    cores = sorted(usable)
    if len(cores) >= 4:
        return Placement(*cores[:4])
    if len(cores) == 3:
        return Placement(cores[0], cores[1], cores[2], cores[2])
    others = cores[-1]
    return Placement(cores[0], others if gateway_apart else cores[0], others, others)


@dataclass(frozen=True, slots=True)
class HalfLoadSizes:
    """Each stream has ``tokens`` tokens, ``tokens_per_s`` a second. Windows are of ``seconds``."""

    tokens: int = 100
    tokens_per_s: int = 100
    first_requests_per_s: float = 10.0
    most_requests_per_s: float = 1000.0
    """An agent has 1,024 slots, and a stream of this size takes one second."""
    probe_s: float = 3.0
    unary_s: float = 3.0
    """Of unary requests one after the other."""
    seconds: float = 15.0

    @property
    def stream_s(self) -> float:
        return self.tokens / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class HalfLoad:
    """Figures of one run. Times in milliseconds."""

    where: str
    others_cores: float
    """How many cores other programs kept busy meanwhile."""
    saturation_per_s: float
    """Streams that began a second, at most."""
    offered_per_s: float
    """Streams that began a second while it was measured."""
    tokens_per_s: float
    kept_up: bool
    first_added_p50_ms: float
    first_added_p99_ms: float
    one_way_p50_ms: float
    one_way_p99_ms: float
    bare_one_way_p99_ms: float
    """Without gateway and agent: what engine, load and machine take themselves."""
    unary_added_p50_ms: float
    unary_added_p99_ms: float
    gateway_cores: float
    agent_cores: float

    def __str__(self) -> str:
        first, one_way, unary = self.first_added_p99_ms, self.one_way_p99_ms, self.unary_added_p50_ms
        return "\n".join(
            [
                f"{self.where}; other programs: {self.others_cores:.2f} cores",
                f"saturated at {self.saturation_per_s:,.0f} streams/s, offered {self.offered_per_s:,.0f}/s: "
                f"{self.tokens_per_s:,.0f} tokens/s{'' if self.kept_up else ', FELL BEHIND'}",
                f"cores used: gateway {self.gateway_cores:.2f}, agent {self.agent_cores:.2f}",
                f"first token added   p50 {self.first_added_p50_ms:6.2f} ms   p99 {first:6.2f} ms   "
                f"goal p99 < {FIRST_ADDED_P99_MS:g}: {_met(first, FIRST_ADDED_P99_MS)}",
                f"token one way       p50 {self.one_way_p50_ms:6.2f} ms   p99 {one_way:6.2f} ms   "
                f"goal p99 < {ONE_WAY_P99_MS:g}: {_met(one_way, ONE_WAY_P99_MS)} "
                f"(engine and load alone {self.bare_one_way_p99_ms:.2f})",
                f"unary added, one    p50 {unary:6.2f} ms   p99 {self.unary_added_p99_ms:6.2f} ms   "
                f"goal p50 < {UNARY_ADDED_P50_MS:g}: {_met(unary, UNARY_ADDED_P50_MS)}",
            ]
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def _met(measured: float, bound: float) -> str:
    return "met" if measured < bound else "MISSED"


def saturation(keeps_up: Callable[[float], bool], first: float, most: float, steps: int = _STEPS) -> float:
    """The highest rate found that ``keeps_up``, at most ``most``: doubled from ``first``, then by halving.

    0.0 when even ``first`` is too much.
    """
    good, bad = 0.0, first
    while keeps_up(bad):
        if bad >= most:
            return bad
        good, bad = bad, min(bad * 2, most)
    for _ in range(steps if good else 0):
        middle = (good + bad) / 2
        if keeps_up(middle):
            good = middle
        else:
            bad = middle
    return good


def kept_up(seen: dict[str, Any], offered_per_s: float, sizes: HalfLoadSizes) -> bool:
    """Whether what was offered came, nothing failed, and half of it before the next token was due.

    Streams begin at random, so in a short window fewer may have been offered: by three times the square root
    of their number, hardly ever more.
    """
    streams = offered_per_s * seen["seconds"]
    came = seen["tokens"] / sizes.tokens
    late_s = seen["one_way_us"]["p50"] / 1e6
    enough = came >= _KEPT_UP * streams - 3 * sqrt(streams)
    return enough and not any(seen["errors"].values()) and late_s < 1 / sizes.tokens_per_s


@dataclass(frozen=True, slots=True)
class _Asked:
    """Where the load goes: through gateway and agent, or to the engine."""

    tools: Tools
    sizes: HalfLoadSizes
    core: int
    target: tuple[str, ...]
    watched: tuple[int, ...] = ()

    def streams(self, per_s: float, seconds: float) -> dict[str, Any]:
        """Open loop; a window begins when as many streams run as ever will."""
        sizes = self.sizes
        connections = int(per_s * sizes.stream_s * 2) + 64
        pace = ("-r", f"{per_s:g}", "-c", str(connections), "-n", str(sizes.tokens))
        return self._ask("stream", *pace, "-w", f"{1 + sizes.stream_s:g}", "-d", f"{seconds:g}")

    def unary(self) -> dict[str, Any]:
        return self._ask("unary", "-c", "1", "-w", "0.5", "-d", f"{self.sizes.unary_s:g}")

    def _ask(self, kind: str, *arguments: str) -> dict[str, Any]:
        watched = ("-p", ",".join(map(str, self.watched))) if self.watched else ()
        with pinned(self.core):
            return self.tools.ask(kind, *self.target, *watched, *arguments, timeout_s=300.0)


def run(house: House, sizes: HalfLoadSizes, *, gateway_apart: bool = False) -> HalfLoad:
    """Starts all, searches, measures. There must be a compiler. Raises RuntimeError where not even the first
    rate is kept up with, or where nothing comes back."""
    where, tools = placement(sorted(os.sched_getaffinity(0)), gateway_apart=gateway_apart), built()
    with pinned(where.engine):
        engine = start_engine(tools, house)
    with pinned(where.gateway):
        gateway = house.gateway()
    key = gateway.key("bench")
    with pinned(where.agent):
        agent = house.agent(gateway, engine.url, "--slots", "1024")
    house.wait_for_model(gateway, key, MODEL)
    pids = (gateway.child.pid, agent.pid)
    through = _Asked(tools, sizes, where.load, ("-P", str(gateway.port), "-a", key), pids)
    bare = _Asked(tools, sizes, where.load, ("-P", str(engine.port)))
    engine.direct(interval_us=1_000_000 // sizes.tokens_per_s)
    most = saturation(
        lambda per_s: _keeps_up(through, engine, per_s), sizes.first_requests_per_s, sizes.most_requests_per_s
    )
    if not most:
        raise RuntimeError(f"fell behind {sizes.first_requests_per_s:g} streams a second")
    return _measured(str(where), most, through, bare, engine)


def _keeps_up(asked: _Asked, engine: PlainEngine, per_s: float) -> bool:
    sizes = asked.sizes
    seen = asked.streams(per_s, sizes.probe_s)
    time.sleep(sizes.stream_s)  # what the load has left is told to the engine, which forgets it
    return kept_up(seen, per_s, sizes)


def _measured(where: str, most_per_s: float, through: _Asked, bare: _Asked, engine: PlainEngine) -> HalfLoad:
    sizes, per_s, pids = through.sizes, most_per_s / 2, [*through.watched, engine.pid]
    before = usage(pids)
    alone, seen = bare.streams(per_s, sizes.seconds), through.streams(per_s, sizes.seconds)
    alone_unary, unary = bare.unary(), through.unary()
    others_cores = usage(pids).others_cores(before)

    def added_ms(name: str, share: str, *, streamed: bool) -> float:
        with_us, without_us = (seen, alone) if streamed else (unary, alone_unary)
        return float(with_us[name][share] - without_us[name][share]) / 1e3

    def cores_of(pid: int) -> float:
        used = seen["processes"][str(pid)]
        return float(used["user_s"] + used["system_s"]) / float(seen["seconds"])

    return HalfLoad(
        where=where,
        others_cores=others_cores,
        saturation_per_s=most_per_s,
        offered_per_s=per_s,
        tokens_per_s=seen["tokens"] / seen["seconds"],
        kept_up=kept_up(seen, per_s, sizes),
        first_added_p50_ms=added_ms("first_token_us", "p50", streamed=True),
        first_added_p99_ms=added_ms("first_token_us", "p99", streamed=True),
        one_way_p50_ms=seen["one_way_us"]["p50"] / 1e3,
        one_way_p99_ms=seen["one_way_us"]["p99"] / 1e3,
        bare_one_way_p99_ms=alone["one_way_us"]["p99"] / 1e3,
        unary_added_p50_ms=added_ms("latency_us", "p50", streamed=False),
        unary_added_p99_ms=added_ms("latency_us", "p99", streamed=False),
        gateway_cores=cores_of(through.watched[0]),
        agent_cores=cores_of(through.watched[1]),
    )
