"""Gateways that serve each other in a row, in a ring, or as several processes."""

import asyncio
import os
import signal
import urllib.request

import pytest

from shared.process.ports import free_port
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import MODEL
from tests.integration.regions import WAIT_S, build, client, join, text_of
from tests.support.logged_events import logged_events
from tests.support.processes import Engine, Gateway, House, answer_to, until


@pytest.mark.cluster
async def test_two_gateways_that_are_each_others_parents_offer_nothing_back(house: House) -> None:
    """And each serves what the other one's agents do."""
    ports = {"left": free_port(), "right": free_port()}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    left = await asyncio.to_thread(house.gateway, name="left", port=ports["left"])
    right = await asyncio.to_thread(join, house, left, name="right", port=ports["right"])
    token = right.token()
    await asyncio.to_thread(house.children.stop, left.child)
    left = await asyncio.to_thread(
        lambda: house.gateway(
            *("--uplink", urls["right"], "--join", token),
            name="left",
            port=ports["left"],
            environment={"TRUNKLINE_GATEWAY_UPLINK__NAME": "left"},
        )
    )
    engine = await asyncio.to_thread(house.engine, "--model", MODEL)
    house.agent(left, engine.url, name="gpu-1")
    keys = {"left": left.key("tests"), "right": right.key("tests")}
    for gateway, name in ((left, "left"), (right, "right")):
        await asyncio.to_thread(house.wait_for_model, gateway, keys[name], MODEL)
    for gateway, name, agent in ((left, "left", "gpu-1"), (right, "right", "left")):
        async with client(gateway, keys[name]) as ask:
            for _ in range(5):
                async with ask.post(CHAT, json=chat(max_tokens=2)) as answer:
                    assert answer.status == 200
                    assert answer.headers["x-trunkline-agent"] == agent


@pytest.mark.cluster
async def test_four_hops_are_taken_and_a_sixth_gateway_is_offered_nothing(house: House) -> None:
    chain = [await asyncio.to_thread(house.gateway, name="g1")]
    for number in range(2, 7):
        chain.append(await asyncio.to_thread(join, house, chain[-1], name=f"g{number}"))
    engine = await asyncio.to_thread(house.engine, "--model", MODEL)
    house.agent(chain[-1], engine.url, name="gpu-1")
    keys = [gateway.key("tests") for gateway in chain]
    await asyncio.to_thread(house.wait_for_model, chain[1], keys[1], MODEL)
    body = chat(max_tokens=4, stream=True)
    async with client(chain[1], keys[1]) as ask, ask.post(CHAT, json=body) as answer:
        assert answer.status == 200
        assert answer.headers["x-trunkline-ran-by"] == "g4/g5/g6/gpu-1"
        assert text_of(await answer.read()) == answer_to("hi", 4)
    assert chain[0].models(keys[0]) == []


@pytest.mark.cluster
async def test_a_child_has_a_session_with_every_process_of_its_parent(house: House) -> None:
    parent = await asyncio.to_thread(house.gateway, "--workers", "2", name="parent")
    region = await asyncio.to_thread(build, house, parent=parent)
    log = region.child.child.log
    await asyncio.to_thread(until, "both", lambda: log.read_text().count('"event":"connected"') == 2, WAIT_S)

    async def ask() -> tuple[int, str | None]:
        async with client(parent, region.key) as fresh, fresh.post(CHAT, json=chat(max_tokens=2)) as answer:
            return answer.status, answer.headers.get("x-trunkline-ran-by")

    assert set(await asyncio.gather(*(ask() for _ in range(16)))) == {(200, "gpu-1")}
    assert (await asyncio.to_thread(region.engine.stats))["peak_running"] <= 4


def _workers(gateway: Gateway) -> dict[int, int]:
    """Process ids by place, as the supervisor said last."""
    return {each["worker"]: each["pid"] for each in logged_events(gateway.child.log, "worker_serves")}


def _region_of_two_workers(house: House, uses: int) -> tuple[Gateway, Gateway, Engine]:
    """A parent, a child of two workers that may join so often, and an engine that nobody offers yet."""
    parent = house.gateway(name="parent")
    child = house.gateway(
        *("--uplink", parent.url, "--join", parent.token(uses=uses), "--workers", "2"),
        name="region",
        environment={"TRUNKLINE_GATEWAY_UPLINK__NAME": "region"},
    )
    return parent, child, house.engine("--model", MODEL)


@pytest.mark.cluster
async def test_every_worker_of_a_child_offers_its_slots_and_one_may_die(house: House) -> None:
    parent, child, engine = await asyncio.to_thread(_region_of_two_workers, house, uses=2)
    house.agent(child, engine.url, "--slots", "4", name="gpu-1")
    key, local = parent.key("tests"), child.key("local")
    await asyncio.to_thread(house.wait_for_model, parent, key, MODEL)

    async def asked() -> str:
        """By which worker's agent so many requests as there are slots are answered."""
        async with client(parent, key) as ask:
            body = chat(max_tokens=2, script={"delay_s": 0.1})
            answers = await asyncio.gather(*(ask.post(CHAT, json=body) for _ in range(4)))
            for answer in answers:
                assert answer.status == 200, await answer.text()
            return answers[-1].headers["x-trunkline-agent"]

    def both_up() -> bool:
        """Also False while a worker does not answer."""
        request = urllib.request.Request(f"{child.url}/metrics", headers={"authorization": f"Bearer {local}"})
        try:
            with urllib.request.urlopen(request, timeout=10.0) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return False
        return [line[-3:] for line in lines if line.startswith("trunkline_uplink_up{")] == ["1.0", "1.0"]

    await asyncio.to_thread(until, "both serve the parent", both_up, 2 * WAIT_S)
    names = ["region", "region-1"]
    first = await asked()
    os.kill(_workers(child)[names.index(first)], signal.SIGKILL)
    async with asyncio.timeout(2 * WAIT_S):
        while await asked() == first:
            pass
    await asyncio.to_thread(until, "both serve it again", both_up, 2 * WAIT_S)
    child.child.signal(signal.SIGUSR2)
    replaced = '"event":"workers_replaced"'
    await asyncio.to_thread(
        until, "all are replaced", lambda: replaced in child.child.log.read_text(), 2 * WAIT_S
    )
    await asyncio.to_thread(until, "both serve it after that", both_up, 2 * WAIT_S)
    assert await asked() in names
    assert (await asyncio.to_thread(engine.stats))["peak_running"] <= 4


@pytest.mark.cluster
async def test_slots_of_a_worker_without_an_uplink_are_lent_for_what_waits_above(house: House) -> None:
    parent, child, engine = await asyncio.to_thread(_region_of_two_workers, house, uses=1)
    agent = house.agent(child, engine.url, "--slots", "4", name="gpu-1")
    key, log = parent.key("tests"), child.child.log
    await asyncio.to_thread(house.wait_for_model, parent, key, MODEL)
    left_out = '"event":"uplink_worker_left_out"'
    await asyncio.to_thread(until, "one offers nothing", lambda: left_out in log.read_text(), 2 * WAIT_S)
    await asyncio.to_thread(until, "both have slots", lambda: agent.log.read_text().count("connected ") >= 2)

    async def ask() -> int:
        """Long enough for the other ones to get their slots meanwhile."""
        body = chat(max_tokens=2, script={"delay_s": 4.0})
        async with client(parent, key) as fresh, fresh.post(CHAT, json=body) as answer:
            return answer.status

    assert await asyncio.gather(*(ask() for _ in range(4))) == [200] * 4
    assert (await asyncio.to_thread(engine.stats))["peak_running"] == 4
