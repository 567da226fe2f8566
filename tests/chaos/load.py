"""The clients of a run: an open loop, as many requests a second as wanted, whatever becomes of them."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from random import Random

import aiohttp
import openai
from openai import AsyncOpenAI

from tests.chaos.asks import Ask, draw_ask, draw_demo_ask
from tests.chaos.clients import ask_http
from tests.chaos.house import ChaosHouse
from tests.chaos.outcome import Outcome
from tests.chaos.sdk import ask_sdk

MOST_AT_ONCE = 600
"""More than that in flight, and new requests are left out and counted."""
DEMO_PER_S = 0.4
_AWAY_SHARE = 0.1
"""Of the requests that are still sent while the gateway is known to be away."""


class Load:
    """Sends requests until told to stop; hands each outcome to ``finished``."""

    def __init__(
        self,
        house: ChaosHouse,
        seed: int,
        clock: Callable[[], float],
        finished: Callable[[Outcome], None],
        away: Callable[[], bool] = lambda: False,
        draw: Callable[[int], Ask] | None = None,
    ) -> None:
        """``draw`` makes the request of a number; by default the mix of a run of chaos."""
        self.left_out = 0
        self.sent = 0
        self._house = house
        self._seed = seed
        self._clock = clock
        self._finished = finished
        self._away = away
        self._draw = draw or (lambda number: draw_ask(house.town, seed, number))
        self._running: set[asyncio.Task[None]] = set()
        self._exit = AsyncExitStack()
        self._http: aiohttp.ClientSession
        self._sdk: AsyncOpenAI

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def __aenter__(self) -> "Load":
        trust = self._house.trust()
        headers = {"authorization": f"Bearer {self._house.key}", "content-type": "application/json"}
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0, ssl=trust)
        timeout = aiohttp.ClientTimeout(None)
        session = aiohttp.ClientSession(
            self._house.url, headers=headers, connector=connector, timeout=timeout
        )
        self._http = await self._exit.enter_async_context(session)
        client = openai.DefaultAsyncHttpxClient(verify=trust, timeout=None)
        sdk = AsyncOpenAI(
            base_url=f"{self._house.url}/v1", api_key=self._house.key, max_retries=0, http_client=client
        )
        self._sdk = await self._exit.enter_async_context(sdk)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in tuple(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._exit.aclose()

    async def run(self, rate_per_s: float, until_s: float) -> None:
        """Send ``rate_per_s`` requests a second until the run's clock says ``until_s``."""
        random = Random(f"{self._seed}/load")
        due_s = self._clock()
        while due_s < until_s:
            due_s += random.expovariate(rate_per_s)
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            if self._away() and random.random() > _AWAY_SHARE:
                continue
            if self.in_flight >= MOST_AT_ONCE:
                self.left_out += 1
                continue
            self.send(self._draw(self.sent))

    async def run_demo(self, until_s: float) -> None:
        """Ask the demo model now and then."""
        number = 0
        while self._clock() < until_s:
            await asyncio.sleep(1 / DEMO_PER_S)
            if not self._away():
                number += 1
                self.send(draw_demo_ask(self._seed, number))

    def send(self, ask: Ask) -> None:
        """One request, beside all others."""
        self.sent += 1
        sent: Coroutine[None, None, Outcome]
        sent = ask_sdk(self._sdk, ask, self._clock) if ask.sdk else ask_http(self._http, ask, self._clock)
        task = asyncio.get_running_loop().create_task(self._one(sent))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _one(self, sent: Coroutine[None, None, Outcome]) -> None:
        self._finished(await sent)

    async def until_idle(self, timeout_s: float) -> bool:
        """Whether all that runs now came to an end in time."""
        if self._running:
            await asyncio.wait(tuple(self._running), timeout=timeout_s)
        return not self._running
