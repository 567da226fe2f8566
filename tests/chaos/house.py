"""The processes of a run: the gateway, agents, engines, and the links between that can be broken."""

import asyncio
import json
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from tests.chaos.base_house import START_S, BaseHouse, EngineProcess, samples
from tests.chaos.town import Post, Town
from tests.support.proxy import FaultyProxy
from tests.support.tls import make_certificate

SLOTS = 64
AGENT_DRAIN_S = 10.0
GATEWAY_DRAIN_S = 6.0
POLICY = "TRUNKLINE_GATEWAY_DISPATCH__POLICY"
GATEWAY_SETTINGS = {"DRAIN_S": str(GATEWAY_DRAIN_S), "LOG__STYLE": "json"}
SHORT_BUDGETS = {
    "DISPATCH__FIRST_BYTE_S": "8",
    "DISPATCH__IDLE_S": "60",
    "DISPATCH__STALL_S": "3",
    "DISPATCH__MAX_ATTEMPTS": "5",
    "DISPATCH__SLOW_START_S": "3",
    "DISPATCH__UNREAD_BYTES": str(64 * 1024),
}
"""So that a run of minutes sees what they are for; a run with the defaults sees what users see. More attempts
than the default: here a request meets failing engines by chance, which elsewhere says that it is what breaks
them. Less memory for unread answers: they go to the file."""
WAYS = {"chat": "final_message", "completions": "prompt", "responses": "prefill", "messages": "prefill"}
CONTINUES = "continues = {" + ", ".join(f'{route} = "{way}"' for route, way in WAYS.items()) + "}"


class ChaosHouse(BaseHouse):
    """Starts everything; what is killed can be started again. Use as an async context manager."""

    def __init__(self, directory: Path, town: Town, *, short_budgets: bool = True) -> None:
        super().__init__(directory)
        self.town = town
        self.settings = GATEWAY_SETTINGS | (SHORT_BUDGETS if short_budgets else {})
        self.port = free_port()
        self.state = directory / "gateway-state"
        self.key = ""
        self.admin_key = ""
        self.gateway: Child
        self.agents: dict[str, Child] = {}
        self.proxies: dict[str, FaultyProxy] = {}
        self._certificate, self._certificate_key = make_certificate(directory)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def trust(self) -> ssl.SSLContext:
        """A client's TLS that knows the gateway's certificate."""
        return ssl.create_default_context(cafile=str(self._certificate))

    async def _start(self) -> None:
        self.start_gateway()
        for post in self.town.posts:
            if not post.is_demo:
                self._start_engine(post)
        await self.until_serving()
        with Store.open(self.state) as store:
            self.key = store.keys.create("chaos", "tests", time.time())
            self.admin_key = store.keys.create("chaos-admin", "tests", time.time(), role=AdminRole.ADMIN)
            uses = len(self.town.posts)
            token = store.tokens.create(600.0, uses, ["*"], {}, time.time())[1]
        for post in self.town.posts:
            if not post.is_demo:
                await asyncio.to_thread(self._await_engine, post)
            proxy = FaultyProxy("127.0.0.1", self.port)
            self.proxies[post.name] = await self._exit.enter_async_context(proxy)
            self._configure(post)
            self.start_agent(post.name, token)
        await self.until("everything is served", self.everything_is_served)

    async def _stop(self) -> None:
        engines = [engine.child for engine in self.engines.values()]
        children = [*self.agents.values(), *engines, *([self.gateway] if hasattr(self, "gateway") else [])]
        await asyncio.gather(*(asyncio.to_thread(child.stop) for child in children))
        await self._exit.aclose()

    # --- processes

    def start_gateway(self) -> None:
        self.gateway = self._gateway("gateway", self.port)

    def start_second_gateway(self) -> Child:
        """On the same state, on a port of its own."""
        return self._gateway("second-gateway", free_port())

    def _gateway(self, name: str, port: int) -> Child:
        settings = {f"TRUNKLINE_GATEWAY_{name}": value for name, value in self.settings.items()}
        settings[POLICY] = os.environ.get(POLICY, "least-outstanding")  # everybody is to serve in the end
        tls = ("--tls-cert", str(self._certificate), "--tls-key", str(self._certificate_key))
        listen = ("--listen", f"127.0.0.1:{port}", "--state", str(self.state))
        return self._child(name, "gateway", *listen, *tls, environment=settings)

    def start_agent(self, name: str, token: str | None = None) -> None:
        join = () if token is None else ("--join", token)
        config = ("--config", str(self.directory / f"{name}.toml"))
        self.agents[name] = self._child(name, "agent", *config, *join)

    def _configure(self, post: Post) -> None:
        source = 'torch = "demo"' if post.is_demo else f'url = "{self.engines[post.name].url}"\n{CONTINUES}'
        lines = [
            f'gateway = "https://127.0.0.1:{self.proxies[post.name].port}"',
            f"name = {json.dumps(post.name)}",
            f"state = {json.dumps(str(self.directory / f'{post.name}-state'))}",
            f"ca_file = {json.dumps(str(self._certificate))}",
            f"drain_s = {AGENT_DRAIN_S}",
            "find_engines = false",
            "[[engine]]",
            source,
            "" if post.is_demo else f"slots = {SLOTS}\nrefresh_s = 2",
        ]
        (self.directory / f"{post.name}.toml").write_text("\n".join(lines) + "\n")

    def _start_engine(self, post: Post) -> None:
        arguments = ["--model", post.model, *(("--repeats-head",) if post.repeats_head else ())]
        for habit in post.habits:
            arguments += ["--habit", habit]
        child = self._child(f"{post.name}-engine", "tests.support.scripted_engine", *arguments)
        self.engines[post.name] = EngineProcess(child, "", "")

    def died(self) -> list[str]:
        """Processes that should live and do not."""
        children = [self.gateway, *self.agents.values(), *(engine.child for engine in self.engines.values())]
        return [f"{child.name} ended by itself" for child in children if child.ended(0) is not None]

    # --- what the gateway says of itself

    async def get(self, path: str, key: str | None = None) -> tuple[int, str]:
        """Status and text of a page of the gateway, by its own key or ``key``; status 0 if it does not
        answer."""
        headers = {"authorization": f"Bearer {self.key if key is None else key}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session,
                session.get(self.url + path, headers=headers, ssl=self.trust()) as response,
            ):
                return response.status, await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, ""

    async def metrics(self) -> dict[str, float]:
        """The samples of ``/metrics`` by name with labels; empty if it does not answer."""
        status, text = await self.get("/metrics")
        return samples(text) if status == 200 else {}

    async def serving(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def until_serving(self) -> None:
        await self.until("the gateway serves", self.serving)

    async def everything_is_served(self) -> bool:
        """Whether every agent is connected and grants what it should."""
        metrics = await self.metrics()
        return all(
            metrics.get(f'trunkline_slots_granted{{model="{model}"}}', 0.0) >= self._slots(model)
            for model in self.town.models
        )

    def _slots(self, model: str) -> int:
        posts = self.town.of_model(model)
        return len(posts) * (1 if posts[0].is_demo else SLOTS)

    async def until(
        self, what: str, condition: Callable[[], Awaitable[bool]], timeout_s: float = START_S
    ) -> None:
        """Return once ``condition`` (asynchronous) holds. Raises TimeoutError naming ``what``."""
        deadline_s = time.monotonic() + timeout_s
        while not await condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
            await asyncio.sleep(0.05)
