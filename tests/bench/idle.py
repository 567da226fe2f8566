"""What many agents cost several gateway processes on one store while nobody asks anything.

Each agent holds a session with each process. CPU and memory are told for each process of the gateway, for the
agents' processes together, and for the store's; the store's round trips are counted at a proxy.
"""

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import psutil  # type: ignore[import-untyped]

from gateway.storage.wrapped_keys import CLUSTER_KEY_NAME
from shared.process.ports import free_port
from tests.bench import crowd
from tests.bench.shared import CountingProxy
from tests.support.postgres import DATABASE, own_postgres
from tests.support.processes import Gateway, House

AGENTS, PROCESSES = 1000, 4
SECONDS = 30.0
_SLOTS = 4
_SETTLE_S = 5.0
_SPARE_FILES = 1024
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """One process of the gateway."""

    name: str
    rss_mb: float
    cpu_s_per_s: float


@dataclass(frozen=True, slots=True)
class IdleFigures:
    """Of one run."""

    agents: int
    sessions: int
    """At all processes together."""
    joined_s: float
    """From the first agent's start until every process offers every agent's model."""
    empty_rss_mb: float
    """A process of the gateway before there were agents, on average."""
    processes: list[ProcessFigures]
    agents_rss_mb: float
    agents_cpu_s_per_s: float
    store_cpu_s_per_s: float
    store_trips_per_s: float

    def __str__(self) -> str:
        each = "\n".join(
            f"  {process.name}: {process.rss_mb:.0f} MB, {process.cpu_s_per_s:.3f} s of CPU a second"
            for process in self.processes
        )
        return (
            f"{self.agents:,} agents with {self.sessions:,} sessions, all on offer everywhere after "
            f"{self.joined_s:.0f} s; a process without agents has {self.empty_rss_mb:.0f} MB\n{each}\n"
            f"  all agents: {self.agents_rss_mb:.0f} MB, {self.agents_cpu_s_per_s:.3f} s of CPU a second\n"
            f"  store: {self.store_cpu_s_per_s:.3f} s of CPU a second, {self.store_trips_per_s:.1f} round "
            "trips a second from all processes"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def missing(agents: int, processes: int) -> str | None:
    """Why it cannot be run here; None if it can."""
    return crowd.may_open(agents * (processes + 2) + _SPARE_FILES)


def run(
    house: House, agents: int, processes: int, seconds: float, settle_s: float = _SETTLE_S
) -> IdleFigures:
    """The caller asked :func:`missing` and :func:`tools.missing`. Raises pytest's Skipped without a
    PostgreSQL server."""
    with own_postgres() as postgres, CountingProxy(postgres.port) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{DATABASE}"
        gateways = _gateways(house, url, processes)
        empty_mb = sum(_rss_mb([each.child.pid]) for each in gateways) / processes
        key = gateways[0].key("bench")
        began_s = time.monotonic()
        site = crowd.start_agents(house, gateways[0], agents, _SLOTS, key)
        for gateway in gateways[1:]:
            crowd.until_on_offer(house, gateway, key, set(site.names))
        joined_s = time.monotonic() - began_s
        time.sleep(settle_s)
        groups = [*([each.child.pid] for each in gateways), site.agents_pids, _family(postgres.pid)]
        before, sent, began_s = [_cpu_s(pids) for pids in groups], proxy.chunks, time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        used = [(_cpu_s(pids) - cpu_s) / took_s for pids, cpu_s in zip(groups, before, strict=True)]
        figures = [
            ProcessFigures(gateway.child.name, _rss_mb([gateway.child.pid]), cpu)
            for gateway, cpu in zip(gateways, used, strict=False)
        ]
        return IdleFigures(
            agents,
            agents * processes,
            joined_s,
            empty_mb,
            figures,
            _rss_mb(site.agents_pids),
            used[-2],
            used[-1],
            (proxy.chunks - sent) / took_s,
        )


def _gateways(house: House, url: str, processes: int) -> list[Gateway]:
    gateways: list[Gateway] = []
    for number in range(processes):
        port = free_port()
        own = {"TRUNKLINE_GATEWAY_CLUSTER__URL": f"http://127.0.0.1:{port}"}
        key = ("--cluster-key", str(gateways[0].state / CLUSTER_KEY_NAME)) if gateways else ()
        arguments = ("--log-level", "warning", "--store", url, *key)
        gateways.append(house.gateway(*arguments, name=f"gateway{number}", port=port, environment=own))
    return gateways


def _family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def _cpu_s(pids: Sequence[int]) -> float:
    """Of those that are still there."""
    used = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            used += sum(psutil.Process(pid).cpu_times()[:2])
    return used


def _rss_mb(pids: Sequence[int]) -> float:
    return float(sum(psutil.Process(pid).memory_info().rss for pid in pids)) / _MEGABYTE
