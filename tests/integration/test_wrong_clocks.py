"""Gateways on one store whose hosts' clocks are an hour wrong, or of which one sleeps for a while."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from gateway.domain.quotas import Rates
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store, UsageGrouping
from gateway.storage.wrapped_keys import CLUSTER_KEY_NAME
from shared.process.ports import free_port
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import MODEL
from tests.support.processes import Gateway, House, until

LIBRARIES = [
    path for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1") if os.access(path, os.R_OK)
]
RPM = 20
TOKEN_S = 4 * 3600.0
"""Each gateway goes by its own clock in whether a join token has expired."""


@dataclass(frozen=True)
class Site:
    """Two gateways on one store, an agent, an engine."""

    house: House
    gateways: tuple[Gateway, Gateway]
    keys: dict[str, str]

    def client(self, which: int, key: str) -> aiohttp.ClientSession:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        return aiohttp.ClientSession(self.gateways[which].url, headers=headers)

    def events(self, name: str) -> list[int]:
        """How often each gateway has logged it."""
        return [gateway.child.log.read_text().count(f'"event":"{name}"') for gateway in self.gateways]


def site(house: House, address: StoreAddress, offsets_s: tuple[int, int]) -> Site:
    """``offsets_s`` are what the gateways' clocks are ahead."""
    gateways: list[Gateway] = []
    url = address.url
    for name, offset_s in zip("ab", offsets_s, strict=True):
        port = free_port()
        environment = {"TRUNKLINE_GATEWAY_CLUSTER__URL": f"http://127.0.0.1:{port}"}
        if offset_s:
            environment |= {
                "LD_PRELOAD": str(LIBRARIES[0]),
                "FAKETIME": f"{offset_s:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_DONT_RESET": "1",
            }
        shared = ["--store", url, "--shared", url]
        if gateways:
            shared += ["--cluster-key", str(gateways[0].state / CLUSTER_KEY_NAME)]
        gateways.append(house.gateway(*shared, name=name, port=port, environment=environment))
    engine = house.engine("--model", MODEL)
    with Store.open(gateways[0].state) as store:
        keys = {
            name: store.keys.create(name, "tests", time.time(), rates=rates)
            for name, rates in {"free": Rates(), "limited": Rates(rpm=RPM)}.items()
        }
        _, token = store.tokens.create(TOKEN_S, 1, ["*"], {}, time.time())
    made = Site(house, (gateways[0], gateways[1]), keys)
    house.agent(gateways[0], engine.url, token=token)
    for gateway in gateways:
        house.wait_for_model(gateway, keys["free"], MODEL)
    return made


async def admitted(site: Site, key: str, seconds: float, enough: int) -> int:
    """How many of both gateways' clients are let in when they ask as fast as they can for so long, and on a
    slow machine for up to 45 seconds, until so many are."""
    found, began_s = 0, time.monotonic()

    def goes_on() -> bool:
        past_s = time.monotonic() - began_s
        return past_s < seconds or (found < enough and past_s < 45.0)

    async def ask(client: aiohttp.ClientSession) -> None:
        nonlocal found
        while goes_on():
            async with client.post(CHAT, json=chat(max_tokens=1)) as response:
                assert response.status in (200, 429), await response.text()
                found += response.status == 200
                await response.read()
            await asyncio.sleep(0.02)

    async with site.client(0, key) as a, site.client(1, key) as b:
        await asyncio.gather(ask(a), ask(b))
    return found


def requests(store: Store) -> int:
    return sum(total.amount.requests for total in store.usage.totals(UsageGrouping.DAY))


@pytest.mark.cluster
@pytest.mark.skipif(not LIBRARIES, reason="no libfaketime (Debian: apt-get install libfaketime)")
async def test_clocks_that_are_hours_apart_harm_no_session_lease_limit_or_usage(
    house: House, postgres_address: StoreAddress
) -> None:
    here = await asyncio.to_thread(site, house, postgres_address, (3600, -3600))
    with Store.open(here.gateways[0].state) as store:
        let_in = await admitted(here, "limited", 4.0, RPM - 2)
        assert RPM - 2 <= let_in <= RPM, "one limit, on the server's clock"
        await asyncio.to_thread(until, "usage is written", lambda: requests(store) == let_in)
        first = store.ownership.read("leader")
        assert first is not None
        await asyncio.sleep(5.0)
        after = store.ownership.read("leader")
        assert after is not None
        assert (after.owner, after.epoch) == (first.owner, first.epoch), "renewed, and taken by nobody"
        assert sum(here.events("leader")) == 1

        def heard() -> list[bool]:
            report = store.processes.list()
            return [report.now - each.heard < 6.0 for each in report.records]

        await asyncio.to_thread(until, "both are alive", lambda: heard() == [True, True])
        assert requests(store) == let_in, "each request once"
        store.keys.revoke("free", time.time())
        store.agents.revoke("agent", "it is another one", time.time())

    def refused() -> bool:
        return all("revoked" in text for name, text in here.house.logs().items() if name == "agent")

    await asyncio.to_thread(until, "the agent was let go", refused)
    for which in (0, 1):
        async with here.client(which, "free") as client, client.get("/v1/models") as response:
            assert response.status == 401


@pytest.mark.cluster
async def test_an_owner_that_sleeps_20_seconds_has_no_say_when_it_wakes(
    house: House, postgres_address: StoreAddress
) -> None:
    here = await asyncio.to_thread(site, house, postgres_address, (0, 0))
    with Store.open(here.gateways[0].state) as store:
        lease = store.ownership.read("leader")
        assert lease is not None
        assert lease.owner == store.process_name, "the first has it"
        async with here.client(0, "free") as client, client.post(CHAT, json=chat(max_tokens=1)) as response:
            assert response.status == 200
        here.gateways[0].child.signal(signal.SIGSTOP)
        slept_s = time.monotonic()

        def other_owns() -> bool:
            now = store.ownership.read("leader")
            return now is not None and now.owner != lease.owner

        await asyncio.to_thread(until, "the other one has it", other_owns)
        taken = store.ownership.read("leader")
        assert taken is not None
        assert taken.epoch > lease.epoch
        async with here.client(1, "free") as client:
            while time.monotonic() - slept_s < 20.0:
                async with client.post(CHAT, json=chat(max_tokens=1)) as response:
                    assert response.status == 200
                await asyncio.sleep(0.5)
        here.gateways[0].child.signal(signal.SIGCONT)
        await asyncio.to_thread(until, "it knows", lambda: here.events("leader_no_more")[0] == 1)
        await asyncio.to_thread(here.house.wait_for_model, here.gateways[0], here.keys["free"], MODEL)
        async with here.client(0, "free") as client, client.post(CHAT, json=chat(max_tokens=1)) as response:
            assert response.status == 200
        await asyncio.sleep(2.5)
        now = store.ownership.read("leader")
        assert now is not None
        assert (now.owner, now.epoch) == (taken.owner, taken.epoch)
        assert here.events("leader")[0] == 1, "it did not take it again"
