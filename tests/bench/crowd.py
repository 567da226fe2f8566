"""A gateway with many whole agents in few processes, and the compiled engine and load around them."""

import contextlib
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.tools.quickstart.processes import Child
from tests.bench.peers.tools import PlainEngine, Tools, built, start_engine
from tests.bench.peers.workloads import MODEL
from tests.support.processes import Gateway, House, fetch

FLEETS = 4
_REFRESH_S = 30.0
"""How often agents ask engines what they serve: a thousand of them every five seconds would be the load."""
_JOIN_S = 300.0
_IDLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """All of it, running. Each agent serves ``MODEL`` and a model with its own name."""

    tools: Tools
    engine: PlainEngine
    gateway: Gateway
    fleets: tuple[Child, ...]
    names: tuple[str, ...]
    key: str

    @property
    def agents_pids(self) -> list[int]:
        return [fleet.pid for fleet in self.fleets]

    def _target(self, key: str) -> tuple[str, ...]:
        return ("-P", str(self.gateway.port), "-a", key)

    def ask(self, kind: str, *arguments: str, key: str = "") -> dict[str, Any]:
        """Load the gateway, with another key if one is named; CPU and memory of gateway and agents are told
        beside what was answered."""
        watched = ",".join(map(str, [self.gateway.child.pid, *self.agents_pids]))
        return self.tools.ask(
            kind, *self._target(key or self.key), "-p", watched, *arguments, timeout_s=300.0
        )

    @contextlib.contextmanager
    def loaded(self, kind: str, *arguments: str) -> Iterator[None]:
        """Load it meanwhile."""
        command = [str(self.tools.load), kind, *self._target(self.key), *arguments]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as load:
            try:
                yield
            finally:
                load.terminate()

    def active(self) -> int:
        """Streams that the engine has running."""
        return int(fetch(f"{self.engine.url}/_control")["active"])

    def until_idle(self) -> None:
        """Waits until the engine has been told of every stream that nobody wants any more."""
        deadline_s = time.monotonic() + _IDLE_S
        while active := self.active():
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{active} streams run on {_IDLE_S:g} s after their clients left")
            time.sleep(0.05)


def start_gateway(house: House, environment: Mapping[str, str] = MappingProxyType({})) -> Gateway:
    """One that says nothing of each request: with ten thousand of them the log is not what is asked about."""
    return house.gateway("--log-level", "warning", environment=environment)


def start_agents(house: House, gateway: Gateway, agents: int, slots: int, key: str) -> Crowd:
    """Have so many agents with so many slots each, and wait until all are connected and serve."""
    tools = built()
    engine = start_engine(tools, house)
    names = tuple(f"a{number}" for number in range(agents))
    token = gateway.token(uses=agents)
    common: tuple[str, ...] = (
        "--gateway",
        gateway.url,
        "--join",
        token,
        "--engine",
        f"{engine.url}/m/{{name}}",
    )
    common += ("--slots", str(slots), "--refresh-s", f"{_REFRESH_S:g}")
    fleets = []
    for number in range(min(FLEETS, agents)):
        arguments = (*names[number::FLEETS], *common, "--state", str(house.directory / f"fleet{number}"))
        fleets.append(house.children.start(f"fleet{number}", "tests.support.fleet", *arguments))
    until_on_offer(house, gateway, key, {*names, MODEL})
    return Crowd(tools, engine, gateway, tuple(fleets), names, key)


def until_on_offer(house: House, gateway: Gateway, key: str, wanted: set[str]) -> None:
    """Return once the models ``wanted`` are on offer. Asks seldom: a gateway that takes a thousand agents in
    has little time for it."""
    deadline_s = time.monotonic() + _JOIN_S
    offered: set[str] = set()
    while not wanted <= offered:
        house.children.check()
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{len(wanted - offered)} models missing after {_JOIN_S:g} s")
        time.sleep(min(1.0, len(wanted) / 100))
        with contextlib.suppress(OSError):
            offered = set(gateway.models(key))


def cpu_us(seen: Mapping[str, Any], pids: Sequence[int], units: float) -> float:
    """Microseconds of those processes for each of ``units``; infinite for none."""
    used_s = sum(seen["processes"][str(pid)][kind] for pid in pids for kind in ("user_s", "system_s"))
    return float(used_s) / units * 1e6 if units else float("inf")


def may_open(files: int) -> str | None:
    """Let this process and its children have that many files open. None, or what is missing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = [limit if limit == resource.RLIM_INFINITY else max(limit, files) for limit in (soft, hard)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough[0], enough[1]))
    except (ValueError, OSError):
        return f"a process may have {hard} files open here, {files} are needed (ulimit -Hn {files})"
    return None
