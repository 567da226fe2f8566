"""What each shared part costs: a unary request at a gateway with limits, by what keeps state and limits.

Each setup has servers of its own (PostgreSQL, Redis), behind a proxy that counts what the gateway sends: one
chunk is one round trip, or a part of one. CPU is that of all processes of the gateway, and of all of a
server's processes, from the first request to the last one. A second key has a limit that is asked for more
than it allows; as the run takes less than a minute, what was let in must not be above the limit.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from gateway.domain.quotas import Budgets, Rates
from gateway.storage import Store
from tests.bench import crowd
from tests.support.postgres import DATABASE, own_postgres
from tests.support.processes import Gateway, House
from tests.support.redis_server import own_redis_server

CLIENTS = 32
REQUESTS = 4000
MINUTE_S = 60.0
_SLOTS = 256
_MUCH = 10**11
_CHUNK_BYTES = 65_536
_WARM_S, _AGAIN_S = 30.0, 0.5


@dataclass(frozen=True, slots=True)
class SharedSizes:
    """How many requests are timed, and how the tight key is asked."""

    requests: int = REQUESTS
    rpm: int = 300
    tight_s: float = 20.0
    tight_per_s: float = 50.0
    warm_requests: int = 200
    idle_s: float = 2.0


@dataclass(frozen=True, slots=True)
class SharedCost:
    """One setup. CPU is in microseconds for a request."""

    setup: str
    requests_per_s: float
    gateway_us: float
    store_us: float | None
    """Of PostgreSQL's processes; None: there are none."""
    redis_us: float | None
    store_trips: float | None
    """What the gateway sends to PostgreSQL for a request, those it would send anyway subtracted."""
    redis_trips: float | None
    idle_trips_per_s: float
    """To both servers, without requests."""
    p50_ms: float
    p99_ms: float
    failed: int
    error: str
    """Status and body of the last answer that was an error, where one was; empty: none."""
    admitted: int
    """Of the tight key's requests, in ``tight_s``."""
    asked: int
    limit: int

    def __str__(self) -> str:
        def shown(value: float | None, form: str) -> str:
            return "–" if value is None else format(value, form)

        return (
            f"{self.setup:<26} {self.requests_per_s:7,.0f}/s  CPU gateway {self.gateway_us:6.0f} µs, "
            f"PostgreSQL {shown(self.store_us, '.0f')} µs, Redis {shown(self.redis_us, '.0f')} µs  "
            f"round trips PostgreSQL {shown(self.store_trips, '.3f')}, "
            f"Redis {shown(self.redis_trips, '.3f')}, idle "
            f"{self.idle_trips_per_s:.1f}/s  p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms  "
            f"{self.failed} failed {self.error}; "
            f"let in {self.admitted} of {self.asked} at a limit of {self.limit}"
        )


@dataclass(frozen=True, slots=True)
class SharedCosts:
    """Of one run."""

    setups: list[SharedCost]

    def __str__(self) -> str:
        return "\n".join(map(str, self.setups))

    def to_json(self) -> str:
        return json.dumps([asdict(each) for each in self.setups], indent=1)


class CountingProxy:
    """Passes connections on to a port, in a thread of its own, and counts what clients send."""

    def __init__(self, target_port: int) -> None:
        self.chunks = 0
        self.port = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    def __enter__(self) -> "CountingProxy":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        carrying = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection("127.0.0.1", self._target_port)
        with contextlib.suppress(asyncio.CancelledError):  # the proxy stops
            await self._both_ways(reader, writer, onward)

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        onward: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(reader, onward[1], count=True))
                tasks.create_task(self._pass_on(onward[0], writer, count=False))
        finally:
            writer.close()
            onward[1].close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool
    ) -> None:
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                self.chunks += count
                writer.write(chunk)
            writer.write_eof()
        except OSError:
            writer.close()


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A store's server as the gateway sees it."""

    url: str
    proxy: CountingProxy
    processes: Callable[[], Sequence[psutil.Process]]


Arranged = tuple[dict[str, StoreServer], tuple[str, ...]]
"""The servers there are, and the gateway's arguments."""


def run(directory: Path, sizes: SharedSizes, only: Sequence[str] = ()) -> SharedCosts:
    """Every setup, or ``only`` those. The caller asked :func:`tools.missing`. Raises pytest's Skipped without
    servers, AssertionError where the limits cannot be shared."""
    setups = {
        "SQLite, one process": with_files,
        "SQLite, two workers": with_workers,
        "PostgreSQL, one process": with_postgres,
        "PostgreSQL and Redis": with_postgres_and_redis,
    }
    found = []
    for number, name in enumerate(only or setups):
        arrange = setups[name]
        with House(directory / str(number)) as house, arrange(house) as (servers, arguments):
            found.append(_measure(name, house, servers, arguments, sizes))
    return SharedCosts(found)


@contextmanager
def with_files(house: House) -> Iterator[Arranged]:
    yield {}, ()


@contextmanager
def with_workers(house: House) -> Iterator[Arranged]:
    yield {}, ("--workers", "2")


@contextmanager
def with_postgres(house: House) -> Iterator[Arranged]:
    with own_postgres() as postgres, CountingProxy(postgres.port) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/{DATABASE}"
        server = StoreServer(url, proxy, lambda: family(postgres.pid))
        yield {"PostgreSQL": server}, ("--store", url, "--shared", url)


@contextmanager
def with_postgres_and_redis(house: House) -> Iterator[Arranged]:
    with ExitStack() as stack:
        servers, _ = stack.enter_context(with_postgres(house))
        redis = stack.enter_context(own_redis_server(house.directory))
        proxy = stack.enter_context(CountingProxy(redis.port))
        url = f"redis://127.0.0.1:{proxy.port}"
        servers["Redis"] = StoreServer(url, proxy, lambda: family(redis.pid))
        yield servers, ("--store", servers["PostgreSQL"].url, "--shared", url)


def _measure(
    name: str, house: House, servers: dict[str, StoreServer], arguments: tuple[str, ...], sizes: SharedSizes
) -> SharedCost:
    gateway = house.gateway("--log-level", "warning", *arguments)
    keys = _keys(gateway, sizes.rpm)
    site = crowd.start_agents(house, gateway, 1, _SLOTS, keys["limited"])
    pace = ("-c", str(CLIENTS), "-w", "0", "-d", "120")
    _warm(site, *pace, "-q", str(sizes.warm_requests))
    idle = _trips(servers)
    time.sleep(sizes.idle_s)
    idle_per_s = {each: (after - idle[each]) / sizes.idle_s for each, after in _trips(servers).items()}

    used, trips, began_s = cpu_by_part(gateway, servers), _trips(servers), time.monotonic()
    seen = site.ask("unary", *pace, "-q", str(sizes.requests))
    took_s = time.monotonic() - began_s
    answered = max(1, int(seen["right"]))
    cpu = {
        each: (after - used[each]) / answered * 1e6 for each, after in cpu_by_part(gateway, servers).items()
    }
    sent = {
        each: max(0.0, after - trips[each] - idle_per_s[each] * took_s) / answered
        for each, after in _trips(servers).items()
    }
    open_loop = ("-c", str(CLIENTS), "-w", "0", "-d", f"{sizes.tight_s:g}", "-r", f"{sizes.tight_per_s:g}")
    tight = site.ask("unary", *open_loop, key=keys["tight"])
    return SharedCost(
        name,
        answered / took_s,
        cpu["gateway"],
        cpu.get("PostgreSQL"),
        cpu.get("Redis"),
        sent.get("PostgreSQL"),
        sent.get("Redis"),
        sum(idle_per_s.values()),
        seen["latency_us"]["p50"] / 1000,
        seen["latency_us"]["p99"] / 1000,
        sum(seen["errors"].values()),
        f"{seen['last_status']} {seen['error_text']}" if seen["last_status"] else "",
        int(tight["right"]),
        int(tight["answers"]),
        sizes.rpm,
    )


def _warm(site: crowd.Crowd, *arguments: str) -> None:
    """Until all are answered. A machine that has too much to do makes the store of the limits late; for so
    long budgets that are kept there only let nobody in (``gateway.quota.lease_client.AWAY_S``)."""
    deadline_s = time.monotonic() + _WARM_S
    while any((seen := site.ask("unary", *arguments))["errors"].values()):
        assert time.monotonic() < deadline_s, f"{seen['errors']}: {seen['last_status']} {seen['error_text']}"
        time.sleep(_AGAIN_S)


def _keys(gateway: Gateway, rpm: int) -> dict[str, str]:
    """One that no request comes near the limits of, and one of few requests a minute."""
    wall_s = time.time()
    with Store.open(gateway.state) as store:
        budgets = asdict(Budgets(_MUCH, _MUCH, 1e11, 1e11, 1e11, 1e11))
        store.limits.tenants.change("limited", budgets, wall_s)
        much = Rates(_MUCH, _MUCH, 10_000)
        return {
            "limited": store.keys.create("limited", "limited", wall_s, rates=much),
            "tight": store.keys.create("tight", "limited", wall_s, rates=Rates(rpm=rpm)),
        }


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_by_part(gateway: Gateway, servers: dict[str, StoreServer]) -> dict[str, float]:
    """Seconds that each has used, of the processes that there are now."""

    of_servers = {name: cpu_s(server.processes()) for name, server in servers.items()}
    return {"gateway": cpu_s(family(gateway.child.pid)), **of_servers}


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """User and system time so far of all of them."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _trips(servers: dict[str, StoreServer]) -> dict[str, int]:
    return {name: server.proxy.chunks for name, server in servers.items()}
