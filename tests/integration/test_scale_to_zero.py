"""A model without a replica is asked for: KEDA is told at once, starts one, and the request that was held is
answered. KEDA's side is a client made from the interface that it publishes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from gateway.domain.scopes import AdminRole
from shared.process.ports import free_port
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import _HOUSES
from tests.support.keda import compiled
from tests.support.processes import Engine, Gateway, House, answer_to, until

MODEL = "to-zero"
SETTINGS = {
    "MIN_REPLICAS": "0",
    "INTERVAL_S": "0.2",
    "IDLE_S": "2",
    "READY_S": "1",
    "STABILISATION_S": "1",
    "COOLDOWN_S": "0.2",
    "CLASSES": '{"unknown": {"max_replicas": 4}}',
}
TOLD_S = 60.0
"""Patience with a decision, on a busy machine."""


@dataclass(frozen=True, slots=True)
class ScaledSite:
    house: House
    gateway: Gateway
    engine: Engine
    key: str
    keda: str
    messages: Any
    stubs: Any

    def started(self, name: str) -> None:
        """One replica, as a cloud starts it when it is told to."""
        self.house.agent(self.gateway, self.engine.url, name=name)

    def ended(self, name: str) -> None:
        agent = next(child for child in self.house.children if child.name == name)
        self.house.children.stop(agent)

    def trigger(self, **metadata: str) -> Any:
        return self.messages.ScaledObjectRef(name="agents", namespace="llm", scalerMetadata=metadata)

    @asynccontextmanager
    async def scaler(self) -> AsyncIterator[Any]:
        """What KEDA's operator has of the scaler."""
        async with grpc.aio.insecure_channel(self.keda) as channel:
            yield self.stubs.ExternalScalerStub(channel)

    async def wanted(self, scaler: Any, **metadata: str) -> int:
        """What KEDA gives the autoscaler of Kubernetes, by the metric that it was told of."""
        trigger = self.trigger(**metadata)
        (spec,) = (await scaler.GetMetricSpec(trigger)).metricSpecs
        assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
        asked = self.messages.GetMetricsRequest(scaledObjectRef=trigger, metricName=spec.metricName)
        (value,) = (await scaler.GetMetrics(asked)).metricValues
        assert value.metricName == spec.metricName
        assert value.metricValueFloat == value.metricValue
        return int(value.metricValue)

    def client(self) -> aiohttp.ClientSession:
        headers = {"authorization": f"Bearer {self.key}"}
        return aiohttp.ClientSession(self.gateway.url, headers=headers)

    async def asked(self, client: aiohttp.ClientSession, tier: str = "standard") -> str:
        """What the model answers. Requests of the tier ``batch`` do not count as what comes in a minute."""
        headers = {"x-trunkline-tier": tier}
        async with client.post(CHAT, json=chat(model=MODEL, max_tokens=4), headers=headers) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScaledSite]:
    directory = tmp_path_factory.mktemp("scaled")
    messages, stubs = compiled(directory / "keda")
    keda = f"127.0.0.1:{free_port()}"
    settings = SETTINGS | {"KEDA_LISTEN": keda}
    environment = {f"TRUNKLINE_GATEWAY_SCALING__{name}": value for name, value in settings.items()}
    with House(Path(directory)) as house:
        _HOUSES.append(house)
        gateway = house.gateway(environment=environment)
        engine = house.engine("--model", MODEL)
        key = gateway.key("scaler", role=AdminRole.OPERATOR)
        yield ScaledSite(house, gateway, engine, key, keda, messages, stubs)
    _HOUSES.remove(house)


async def becomes(told: AsyncIterator[Any], active: bool) -> None:
    """Return once KEDA is told that the model is active, or is not: at first it may hear what was so."""
    async with asyncio.timeout(TOLD_S):
        while (await anext(told)).result is not active:
            pass


async def test_a_model_goes_to_zero_and_comes_back_when_it_is_asked_for(site: ScaledSite) -> None:
    async with site.scaler() as scaler, site.client() as client:
        site.started("first")
        await asyncio.to_thread(site.house.wait_for_model, site.gateway, site.key, MODEL)
        assert await site.asked(client, "batch") == answer_to("hi", 4)
        told = aiter(scaler.StreamIsActive(site.trigger(model=MODEL)))
        await becomes(told, True)
        assert await site.wanted(scaler, model=MODEL) == 1

        await becomes(told, False)
        assert await site.wanted(scaler, model=MODEL) == 0
        assert not (await scaler.IsActive(site.trigger(model=MODEL))).result
        await asyncio.to_thread(site.ended, "first")

        held = asyncio.ensure_future(site.asked(client))
        await becomes(told, True)
        assert await site.wanted(scaler, model=MODEL) == 1
        assert await site.wanted(scaler, model=MODEL, **{"class": "unknown"}) == 1
        async with client.get(f"/admin/scaling/{MODEL}?class=unknown") as response:
            said = await response.json()
        assert (said["wanted"], said["ready"], said["active"]) == (1, 0, True)
        assert not held.done(), "nobody could have answered it"
        site.started("second")
        async with asyncio.timeout(TOLD_S):
            assert await held == answer_to("hi", 4)
        until("the engine is idle", lambda: site.engine.stats()["running"] == 0)


async def test_what_keda_may_ask_and_the_scaler_lacks_is_said_so(site: ScaledSite) -> None:
    """KEDA then asks for the metric's target as before."""
    async with site.scaler() as scaler:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(scaler.StreamMetricSpec(site.trigger(model=MODEL))))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await scaler.IsActive(site.trigger(name="no model"))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
