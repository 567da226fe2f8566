"""A hundred thousand jobs that wait: claims, lists, submissions and the gateway's memory."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.storage import Store
from gateway.storage.jobs import JobClaim
from tests.bench import shared
from tests.bench.figures import mebibytes, percentile
from tests.bench.jobs.client import JobClient, chat_of
from tests.bench.site import MODEL
from tests.support.leaks import rss_bytes
from tests.support.processes import Gateway, House

_SETTINGS = {"TRUNKLINE_GATEWAY_JOBS__QUEUED": "1000000"}
_PER_BATCH = 50_000
_CLAIMED = 16
_LEASE_S = 600.0
SETUPS: dict[str, Callable[[House], AbstractContextManager[shared.Arranged]]] = {
    "SQLite": shared.with_files,
    "PostgreSQL": shared.with_postgres,
}


@dataclass(frozen=True, slots=True)
class QueuedSizes:
    """``few`` jobs and then ``many``, the former included."""

    few: int = 1000
    many: int = 100_000
    times: int = 100
    """Each thing is done so often."""


@dataclass(frozen=True, slots=True)
class WithQueued:
    """While so many jobs wait: the median and the 99th percentile of each in milliseconds."""

    queued: int
    claim_ms: tuple[float, float]
    """Of sixteen jobs."""
    submit_ms: tuple[float, float]
    """Of one job, over HTTP with all that belongs to it."""
    list_ms: tuple[float, float]
    """The newest 50 that wait."""
    show_ms: tuple[float, float]
    """The last one in the queue, with when it will be done."""
    rss_bytes: int

    def __str__(self) -> str:
        def shown(what: str, times_ms: tuple[float, float]) -> str:
            return f"{what} p50 {times_ms[0]:.1f} ms, p99 {times_ms[1]:.1f} ms"

        return (
            f"{self.queued:>7,} queued: {shown('claim of 16', self.claim_ms)}; "
            f"{shown('submit', self.submit_ms)}; {shown('list', self.list_ms)}; "
            f"{shown('show', self.show_ms)}; {mebibytes(self.rss_bytes)} resident"
        )


@dataclass(frozen=True, slots=True)
class QueuedOfStore:
    """Of one store."""

    setup: str
    idle_rss_bytes: int
    """The gateway's before there was a job."""
    filled_per_s: float
    """Lines of batches that became jobs a second."""
    few: WithQueued
    many: WithQueued

    def __str__(self) -> str:
        head = f"{self.setup}: {mebibytes(self.idle_rss_bytes)} resident without jobs, "
        filled = f"{self.filled_per_s:,.0f} lines of a batch became jobs a second"
        return f"{head}{filled}\n{self.few}\n{self.many}"


@dataclass(frozen=True, slots=True)
class Queued:
    """Of one run."""

    stores: list[QueuedOfStore]

    def __str__(self) -> str:
        return "\n".join(map(str, self.stores))

    def to_json(self) -> str:
        return json.dumps([asdict(each) for each in self.stores], indent=1)


def run(directory: Path, sizes: QueuedSizes, only: Sequence[str] = ()) -> Queued:
    """Every store, or ``only`` those. Raises pytest's Skipped without servers."""
    found = []
    for number, name in enumerate(only or SETUPS):
        with House(directory / str(number)) as house, SETUPS[name](house) as (_, arguments):
            found.append(_measure(name, house, arguments, sizes))
    return Queued(found)


def _measure(name: str, house: House, arguments: tuple[str, ...], sizes: QueuedSizes) -> QueuedOfStore:
    gateway = house.gateway("--log-level", "warning", *arguments, environment=_SETTINGS)
    client = JobClient(gateway, gateway.key("bench"))
    engine = house.engine("--model", MODEL)
    engine.direct(trouble="hang")  # what it gets it keeps
    agent = house.agent(gateway, engine.url, "--slots", "1")
    house.wait_for_model(gateway, client.key, MODEL)
    idle_bytes = rss_bytes(gateway.child.pid)
    _fill(client, sizes.few)
    few = _look(gateway, client, sizes)
    began_s = time.monotonic()
    _fill(client, sizes.many - sizes.few)
    filled_per_s = (sizes.many - sizes.few) / (time.monotonic() - began_s)
    many = _look(gateway, client, sizes)
    agent.signal(signal.SIGKILL)  # it would wait for what its engine never answers
    return QueuedOfStore(name, idle_bytes, filled_per_s, few, many)


def _fill(client: JobClient, jobs: int) -> None:
    """With the lines of batches; returns when nearly all of them wait."""
    waiting = client.metric("trunkline_jobs_queued")
    for start in range(0, jobs, _PER_BATCH):
        count = min(_PER_BATCH, jobs - start)
        client.batch([chat_of(MODEL, f"job {number}", 100) for number in range(count)])
    client.until_queued(int(waiting) + jobs - 2 * _CLAIMED)


def _look(gateway: Gateway, client: JobClient, sizes: QueuedSizes) -> WithQueued:
    client.took_s.clear()
    queued = int(client.metric("trunkline_jobs_queued"))
    for number in range(sizes.times):
        (made,) = client.submit([chat_of(MODEL, f"one more {number}", 100)])
        with client.timed("list"):
            client.ask("/v1/jobs?status=queued&limit=50")
        with client.timed("show"):
            client.ask(f"/v1/jobs/{made['id']}")
    resident_bytes = rss_bytes(gateway.child.pid)
    with Store.open(gateway.state) as store:
        for number in range(sizes.times):
            claim = JobClaim("bench", number, MODEL, _CLAIMED, _LEASE_S)
            with client.timed("claim"):
                jobs = store.job_claims.claim(claim, time.time())
            for job in jobs:
                assert job.lease is not None
                store.job_claims.give_back(job.id, job.lease, 0.0, counts=False)

    def of(what: str) -> tuple[float, float]:
        times_ms = [each * 1000 for each in client.took_s[what]]
        return percentile(times_ms, 0.5), percentile(times_ms, 0.99)

    return WithQueued(queued, of("claim"), of("submit"), of("list"), of("show"), resident_bytes)
