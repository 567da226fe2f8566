"""A gateway is killed (SIGKILL) and started again at once: how soon does each of its agents serve again?

One gateway process, one scripted engine and ``agents`` whole agents (``tests.support.fleet``: in four
processes, each agent with a session, a dialer, a state directory and a model of its own; they share
interpreters, loops and the engine). As soon as the new gateway listens one client for each agent asks that
agent's own model. What is refused is asked again. An agent is back when its client's answer says 200.

The gateway runs from byte code, as any installation does, even where the environment forbids to write it.
"""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

from gateway.tools.quickstart.processes import Child
from tests.bench.clients import post
from tests.bench.figures import cpu_s, percentile
from tests.support.processes import Gateway, House

FLEETS = 4
GOAL_S = 2.0
_CALM_S = 3.0
"""Between the last answer and the kill: tunnels count as good, nothing of the start is left to do."""
_PATIENCE_S = 60.0
_KNOCK_S = 0.005
_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Site:
    house: House
    gateway: Gateway
    environment: Mapping[str, str]
    """The gateway's, over our own."""
    fleets: tuple[Child, ...]
    names: tuple[str, ...]
    key: str


@dataclass(slots=True)
class Kill:
    """What one kill did. Times are seconds after it."""

    started_s: float = 0.0
    """The new process was spawned."""
    listening_s: float = 0.0
    """Its port took a connection."""
    answered_s: list[float] = field(default_factory=list)
    """When each agent's model answered 200."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that had to be sent again, by status or error."""
    gateway_cpu_s: float = 0.0
    gateway_cpu_listening_s: float = 0.0
    """Of the above, until it listened."""
    agents_cpu_s: float = 0.0
    load: float = 0.0
    """The machine's load average of the last minute, this bench included."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """Figures of one run."""

    agents: int
    kills: tuple[Kill, ...]

    def after(self, since: Callable[[Kill], float]) -> list[float]:
        """Of all agents and kills, seconds from ``since`` to the first 200."""
        return [at_s - since(kill) for kill in self.kills for at_s in kill.answered_s]

    @property
    def rows(self) -> dict[str, list[float]]:
        """Name → seconds."""
        return {
            "from the kill": self.after(lambda kill: 0.0),
            "from the gateway's start": self.after(lambda kill: kill.started_s),
            "from its first connection": self.after(lambda kill: kill.listening_s),
            "start to first connection": [kill.listening_s - kill.started_s for kill in self.kills],
        }

    @property
    def met(self) -> bool:
        return percentile(self.after(lambda kill: 0.0), 0.99) <= GOAL_S

    def __str__(self) -> str:
        kills = self.kills
        lines = [f"{self.agents} agents, {len(kills)} kills{'':14} p50     p90     p99     max"]
        for name, values in self.rows.items():
            shares = [percentile(values, share) for share in (0.5, 0.9, 0.99)]
            lines.append(f"{name:30}" + "".join(f"{each:6.2f} s" for each in (*shares, max(values))))
        refused = sum((kill.refused for kill in kills), Counter[str]())
        lines += [
            f"gateway CPU a kill            {sum(k.gateway_cpu_s for k in kills) / len(kills):6.2f} s, "
            f"{sum(k.gateway_cpu_listening_s for k in kills) / len(kills):.2f} s of it to listen",
            f"agents' CPU a kill            {sum(k.agents_cpu_s for k in kills) / len(kills):6.2f} s",
            f"asked again                   {dict(refused) or 'nobody'}",
            f"load average                  {max(k.load for k in kills):6.1f} on {os.cpu_count()} cores",
            f"goal: p99 <= {GOAL_S:g} s from the kill: {'met' if self.met else 'MISSED'}",
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything measured, and the summary."""
        summary = {
            name: {f"p{round(100 * share)}_s": percentile(values, share) for share in (0.5, 0.9, 0.99)}
            | {"max_s": max(values)}
            for name, values in self.rows.items()
        }
        value = {"agents": self.agents, "goal_s": GOAL_S, "met": self.met, "summary": summary}
        return json.dumps(value | {"kills": [asdict(kill) for kill in self.kills]}, indent=1)


def byte_code_in(directory: Path) -> Mapping[str, str]:
    """An environment in which the first start leaves byte code there for the next."""
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(directory)}


def build(
    house: House, agents: int, fleets: int = FLEETS, environment: Mapping[str, str] = MappingProxyType({})
) -> Site:
    """Start it all and wait until every agent's model is on offer. ``environment`` is the gateway's."""
    names = tuple(f"a{number}" for number in range(agents))
    gateway = house.gateway("--log-level", "warning", environment=environment)
    key, token = gateway.key("bench"), gateway.token(uses=agents)
    engine = house.engine(*(argument for name in names for argument in ("--model", name)))
    common = ("--gateway", gateway.url, "--join", token, "--engine", engine.url)
    started = []
    for number in range(min(fleets, agents)):
        state = house.directory / f"fleet{number}"
        arguments = (*names[number::fleets], *common, "--state", str(state))
        started.append(house.children.start(f"fleet{number}", "tests.support.fleet", *arguments))
    wanted = set(names)
    house.children.wait_until(lambda: wanted <= set(gateway.models(key)), "all agents serve", 180.0)
    return Site(house, gateway, environment, tuple(started), names, key)


def run(site: Site, kills: int, *, impatient: bool = False) -> Restarts:
    """Kill and start again ``kills`` times. Impatient clients ask from the kill on, again and again."""
    done, child = [], site.gateway.child
    for number in range(kills):
        time.sleep(_CALM_S)
        before = [cpu_s(fleet.pid) for fleet in site.fleets]
        child, kill = _kill(site, child, number, impatient)
        kill.gateway_cpu_s, kill.load = cpu_s(child.pid), os.getloadavg()[0]
        kill.agents_cpu_s = sum(cpu_s(fleet.pid) for fleet in site.fleets) - sum(before)
        done.append(kill)
    return Restarts(len(site.names), tuple(done))


def _kill(site: Site, child: Child, number: int, impatient: bool) -> tuple[Child, Kill]:
    """One kill, until everybody is back; the new gateway's process."""
    gateway = site.gateway
    listen = ("--listen", f"127.0.0.1:{gateway.port}", "--state", str(gateway.state))
    kill, killed_s = Kill(), time.monotonic()
    child.signal(signal.SIGKILL)
    child.ended(10.0)
    site.house.children.stop(child)
    kill.started_s = time.monotonic() - killed_s
    arguments = ("gateway", *listen, "--log-level", "warning")
    child = site.house.children.start(f"gateway-{number}", *arguments, environment=site.environment)
    asyncio.run(_everybody(site, child, kill, lambda: time.monotonic() - killed_s, impatient))
    return child, kill


async def _everybody(
    site: Site, child: Child, kill: Kill, since_s: Callable[[], float], impatient: bool
) -> None:
    listens = asyncio.Event()
    if impatient:
        listens.set()
    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as tasks:
        for name in site.names:
            tasks.create_task(_ask(site, name, kill, since_s, listens))
        while not await _listens(site.gateway.port):  # noqa: ASYNC110 (nobody could tell us)
            await asyncio.sleep(_KNOCK_S)
        kill.listening_s, kill.gateway_cpu_listening_s = since_s(), cpu_s(child.pid)
        listens.set()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _ask(site: Site, name: str, kill: Kill, since_s: Callable[[], float], begin: asyncio.Event) -> None:
    """Ask that agent's model until it answers."""
    body = {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "there?"}]}
    request = post(site.key, "/v1/chat/completions", "application/json", json.dumps(body).encode())
    await begin.wait()
    while (status := await _status(site.gateway.port, request)) != "200":
        kill.refused[status] += 1
        await asyncio.sleep(_AGAIN_S)
    kill.answered_s.append(since_s())


async def _status(port: int, request: bytes) -> str:
    """The status of the whole answer, or what went wrong."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            answer = await reader.read()
        finally:
            writer.close()
    except OSError as error:
        return type(error).__name__
    return answer[9:12].decode() or "closed"


def write(figures: Restarts, file: Path) -> None:
    """Keep them as JSON."""
    file.write_text(figures.to_json())
