"""What a token and a request cost as there is more of everything: streams, agents, models, keys.

Tokens a second are the same at every number of streams (ten fast ones or ten thousand slow ones) and of
agents, so that only the number changes. CPU is user and system time of the gateway, and of all agents, over
what was done. Each agent brings a model of its own, so that as many models are on offer as there are agents.
"""

import hashlib
import json
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import insert

from gateway.storage import Store, schema
from tests.bench import crowd
from tests.support.processes import House

STREAMS = (10, 100, 1000, 10_000)
AGENTS = (1, 10, 100, 1000)
KEYS = (1, 100, 10_000, 100_000)
TOKENS_PER_S = 4000
_SLOTS = 1024
_MANY_STREAMS_AGENTS = 10
_AGENTS_STREAMS = 1000
_RAMP_PER_S = 250
_SPARE_FILES = 512
_CONNECTIONS = 16
_FLAT = 1.3
"""A cost counts as flat when its largest is at most so many times its smallest."""


@dataclass(frozen=True, slots=True)
class Point:
    """The cost at one size, microseconds of CPU."""

    size: int
    gateway_us: float
    agents_us: float
    per_s: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """Figures of one run: name → points of growing size."""

    curves: dict[str, list[Point]]

    def ratio(self, name: str) -> float:
        """The gateway's largest cost over its smallest."""
        costs = [point.gateway_us for point in self.curves[name]]
        return max(costs) / min(costs)

    def __str__(self) -> str:
        lines = []
        for name, points in self.curves.items():
            flat = f"flat within {_FLAT:g}" if self.ratio(name) <= _FLAT else "NOT FLAT"
            lines.append(f"{name}: gateway's dearest is {self.ratio(name):.2f} × its cheapest, {flat}")
            lines += [
                f"  {point.size:>7,}  gateway {point.gateway_us:7.1f} µs  agents {point.agents_us:7.1f} µs"
                f"  at {point.per_s:,.0f}/s"
                for point in points
            ]
        return "\n".join(lines)

    def to_json(self) -> str:
        value = {name: [asdict(point) for point in points] for name, points in self.curves.items()}
        return json.dumps({"curves": value, "ratios": {name: self.ratio(name) for name in value}}, indent=1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How far it goes, nothing of what is empty; ``seconds`` is measured at each point."""

    streams: Sequence[int] = STREAMS
    agents: Sequence[int] = AGENTS
    keys: Sequence[int] = KEYS
    tokens_per_s: int = TOKENS_PER_S
    seconds: float = 5.0
    agents_streams: int = _AGENTS_STREAMS
    calm_s: float = 1.0
    """Before it is measured, at least."""


def missing(sizes: Sizes) -> str | None:
    """Why it cannot be run here; None if it can."""
    streams, agents = max((*sizes.streams, sizes.agents_streams)), max(sizes.agents, default=1)
    return crowd.may_open(streams + agents + _SPARE_FILES)


def run(sizes: Sizes) -> Scaling:
    """All of it; bounded by its sizes. The caller asked :func:`missing` before."""
    by_agents = [_with_agents(agents, sizes) for agents in sizes.agents]
    curves = {
        "a token, by streams": _by_streams(sizes) if sizes.streams else [],
        "a token, by agents": [tokens for tokens, _ in by_agents],
        "a request, by agents and models": [requests for _, requests in by_agents],
        "a request, by keys": [_with_keys(keys, sizes) for keys in sizes.keys],
    }
    return Scaling({name: points for name, points in curves.items() if points})


def _by_streams(sizes: Sizes) -> list[Point]:
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory, House(Path(directory)) as house:
        gateway = crowd.start_gateway(house)
        most = max(sizes.streams)
        slots = min(_SLOTS, most // _MANY_STREAMS_AGENTS * 11 // 10 + 8)
        site = crowd.start_agents(house, gateway, _MANY_STREAMS_AGENTS, slots, gateway.key("bench"))
        return [_tokens(site, streams, streams, sizes) for streams in sizes.streams]


def _with_agents(agents: int, sizes: Sizes) -> tuple[Point, Point]:
    """A token's and a request's cost with so many agents."""
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory, House(Path(directory)) as house:
        gateway = crowd.start_gateway(house)
        slots = min(_SLOTS, sizes.agents_streams * 2 // agents + 8)
        site = crowd.start_agents(house, gateway, agents, slots, gateway.key("bench"))
        tokens = _tokens(site, agents, min(sizes.agents_streams, agents * slots), sizes)
        return tokens, _requests(site, agents, sizes)


def _tokens(site: crowd.Crowd, size: int, streams: int, sizes: Sizes) -> Point:
    """The cost of a token when so many streams share the tokens of a second."""
    interval_s = streams / sizes.tokens_per_s
    site.engine.direct(interval_us=int(interval_s * 1e6))
    ramp_s = streams / _RAMP_PER_S
    warm_s = ramp_s + max(sizes.calm_s, 2 * interval_s)
    pace = ("-g", f"{ramp_s:g}", "-w", f"{warm_s:g}", "-d", f"{max(sizes.seconds, interval_s * 2):g}")
    seen = site.ask("stream", "-c", str(streams), "-n", "10000000", *pace)
    site.until_idle()  # before the engine hurries, or it floods those whose client has just left
    site.engine.direct(interval_us=0)
    time.sleep(sizes.calm_s)
    return _point(site, size, seen, seen["tokens"])


def _requests(site: crowd.Crowd, size: int, sizes: Sizes) -> Point:
    """The cost of a short request for the model that the agent in the middle serves alone."""
    model = site.names[len(site.names) // 2]
    pace = ("-c", str(_CONNECTIONS), "-w", f"{sizes.calm_s:g}", "-d", f"{sizes.seconds:g}")
    seen = site.ask("unary", "-m", model, *pace)
    return _point(site, size, seen, seen["right"])


def _point(site: crowd.Crowd, size: int, seen: dict[str, object], units: int) -> Point:
    gateway_us = crowd.cpu_us(seen, [site.gateway.child.pid], units)
    agents_us = crowd.cpu_us(seen, site.agents_pids, units)
    return Point(size, gateway_us, agents_us, units / float(str(seen["seconds"])))


def _with_keys(keys: int, sizes: Sizes) -> Point:
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory, House(Path(directory)) as house:
        gateway = crowd.start_gateway(house)
        key = gateway.key("bench")
        make_keys(gateway.state, keys - 1)
        site = crowd.start_agents(house, gateway, 1, _SLOTS, key)
        return _requests(site, keys, sizes)


def make_keys(state: Path, count: int) -> None:
    """So many keys that nobody has, all in one transaction."""
    if not count:
        return
    with Store.open(state) as store, store.keys._database.write() as connection:
        revision = schema.next_revision(connection, schema.Topic.KEYS)
        connection.execute(
            insert(schema.keys),
            [
                {
                    "id": f"key_{secrets.token_hex(8)}",
                    "name": f"other-{number}",
                    "tenant": f"tenant-{number % 1000}",
                    "digest": hashlib.sha256(secrets.token_bytes(16)).digest(),
                    "hint": "none",
                    "created_s": 1.0,
                    "revision": revision,
                }
                for number in range(count)
            ],
        )
