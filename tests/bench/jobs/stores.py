"""Jobs a second, and what one costs from its submission to its result, by what keeps them."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench import crowd, shared
from tests.bench.jobs.client import JobClient, chat_of
from tests.bench.peers.workloads import MODEL
from tests.support.processes import House

_SLOTS = 64
SETUPS: dict[str, Callable[[House], AbstractContextManager[shared.Arranged]]] = {
    "SQLite": shared.with_files,
    "PostgreSQL": shared.with_postgres,
    "PostgreSQL and Redis": shared.with_postgres_and_redis,
}


@dataclass(frozen=True, slots=True)
class StoreSizes:
    jobs: int = 5000
    warm: int = 500


@dataclass(frozen=True, slots=True)
class JobCost:
    """One store. CPU is in microseconds for a job; the engine answers at once."""

    setup: str
    jobs: int
    per_s: float
    gateway_us: float
    agent_us: float
    store_us: float | None
    """Of PostgreSQL's processes; None: there are none."""
    redis_us: float | None
    failed: int

    def __str__(self) -> str:
        def shown(value: float | None) -> str:
            return "–" if value is None else f"{value:,.0f} µs"

        return (
            f"{self.setup:<22} {self.per_s:6,.0f} jobs/s  CPU gateway {self.gateway_us:,.0f} µs, agent "
            f"{self.agent_us:,.0f} µs, PostgreSQL {shown(self.store_us)}, Redis {shown(self.redis_us)}; "
            f"{self.failed} of {self.jobs} failed"
        )


@dataclass(frozen=True, slots=True)
class JobCosts:
    """Of one run."""

    setups: list[JobCost]

    def __str__(self) -> str:
        return "\n".join(map(str, self.setups))

    def to_json(self) -> str:
        return json.dumps([asdict(each) for each in self.setups], indent=1)


def run(directory: Path, sizes: StoreSizes, only: Sequence[str] = ()) -> JobCosts:
    """Every store, or ``only`` those. The caller asked :func:`tools.missing`. Raises pytest's Skipped
    without servers."""
    found = []
    for number, name in enumerate(only or SETUPS):
        with House(directory / str(number)) as house, SETUPS[name](house) as (servers, arguments):
            found.append(_measure(name, house, servers, arguments, sizes))
    return JobCosts(found)


def _measure(
    name: str,
    house: House,
    servers: dict[str, shared.StoreServer],
    arguments: tuple[str, ...],
    sizes: StoreSizes,
) -> JobCost:
    gateway = house.gateway("--log-level", "warning", *arguments)
    client = JobClient(gateway, gateway.key("bench"))
    site = crowd.start_agents(house, gateway, 1, _SLOTS, client.key)

    def cpu() -> dict[str, float]:
        agents = sum(shared.cpu_s(shared.family(pid)) for pid in site.agents_pids)
        return shared.cpu_by_part(gateway, servers) | {"agent": agents}

    client.submit([chat_of(MODEL, "warm", 16)] * sizes.warm)
    client.until_ended()
    bodies = [chat_of(MODEL, f"job {number}", 16) for number in range(sizes.jobs)]
    before, began_s = cpu(), time.monotonic()
    client.submit(bodies)
    client.until_ended()
    took_s = time.monotonic() - began_s
    used = {part: (after - before[part]) / sizes.jobs * 1e6 for part, after in cpu().items()}
    return JobCost(
        name,
        sizes.jobs,
        sizes.jobs / took_s,
        used["gateway"],
        used["agent"],
        used.get("PostgreSQL"),
        used.get("Redis"),
        client.failed_jobs(),
    )
