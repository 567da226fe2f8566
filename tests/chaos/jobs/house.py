"""The processes of a run with jobs: gateways, agents, engines; those that can be killed start again."""

import asyncio
import base64
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import orjson

from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from tests.chaos.base_house import START_S, BaseHouse, EngineProcess
from tests.chaos.jobs.lines import MODEL
from tests.chaos.town import DEMO, Post, Town
from tests.support.postgres import OwnPostgresServer, own_postgres
from tests.support.processes import fetch
from tests.support.redis_server import OwnRedisServer, own_redis_server

SLOTS = 8
"""Of each agent of scripted engines."""
KEY_NAME = "jobs"
_ASK_S = 60.0
_AGAIN_S = 0.1
_POSTS = (Post("alpha-1", MODEL), Post("alpha-2", MODEL))


class JobsHouse(BaseHouse):
    """Starts everything. One gateway keeps its state in files; several share PostgreSQL, Redis and a
    directory for objects; without one there are engines alone. Use as an async context manager."""

    store: OwnPostgresServer
    shared: OwnRedisServer

    def __init__(
        self,
        directory: Path,
        *,
        gateways: int = 1,
        demo: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``settings`` are more of the gateways', by their names in the environment."""
        super().__init__(directory)
        self.town = Town((*_POSTS, *((Post("demo-1", DEMO),) if demo else ())))
        self.ports = [free_port() for _ in range(gateways)]
        self.gateways: list[Child] = []
        self.agents: dict[str, Child] = {}
        self.others: list[Child] = []
        """What :meth:`start` started."""
        self.key = ""
        self._settings = settings

    async def _start(self) -> None:
        for post in self.town.posts:
            if not post.is_demo:
                child = self._child(
                    f"{post.name}-engine", "tests.support.scripted_engine", "--model", post.model
                )
                self.engines[post.name] = EngineProcess(child, "", "")
        if self._is_shared:
            self.shared = self._exit.enter_context(own_redis_server(self.directory))
            self.store = self._exit.enter_context(own_postgres())
            self._cluster_key.write_bytes(base64.b64encode(secrets.token_bytes(32)))
            self._cluster_key.chmod(0o600)
        with self.open_store() as store:
            self.key = store.keys.create(KEY_NAME, "tests", time.time())
            token = store.tokens.create(600.0, len(self.town.posts), ["*"], {}, time.time())[1]
        self.gateways = [self._gateway(number) for number in range(len(self.ports))]
        for number in range(len(self.ports)):
            await self.until_serving(number)
        for post in self.town.posts:
            if not post.is_demo:
                await asyncio.to_thread(self._await_engine, post)
            if self.gateways:
                self.start_agent(post, token)
        await self.until("everything is served", self._everything_is_served)

    async def _stop(self) -> None:
        engines = [engine.child for engine in self.engines.values()]
        children = [*self.others, *self.agents.values(), *engines, *self.gateways]
        await asyncio.gather(*(asyncio.to_thread(child.stop) for child in children))
        await self._exit.aclose()

    # --- processes

    @property
    def _is_shared(self) -> bool:
        return len(self.ports) > 1

    @property
    def _cluster_key(self) -> Path:
        return self.directory / "cluster.key"

    def open_store(self) -> Store:
        """As a command does."""
        if not self._is_shared:
            return Store.open(self.directory / "gateway0-state")
        address = StoreAddress(self.store.database_url(), cluster_key=self._cluster_key)
        return Store.open(self.directory / "commands", address=address)

    def _gateway(self, number: int) -> Child:
        port = self.ports[number]
        settings = {"LOG__STYLE": "json", "DISPATCH__POLICY": "least-outstanding", **self._settings}
        words = ["--listen", f"127.0.0.1:{port}", "--state", str(self.directory / f"gateway{number}-state")]
        if self._is_shared:
            settings |= {
                "CLUSTER__PROCESS": f"g{number}",
                "CLUSTER__URL": f"http://127.0.0.1:{port}",
                "SHARED": self.shared.url,
                "SHARED_PROCESSES": str(len(self.ports)),
                "JOBS__OBJECTS": f"file://{self.directory / 'objects'}",
            }
            words += ["--store", self.store.database_url(), "--cluster-key", str(self._cluster_key)]
        environment = {f"TRUNKLINE_GATEWAY_{name}": value for name, value in settings.items()}
        return self._child(f"gateway{number}", "gateway", *words, environment=environment)

    def start(self, name: str, *arguments: str) -> Child:
        """Something else, which ends with the rest."""
        self.others.append(self._child(name, *arguments))
        return self.others[-1]

    def start_agent(self, post: Post, token: str | None = None) -> None:
        join = () if token is None else ("--join", token)
        engine = ("--torch", "demo") if post.is_demo else ("--engine", self.engines[post.name].url)
        slots = () if post.is_demo else ("--slots", str(SLOTS))
        self.agents[post.name] = self._child(
            post.name,
            *("agent", "--gateway", f"http://127.0.0.1:{self.ports[0]}", *join, "--name", post.name),
            *(*engine, *slots, "--state", str(self.directory / f"{post.name}-state")),
            environment={"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"},
        )

    async def kill_gateway(self, number: int, away_s: float) -> None:
        """Returns when it is back and ready."""
        await asyncio.to_thread(kill_child, self.gateways[number])
        await asyncio.sleep(away_s)
        self.gateways[number] = self._gateway(number)
        await self.until_serving(number)

    async def kill_agent(self, post: Post, away_s: float) -> None:
        """Returns when it is started again."""
        await asyncio.to_thread(kill_child, self.agents[post.name])
        await asyncio.sleep(away_s)
        self.start_agent(post)

    def died(self) -> list[str]:
        """Processes that should live and do not."""
        children = [*self.gateways, *self.agents.values(), *(each.child for each in self.engines.values())]
        return [f"{child.name} ended by itself" for child in children if child.ended(0) is not None]

    def computed_tokens(self) -> int:
        """By all scripted engines."""
        return sum(int(self._stats(name)["computed_tokens"]) for name in self.engines)

    def _stats(self, name: str) -> dict[str, Any]:
        return dict(fetch(f"{self.engines[name].control}/_stats"))

    # --- what gateways answer

    async def ask(self, method: str, path: str, **more: Any) -> bytes:
        """The answer of whichever gateway gives one first. Raises AssertionError for a status from 400 on but
        503, TimeoutError where none answers."""
        headers = {"authorization": f"Bearer {self.key}"}
        deadline_s, last = time.monotonic() + _ASK_S, ""
        while time.monotonic() < deadline_s:
            for port in self.ports:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with (
                        aiohttp.ClientSession(
                            timeout=aiohttp.ClientTimeout(_ASK_S), headers=headers
                        ) as session,
                        session.request(method, f"http://127.0.0.1:{port}{path}", **more) as response,
                    ):
                        body = await response.read()
                        if response.status < 400:
                            return body
                        last = f"{response.status} {body[:300]!r}"
                        assert response.status == 503, f"{method} {path}: {last}"
            await asyncio.sleep(_AGAIN_S)
        raise TimeoutError(f"{method} {path}: no gateway answers; the last answer was {last or 'none'}")

    async def ask_json(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return dict(orjson.loads(await self.ask(method, path, **more)))

    async def until_serving(self, number: int) -> None:
        url = f"http://127.0.0.1:{self.ports[number]}/readyz"

        async def serves() -> bool:
            self.gateways[number].check()
            try:
                await asyncio.to_thread(fetch, url)
            except OSError:
                return False
            return True

        await self.until(f"gateway {number} serves", serves)

    async def _everything_is_served(self) -> bool:
        for port in self.ports:
            found = await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/v1/models", key=self.key)
            if not {each["id"] for each in found["data"]} >= set(self.town.models):
                return False
        return True

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Return once it holds. Raises TimeoutError naming ``what``."""
        deadline_s = time.monotonic() + START_S
        while not await condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not within {START_S:.0f} s: {what}")
            await asyncio.sleep(0.05)


def kill_child(child: Child) -> None:
    """With all that it has started, without a chance to say anything."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.ended(START_S)
