"""Two gateways with one Redis keep one limit, and go on when it stops or dies."""

import asyncio
import json
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from gateway.domain.quotas import Rates
from gateway.storage import Store
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import MODEL
from tests.support.processes import Engine, Gateway, House
from tests.support.redis_server import OwnRedisServer, own_redis_server

RPM, TPM, CONCURRENCY, BUDGET = 40, 2000, 3, 1000


@dataclass(frozen=True)
class Pair:
    """Two gateways over copies of one state, each with an agent before one engine."""

    gateways: list[Gateway]
    engine: Engine
    redis: OwnRedisServer
    keys: dict[str, str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("shared-limits")
    with own_redis_server(directory) as redis, House(directory) as house:
        keys = _states(directory)
        variables = {"TRUNKLINE_GATEWAY_SHARED_PROCESSES": "2"}
        gateways = [
            house.gateway("--shared", redis.url, name=name, environment=variables) for name in ("one", "two")
        ]
        engine = house.engine("--model", MODEL)
        for number, gateway in enumerate(gateways):
            house.agent(gateway, engine.url, name=f"agent{number}")
            house.wait_for_model(gateway, keys["free"], MODEL)
        yield Pair(gateways, engine, redis, keys)


def _states(directory: Path) -> dict[str, str]:
    """The states of both gateways, with the same keys."""
    rates = {
        "free": Rates(),
        "requests": Rates(rpm=RPM),
        "stopped": Rates(rpm=RPM),
        "killed": Rates(rpm=RPM),
        "tokens": Rates(tpm=TPM),
        "at-once": Rates(concurrency=CONCURRENCY),
    }
    with Store.open(directory / "one-state", serve=True) as store:
        keys = {
            name: store.keys.create(name, "tests", time.time(), rates=each) for name, each in rates.items()
        }
        keys["budget"] = store.keys.create("budget", "frugal", time.time())
        store.limits.tenants.change("frugal", {"tokens_per_day": BUDGET}, time.time())
    shutil.copytree(directory / "one-state", directory / "two-state")
    return keys


@dataclass
class Load:
    """What clients of one key saw at all gateways."""

    gateways: list[Gateway]
    key: str
    admitted_s: list[float] = field(default_factory=list)
    """When each request was answered."""
    took_s: list[float] = field(default_factory=list)
    """How long each answer took, refusals included."""
    tokens: int = 0
    refused: int = 0

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[aiohttp.ClientSession]:
        headers = {"authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
            yield session

    async def run(
        self,
        seconds: float,
        clients: int = 2,
        *,
        tokens: int = 4,
        speed: float = 1e3,
        stream: bool = False,
        enough: Callable[[], bool] = lambda: True,
    ) -> None:
        """``clients`` at each gateway ask again and again, for so long and on a slow machine until it is
        ``enough``, for 45 seconds at most: the minute in which they began is not over then."""
        script = {"tokens": tokens, "tokens_per_s": speed}
        ask = chat(max_tokens=tokens, script=script, stream=stream)
        end_s = time.monotonic() + seconds
        last_s = end_s if seconds > 45.0 else time.monotonic() + 45.0

        async def one(session: aiohttp.ClientSession, gateway: Gateway) -> None:
            while (now_s := time.monotonic()) < end_s or (now_s < last_s and not enough()):
                began_s = time.monotonic()
                async with session.post(f"{gateway.url}{CHAT}", json=ask) as response:
                    text = await response.read()
                body = {} if response.content_type != "application/json" else json.loads(text)
                self.took_s.append(time.monotonic() - began_s)
                if response.status == 200:
                    self.admitted_s.append(began_s)
                    self.tokens += 0 if stream else body["usage"]["total_tokens"]
                else:
                    assert response.status == 429, body
                    self.refused += 1
                    await asyncio.sleep(0.1)

        async with self._session() as session, asyncio.TaskGroup() as tasks:
            for gateway in self.gateways:
                for _ in range(clients):
                    tasks.create_task(one(session, gateway))

    @property
    def most_in_a_minute(self) -> int:
        return max(sum(at_s <= each < at_s + 59.5 for each in self.admitted_s) for at_s in self.admitted_s)


def load(pair: Pair, name: str) -> Load:
    return Load(pair.gateways, pair.keys[name])


async def test_two_gateways_admit_one_limit_of_requests(pair: Pair) -> None:
    seen = load(pair, "requests")
    await seen.run(4.0, enough=lambda: seen.refused > 0 and len(seen.admitted_s) >= RPM - 2)
    assert seen.refused
    assert RPM - 2 <= len(seen.admitted_s) <= RPM


async def test_two_gateways_admit_one_limit_of_tokens(pair: Pair) -> None:
    seen = load(pair, "tokens")
    await seen.run(4.0, tokens=40, enough=lambda: seen.refused > 0 and seen.tokens >= TPM / 2)
    assert seen.refused
    assert TPM / 2 <= seen.tokens <= TPM


async def test_two_gateways_admit_one_limit_of_requests_at_once(pair: Pair) -> None:
    seen = load(pair, "at-once")
    loading = asyncio.create_task(
        seen.run(
            4.0,
            4,
            tokens=20,
            speed=200,
            stream=True,
            enough=lambda: seen.refused > 0 and len(seen.admitted_s) >= 10,
        )
    )
    peak = 0
    while not loading.done():
        stats = await asyncio.to_thread(pair.engine.stats)
        peak = max(peak, stats["running"])
        await asyncio.sleep(0.02)  # an answer takes five times that
    await loading
    assert seen.refused
    assert 1 <= peak <= CONCURRENCY
    assert len(seen.admitted_s) >= 10


async def test_two_gateways_spend_one_budget(pair: Pair) -> None:
    seen = load(pair, "budget")
    await seen.run(5.0, tokens=10, enough=lambda: seen.refused > 0 and seen.tokens >= BUDGET / 2)
    assert seen.refused
    assert BUDGET / 2 <= seen.tokens <= BUDGET


@pytest.mark.slow
async def test_limits_hold_while_redis_is_stopped_and_nobody_waits_for_it(pair: Pair) -> None:
    seen = load(pair, "stopped")
    await seen.run(1.0, clients=1)
    usual_s = statistics.median(seen.took_s)
    pair.redis.pause()
    try:
        seen.took_s.clear()
        await seen.run(2.5)
        slowest_s = sorted(seen.took_s)
    finally:
        pair.redis.go_on()
    await seen.run(2.0, enough=lambda: seen.refused > 0)
    assert seen.refused
    assert seen.most_in_a_minute <= RPM
    told = f"median {slowest_s[len(slowest_s) // 2] * 1000:.1f} ms, slowest {slowest_s[-1] * 1000:.1f} ms"
    print(f"{len(slowest_s)} answers while Redis stood still: {told}")  # noqa: T201
    assert slowest_s[len(slowest_s) // 2] < max(0.5, 10 * usual_s), told


@pytest.mark.slow
async def test_limits_hold_when_redis_dies_and_comes_back_empty(pair: Pair) -> None:
    seen = load(pair, "killed")
    await seen.run(1.5)
    before = len(seen.admitted_s)
    pair.redis.kill()
    await seen.run(2.0)
    pair.redis.start()
    started_s = time.monotonic()
    await seen.run(6.0)
    assert before
    when = [round(each - started_s, 2) for each in seen.admitted_s]
    assert seen.most_in_a_minute <= RPM, str(when)
    fresh = load(pair, "free")
    await fresh.run(0.5, clients=1)
    assert fresh.admitted_s
    for gateway in pair.gateways:
        log = gateway.child.log.read_text("utf-8")
        assert log.count("shared_limits_away") == log.count("shared_limits_back") >= 1
