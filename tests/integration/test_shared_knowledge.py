"""Two gateways on one store tell each other what work they gave, what they learnt and what they suspect."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.cluster.knowledge.document import Told, UnreadableKnowledge, read
from gateway.domain.scopes import AdminRole
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from shared.process.ports import free_port
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import MODEL
from tests.support.processes import Engine, Gateway, House, until


@dataclass(slots=True)
class Pair:
    house: House
    url: str
    gateways: list[Gateway]
    engines: list[Engine]
    keys: dict[str, str]
    store: Store | None = None
    """The one that all have, open: to open it anew for each look would take as long as ten looks."""

    def start(self, name: str) -> Gateway:
        port = free_port()
        own = {
            "TRUNKLINE_GATEWAY_CLUSTER__URL": f"http://127.0.0.1:{port}",
            "TRUNKLINE_GATEWAY_HTTP__METRICS_PUBLIC": "true",
        }
        shared = () if not self.gateways else ("--cluster-key", str(self.gateways[0].state / "cluster.key"))
        gateway = self.house.gateway("--store", self.url, *shared, name=name, port=port, environment=own)
        self.gateways.append(gateway)
        return gateway

    def client(self, which: int, key: str) -> aiohttp.ClientSession:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        return aiohttp.ClientSession(self.gateways[which].url, headers=headers)

    def agent(self, name: str, slots: int) -> Engine:
        """One more deployment, with which both gateways have a session."""
        engine = self.house.engine("--model", MODEL, name=f"engine-{name}")
        self.house.agent(self.gateways[0], engine.url, "--slots", str(slots), name=name)
        self.engines.append(engine)
        for number in range(len(self.gateways)):
            self.wait_for_deployments(number, len(self.engines))
        return engine

    def wait_for_deployments(self, which: int, count: int) -> None:
        def there() -> bool:
            return sum(self.metric(which, "trunkline_deployments", state="loaded").values()) == count

        until("both gateways have the deployments", there, 30.0)

    def metric(self, which: int, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """The samples of that name with these labels, by all their labels."""
        from urllib.request import urlopen

        with urlopen(f"{self.gateways[which].url}/metrics") as answer:
            text = answer.read().decode()
        return {
            tuple(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def told(self, which: int) -> Told | None:
        """What a gateway tells now."""
        assert self.store is not None
        rows = self.store.processes.list().records
        row = next(each for each in rows if each.url == self.gateways[which].url)
        try:
            return read(row.knowledge or "")
        except UnreadableKnowledge:
            return None

    def said(self, which: int, event: str) -> bool:
        return f'"event":"{event}"' in self.gateways[which].child.log.read_text()


@pytest.fixture
def pair(tmp_path: Path, postgres_address: StoreAddress) -> Iterator[Pair]:
    with House(tmp_path / "house") as house:
        made = Pair(house, postgres_address.url, [], [], {})
        made.start("first")
        made.start("second")
        with Store.open(made.gateways[0].state) as made.store:
            for tenant in ("a", "b"):
                made.keys[tenant] = made.store.keys.create(tenant, tenant, time.time(), role=AdminRole.VIEWER)
            yield made


async def keep_asking(
    client: aiohttp.ClientSession, tenant: str, served: "Counter[str]", until_s: float, **body: Any
) -> None:
    while time.monotonic() < until_s:
        async with client.post(CHAT, json=chat(**body)) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
            served[tenant] += 1


@pytest.mark.cluster
async def test_a_tenant_that_floods_one_gateway_leaves_others_their_share_at_the_other(pair: Pair) -> None:
    """Untold, the second gateway would give its slots to both alike, and b a third of all."""
    await asyncio.to_thread(pair.agent, "gpu-1", 4)
    warm, served, began_s = Counter[str](), Counter[str](), time.monotonic()
    body = {"stream": True, "max_tokens": 100, "script": {"tokens_per_s": 200.0}}
    async with (
        pair.client(0, "a") as a_first,
        pair.client(1, "a") as a_second,
        pair.client(1, "b") as b_second,
    ):
        flood = [(a_first, "a")] * 12 + [(a_second, "a")] * 12 + [(b_second, "b")] * 12

        async def all_ask(counted: "Counter[str]", until_s: float) -> None:
            async with asyncio.TaskGroup() as tasks:
                for client, tenant in flood:
                    tasks.create_task(keep_asking(client, tenant, counted, until_s, **body))

        await all_ask(warm, began_s + 6.0)
        await all_ask(served, began_s + 20.0)
    share = served["b"] / served.total()
    assert served.total() > 30
    assert share > 0.39, f"b had {share:.2f} of {served.total()} requests"
    told = await asyncio.to_thread(pair.told, 0)
    assert told is not None
    assert {tenant for _, given in told.work for _, _, tenant in given} == {"a"}


async def test_a_gateway_that_is_started_again_knows_the_speed_at_its_first_request(pair: Pair) -> None:
    """The engine is slower than one of which nothing is known is taken for, by much more than what a busy
    machine adds to its times."""
    await asyncio.to_thread(pair.agent, "gpu-1", 8)
    body = {"stream": True, "max_tokens": 8, "script": {"tokens_per_s": 8.0}}

    async def ask(which: int, name: str) -> float:
        """For how many seconds the gateway thinks that this request will take."""
        async with pair.client(which, "a") as client:
            async with client.post(CHAT, json=chat(**body), headers={"x-request-id": name}) as answer:
                assert answer.status == 200
                await answer.read()
            async with client.get(f"/admin/requests/{name}") as answer:
                (decision,) = (await answer.json())["decisions"]
        (candidate,) = decision["candidates"]
        return float(candidate["predicted"]["total"])

    unknown_s = await ask(0, "first")
    for batch in range(5):
        await asyncio.gather(*(ask(0, f"more-{batch}-{number}") for number in range(8)))
    known_s = await ask(0, "last")
    assert known_s > unknown_s * 2, "so far off is one that knows nothing"

    def learnt() -> bool:
        told = pair.told(0)
        return told is not None and any(each.writing and each.writing.count >= 40 for each in told.speeds)

    await asyncio.to_thread(until, "the first tells what it learnt", learnt)
    await asyncio.to_thread(pair.house.children.stop, pair.gateways.pop().child)
    await asyncio.to_thread(pair.start, "second")
    await asyncio.to_thread(pair.wait_for_deployments, 1, 1)
    first_s = await ask(1, "first-again")
    assert known_s / first_s < first_s / unknown_s, f"{first_s} is nearer to {unknown_s} than to {known_s}"


@pytest.mark.cluster
async def test_one_that_a_gateway_gave_up_is_probed_by_the_other(pair: Pair) -> None:
    sick = await asyncio.to_thread(pair.agent, "gpu-1", 16)
    await asyncio.to_thread(pair.agent, "gpu-2", 16)
    async with pair.client(0, "a") as first, pair.client(1, "a") as second:
        for client in (first, second):
            await asyncio.gather(
                *(keep_asking(client, "a", Counter(), time.monotonic() + 0.5) for _ in range(4))
            )
        sick.direct(default={"status": 500})
        until_s = time.monotonic() + 60.0
        while not pair.said(0, "circuit_opened"):  # more at once than the other has slots
            assert time.monotonic() < until_s
            await asyncio.gather(
                *(keep_asking(first, "a", Counter(), time.monotonic() + 0.1) for _ in range(24))
            )
        await asyncio.to_thread(until, "the second hears of it", lambda: pair.said(1, "deployment_suspect"))
        started = (await asyncio.to_thread(sick.stats))["started"]
        async with second.post(CHAT, json=chat()) as answer:
            assert answer.status == 200, "another one answered"
        assert (await asyncio.to_thread(sick.stats))["started"] == started + 1, "it was probed at once"
        assert pair.said(1, "circuit_opened"), "and one failure was enough"
