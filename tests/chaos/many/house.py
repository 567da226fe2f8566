"""The processes of a run with several gateways, and a path for each pair of them that can be parted."""

import asyncio
import base64
import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]

from gateway.domain.quotas import Rates
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from tests.chaos.base_house import START_S, BaseHouse, EngineProcess, samples
from tests.chaos.house import SHORT_BUDGETS
from tests.chaos.many.plan import Strike
from tests.chaos.town import Post, Town
from tests.support.logged_events import logged_events
from tests.support.postgres import DATABASE, OwnPostgresServer, own_postgres
from tests.support.processes import fetch
from tests.support.proxy import FaultyProxy
from tests.support.redis_server import OwnRedisServer, own_redis_server

SLOTS = 8
"""Of each agent."""
RPM = 40
"""Of the key ``limited``, over all gateways."""
TOWN = Town((Post("alpha-1", "alpha"), Post("alpha-2", "alpha")))
DRAIN_S = 5.0

STORE, SHARED, AGENTS, CLIENTS = (
    Strike.PART_STORE,
    Strike.PART_SHARED,
    Strike.PART_AGENTS,
    Strike.PART_CLIENTS,
)
PATHS = (STORE, SHARED, AGENTS, CLIENTS)


class ManyHouse(BaseHouse):
    """Starts everything; what is killed can be started again. Use as an async context manager."""

    store: OwnPostgresServer
    shared: OwnRedisServer

    def __init__(self, directory: Path, gateways: int, workers: int = 1) -> None:
        super().__init__(directory)
        self.count = gateways
        self.workers = workers
        """Processes of each gateway that serve."""
        self.ports = [free_port() for _ in range(gateways)]
        self.paths: dict[tuple[Strike, int], FaultyProxy] = {}
        """By pair and gateway."""
        self.gateways: list[Child] = []
        self.agents: list[Child] = []
        self.plain_key = self.limited_key = ""

    def client_url(self, gateway: int) -> str:
        """Where clients ask it."""
        return self.paths[CLIENTS, gateway].url

    def open_store(self) -> Store:
        """As a command does, past the paths that are parted."""
        address = StoreAddress(self.store.database_url(), cluster_key=self._cluster_key)
        return Store.open(self.directory / "commands", address=address)

    async def _start(self) -> None:
        for post in TOWN.posts:
            child = self._child(f"{post.name}-engine", "tests.support.scripted_engine", "--model", post.model)
            self.engines[post.name] = EngineProcess(child, "", "")
        self.shared = self._exit.enter_context(own_redis_server(self.directory))
        self.store = self._exit.enter_context(own_postgres())
        self._cluster_key.write_bytes(base64.b64encode(secrets.token_bytes(32)))
        self._cluster_key.chmod(0o600)
        with self.open_store() as store:
            self.plain_key = store.keys.create("plain", "tests", time.time())
            rates = Rates(rpm=RPM)
            self.limited_key = store.keys.create("limited", "limited", time.time(), rates=rates)
            token = store.tokens.create(600.0, len(TOWN.posts), ["*"], {}, time.time())[1]
        servers = {STORE: int(self.store.url.rpartition(":")[2]), SHARED: self.shared.port}
        for pair in PATHS:
            for gateway, port in enumerate(self.ports):
                proxy = FaultyProxy("127.0.0.1", servers.get(pair, port))
                self.paths[pair, gateway] = await self._exit.enter_async_context(proxy)
        for gateway in range(self.count):
            self.gateways.append(self._gateway(gateway))
        for post in TOWN.posts:
            await asyncio.to_thread(self._await_engine, post)
            self.agents.append(self._agent(post, token))
        for gateway in range(self.count):
            await self.until(f"gateway {gateway} has all agents", gateway)

    async def _stop(self) -> None:
        engines = [engine.child for engine in self.engines.values()]
        await asyncio.gather(
            *(asyncio.to_thread(child.stop) for child in [*self.agents, *self.gateways, *engines])
        )
        await self._exit.aclose()

    # --- processes

    @property
    def _cluster_key(self) -> Path:
        return self.directory / "cluster.key"

    def _gateway(self, gateway: int) -> Child:
        settings = {
            "DRAIN_S": str(DRAIN_S),
            "LOG__STYLE": "json",
            "CLUSTER__PROCESS": f"g{gateway}",
            "CLUSTER__URL": self.paths[AGENTS, gateway].url,
            "SHARED": f"redis://127.0.0.1:{self.paths[SHARED, gateway].port}",
            "SHARED_PROCESSES": str(self.count),
            "DISPATCH__POLICY": "least-outstanding",
            **SHORT_BUDGETS,
        }
        return self._child(
            f"gateway{gateway}",
            *("gateway", "--listen", f"127.0.0.1:{self.ports[gateway]}"),
            *(() if self.workers == 1 else ("--workers", str(self.workers))),
            *("--state", str(self.directory / f"gateway{gateway}-state")),
            *("--store", f"postgresql://postgres@127.0.0.1:{self.paths[STORE, gateway].port}/{DATABASE}"),
            *("--cluster-key", str(self._cluster_key)),
            environment={f"TRUNKLINE_GATEWAY_{name}": value for name, value in settings.items()},
        )

    def events(self, gateway: int, name: str) -> list[dict[str, Any]]:
        """What this gateway has logged of that since it was started last."""
        return logged_events(self.gateways[gateway].log, name)

    def rolls(self, gateway: int) -> int:
        """How often it has said that its workers were replaced, or could not be."""
        return sum(len(self.events(gateway, name)) for name in ("workers_replaced", "workers_not_replaced"))

    def worker_pids(self, gateway: int) -> list[int]:
        """Those that serve, by place; of a gateway that is one process none."""
        pids = {each["worker"]: each["pid"] for each in self.events(gateway, "worker_serves")}
        return [pid for _, pid in sorted(pids.items())]

    def signal_all(self, gateway: int, number: int) -> None:
        """Every process of a gateway."""
        self.gateways[gateway].signal(number)
        for pid in self.worker_pids(gateway):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def agent_has_port(self, agent: int, port: int) -> bool:
        """Whether a connection from this port is that agent's."""
        with contextlib.suppress(psutil.Error):
            connections = psutil.Process(self.agents[agent].pid).net_connections("tcp")
            return any(each.laddr.port == port for each in connections)
        return False

    def start_gateway(self, gateway: int) -> None:
        """Again, after it was killed."""
        self.gateways[gateway] = self._gateway(gateway)

    def _agent(self, post: Post, token: str) -> Child:
        return self._child(
            post.name,
            *("agent", "--gateway", self.paths[AGENTS, 0].url, "--join", token, "--name", post.name),
            *("--engine", self.engines[post.name].url, "--slots", str(SLOTS)),
            *("--state", str(self.directory / f"{post.name}-state")),
        )

    def died(self) -> list[str]:
        """Processes that should live and do not."""
        children = [*self.gateways, *self.agents, *(engine.child for engine in self.engines.values())]
        return [f"{child.name} ended by itself" for child in children if child.ended(0) is not None]

    # --- what they say of themselves

    async def metrics(self, gateway: int) -> dict[str, float]:
        """The samples of a gateway's ``/metrics``, past its clients' path; empty if it does not answer."""
        headers = {"authorization": f"Bearer {self.plain_key}"}
        url = f"http://127.0.0.1:{self.ports[gateway]}/metrics"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5), headers=headers) as session,
                session.get(url) as response,
            ):
                if response.status != 200:
                    return {}
                return samples(await response.text())
        except (aiohttp.ClientError, OSError, TimeoutError):
            return {}

    async def is_whole(self, gateway: int) -> bool:
        """Whether each of its processes has its agents, its store and its shared limits."""
        metrics = await self.metrics(gateway)
        ready = _of(metrics, "trunkline_agents_connected", 'state="ready"')
        shared = _of(metrics, "trunkline_shared_limits_up")
        return [each >= len(TOWN.posts) for each in ready] == [True] * self.workers and (
            shared == [1.0] * self.workers
        )

    async def granted(self) -> float:
        """Slots that the agents lend to all gateways together."""
        found = await asyncio.gather(*(self.metrics(gateway) for gateway in range(self.count)))
        return sum(sum(_of(each, "trunkline_slots_granted", 'model="alpha"')) for each in found)

    async def until(self, what: str, gateway: int, timeout_s: float = START_S) -> None:
        """Return once it is whole. Raises TimeoutError naming ``what``."""
        deadline_s = time.monotonic() + timeout_s
        while not await self.is_whole(gateway):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not within {timeout_s:.0f} s: {what}: {await self.metrics(gateway)}")
            await asyncio.sleep(0.1)

    def engine_stats(self, name: str) -> dict[str, Any]:
        """See :class:`tests.support.scripted_engine.Stats`."""
        return dict(fetch(f"{self.engines[name].control}/_stats"))


def _of(metrics: dict[str, float], name: str, label: str = "") -> list[float]:
    """The samples of one name with that label, one for each process."""
    return [value for key, value in metrics.items() if key.partition("{")[0] == name and label in key]
