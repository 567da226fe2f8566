"""The clients of a run: each asks one gateway, and another one once that is known to be gone."""

import asyncio
from collections.abc import Callable, Container, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Any, Self

import aiohttp
import orjson

from tests.chaos.asks import PATHS, draw_ask
from tests.chaos.clients import ask_http
from tests.chaos.many.house import TOWN, ManyHouse
from tests.chaos.outcome import Outcome

PROBE_S = 0.25
LIMITED_PER_S = 5.0
"""Requests with the key ``limited``: more than its limit lets through in a run."""
_AWAY_SHARE = 0.1
"""Of the requests that are sent to a gateway though it is known to be gone."""


@dataclass(frozen=True, slots=True)
class ClientOutcome:
    """What the client of one gateway saw."""

    gateway: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ShortAsk:
    """A short request or a probe. ``status`` 0: no answer. Times are seconds since the start of the run."""

    gateway: int
    began_s: float
    answered_s: float
    status: int
    said: str = ""


class ManyLoad:
    """Sends until told to stop. Use as an async context manager."""

    def __init__(self, house: ManyHouse, seed: int, clock: Callable[[], float], away: Container[int]) -> None:
        self.outcomes: list[ClientOutcome] = []
        self.limited: list[ShortAsk] = []
        """Requests with the limited key."""
        self.probes: list[ShortAsk] = []
        """What each gateway said to the plain key when it was asked which models there are."""
        self.sent = 0
        self._house, self._seed, self._clock, self._away = house, seed, clock, away
        self._random = Random(f"{seed}/clients")
        self._running: set[asyncio.Task[None]] = set()
        self._exit = AsyncExitStack()
        self._sessions: list[aiohttp.ClientSession] = []

    async def __aenter__(self) -> Self:
        for gateway in range(self._house.count):
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
            headers = {"content-type": "application/json"}
            session = aiohttp.ClientSession(
                self._house.client_url(gateway),
                headers=headers,
                connector=connector,
                timeout=aiohttp.ClientTimeout(None),
            )
            self._sessions.append(await self._exit.enter_async_context(session))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._exit.aclose()

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def run(self, rate_per_s: float, until_s: float) -> None:
        """All kinds of clients, until the run's clock says so."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._many(rate_per_s, until_s, self._ask))
            tasks.create_task(self._many(LIMITED_PER_S, until_s, self._limited))
            for gateway in range(self._house.count):
                tasks.create_task(self._probe(gateway, until_s))

    async def _many(
        self, rate_per_s: float, until_s: float, ask: Callable[[int], Coroutine[Any, Any, None]]
    ) -> None:
        due_s = self._clock()
        while due_s < until_s:
            due_s += self._random.expovariate(rate_per_s)
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            self._own(ask(self._chosen()))

    def _chosen(self) -> int:
        gateway = self._random.randrange(self._house.count)
        if gateway in self._away and self._random.random() > _AWAY_SHARE:
            there = [each for each in range(self._house.count) if each not in self._away]
            gateway = self._random.choice(there or [gateway])
        return gateway

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def ask_each(self) -> None:
        """One request at each gateway; returns when all have ended."""
        await asyncio.gather(*(self._ask(gateway) for gateway in range(self._house.count)))

    async def _ask(self, gateway: int) -> None:
        ask = draw_ask(TOWN, self._seed, self.sent)
        self.sent += 1
        session = self._sessions[gateway]
        session_headers = {"authorization": f"Bearer {self._house.plain_key}"}
        outcome = await ask_http(session, ask, self._clock, session_headers)
        self.outcomes.append(ClientOutcome(gateway, outcome))

    async def _limited(self, gateway: int) -> None:
        script = {"tokens": 2, "tokens_per_s": 1000.0}
        body = {
            "model": TOWN.posts[0].model,
            "messages": [{"role": "user", "content": "hi"}],
            "script": script,
        }
        self.limited.append(
            await self._short(
                gateway, "POST", PATHS["chat"], self._house.limited_key, body | {"max_tokens": 2}
            )
        )

    async def _probe(self, gateway: int, until_s: float) -> None:
        while self._clock() < until_s:
            if gateway not in self._away:
                self.probes.append(await self._short(gateway, "GET", "/v1/models", self._house.plain_key))
            await asyncio.sleep(PROBE_S)

    async def _short(self, gateway: int, method: str, path: str, key: str, body: object = None) -> ShortAsk:
        began_s, status, said = self._clock(), 0, ""
        headers, data = {"authorization": f"Bearer {key}"}, None if body is None else orjson.dumps(body)
        try:
            async with self._sessions[gateway].request(method, path, data=data, headers=headers) as response:
                said, status = await response.text(), response.status
        except (aiohttp.ClientError, OSError) as error:
            said = repr(error)
        return ShortAsk(gateway, began_s, self._clock(), status, said[:300])

    async def until_idle(self, timeout_s: float) -> bool:
        """Whether all that runs now came to an end in time."""
        if self._running:
            await asyncio.wait(tuple(self._running), timeout=timeout_s)
        return not self._running
