"""A gateway that serves another one as its agent: the processes as users run them."""

import asyncio
import json
import os
import signal
import subprocess
from typing import Any

import aiohttp
import pytest

from gateway.observability.audit.segments import DIRECTORY
from gateway.storage import Store, UsageGrouping
from shared.process.ports import free_port
from tests.gateway.observability.audit.logs import records
from tests.integration.asking import CHAT, chat, error_of
from tests.integration.conftest import MODEL
from tests.integration.regions import GOES_ON, IN_TURNS, WAIT_S, Region, build, client, join, text_of, where
from tests.support import forks
from tests.support.processes import Gateway, House, answer_to, until
from tests.support.proxy import FaultyProxy


@pytest.fixture
def region(house: House) -> Region:
    return build(house)


async def test_clients_of_the_parent_are_answered_by_the_childs_agents(region: Region) -> None:
    async with client(region.parent, region.key) as ask:
        async with ask.post(CHAT, json=chat(max_tokens=5)) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["choices"][0]["message"]["content"] == answer_to("hi", 5)
            assert answer.headers["x-trunkline-agent"] == "region"
            assert answer.headers["x-trunkline-ran-by"] == "gpu-1"
        async with ask.post(CHAT, json=chat(max_tokens=7, stream=True)) as answer:
            assert answer.headers["x-trunkline-ran-by"] == "gpu-1"
            stream = await answer.read()
            assert text_of(stream) == answer_to("hi", 7)
            assert stream.endswith(b"data: [DONE]\n\n")


def _audited(gateway: Gateway) -> list[dict[str, Any]]:
    return [line for line in records(gateway.state / DIRECTORY) if line["kind"] == "request"]


def _used(gateway: Gateway, by: UsageGrouping) -> dict[str, tuple[int, int]]:
    """Requests and tokens of answers."""
    with Store.open(gateway.state) as store:
        totals = store.usage.totals(by)
    return {each.name: (each.amount.requests, each.amount.completion_tokens) for each in totals}


async def test_both_book_what_was_used_and_audit_who_ran_it(region: Region) -> None:
    async with client(region.parent, region.key) as ask:
        for stream in (False, True):
            # longer than a tick of the loop's clock, which counts whole milliseconds
            body = chat(max_tokens=5, stream=stream, script={"delay_s": 0.01})
            async with ask.post(CHAT, json=body) as answer:
                assert answer.status == 200
                await answer.read()

    def booked(gateway: Gateway, by: UsageGrouping, name: str) -> bool:
        return _used(gateway, by).get(name) == (2, 10)

    await asyncio.to_thread(
        until, "the parent bills", lambda: booked(region.parent, UsageGrouping.KEY, "tests")
    )
    await asyncio.to_thread(
        until, "the child books", lambda: booked(region.child, UsageGrouping.TENANT, "(uplink)")
    )
    await asyncio.to_thread(until, "the parent audits", lambda: len(_audited(region.parent)) == 2)
    await asyncio.to_thread(until, "the child audits", lambda: len(_audited(region.child)) == 2)
    for above, below in zip(_audited(region.parent), _audited(region.child), strict=True):
        assert above["id"] == below["id"]
        assert (above["ran_by"], above["status"], below["status"]) == ("gpu-1", 200, 200)
        assert (below["tenant"], below["who"]) == ("(uplink)", "key:(uplink)")
        assert below["ran"][0].startswith("gpu-1/")
        assert above["ran"][0].startswith("region/")
        assert 0 < above["gpu_s"] <= above["total_ms"] / 1000


async def test_a_stream_goes_on_at_the_next_token_when_the_uplink_is_cut(house: House) -> None:
    parent = house.gateway(name="parent")
    async with FaultyProxy("127.0.0.1", parent.port) as proxy:
        region = await asyncio.to_thread(build, house, parent=parent, dial=proxy.url)
        body = chat(stream=True, script={"tokens_per_s": 50}, max_tokens=60)
        async with client(parent, region.key) as ask, ask.post(CHAT, json=body) as answer:
            stream = b""
            while text_of(stream.rpartition(b"\n\n")[0]).count(" ") < 10:
                stream += await answer.content.readany()
            before = proxy.accepted
            await proxy.cut()
            stream += await answer.content.read()
            assert answer.headers["x-trunkline-attempts"] == "1"
        assert proxy.accepted > before
    assert text_of(stream) == answer_to("hi", 60)
    assert stream.endswith(b"data: [DONE]\n\n")
    stats = await asyncio.to_thread(region.engine.stats)
    assert stats["requests"].count("POST /v1/chat/completions") == 1


async def test_a_child_whose_clients_have_the_slots_is_waited_for_in_the_parents_queue_only(
    house: House,
) -> None:
    region = await asyncio.to_thread(build, house, slots=1)
    local = await asyncio.to_thread(lambda: region.child_key)
    held = chat(stream=True, script={"tokens_per_s": 20}, max_tokens=40)
    async with client(region.child, local) as here, client(region.parent, region.key) as above:
        async with here.post(CHAT, json=held) as own:
            await own.content.readany()
            asked = asyncio.create_task(above.post(CHAT, json=chat(max_tokens=3)))
            await own.read()
            assert not asked.done()
        async with await asked as answer:
            assert answer.status == 200, await answer.text()
            assert float(answer.headers["x-trunkline-queue-ms"]) > 500
            assert (await answer.json())["choices"][0]["message"]["content"] == answer_to("hi", 3)
        async with here.get("/metrics") as answer:
            queued = [
                line
                for line in (await answer.text()).splitlines()
                if line.startswith("trunkline_queue_depth")
            ]
    assert all(line.endswith(" 0.0") for line in queued)
    assert (await asyncio.to_thread(region.engine.stats))["peak_running"] == 1


async def test_requests_of_both_never_exceed_the_childs_slots(house: House) -> None:
    region = await asyncio.to_thread(build, house, slots=2)
    local = await asyncio.to_thread(lambda: region.child_key)
    async with client(region.child, local) as here, client(region.parent, region.key) as above:

        async def ask(session: aiohttp.ClientSession) -> int:
            async with session.post(CHAT, json=chat(max_tokens=3, script={"delay_s": 0.05})) as answer:
                await answer.read()
                return answer.status

        found = await asyncio.gather(*(ask(each) for _ in range(20) for each in (here, above)))
    assert set(found) == {200}
    assert (await asyncio.to_thread(region.engine.stats))["peak_running"] <= 2


async def _both_answer(parent: Gateway, key: str) -> None:
    """Returns once requests have been answered through two agents."""
    seen: set[str] = set()
    async with client(parent, key) as ask, asyncio.timeout(WAIT_S):
        while len(seen) < 2:
            bodies = [chat(max_tokens=2, script={"delay_s": 0.1}) for _ in range(4)]
            answers = await asyncio.gather(*(ask.post(CHAT, json=body) for body in bodies))
            seen = {answer.headers["x-trunkline-agent"] for answer in answers}
            for answer in answers:
                await answer.read()


async def test_answers_of_a_child_that_is_killed_go_on_at_another(house: House) -> None:
    parent = house.gateway(name="parent", environment=IN_TURNS)
    region = await asyncio.to_thread(build, house, parent=parent)
    second = await asyncio.to_thread(join, house, parent, name="second")
    engine = await asyncio.to_thread(house.engine, "--model", MODEL, name="engine-2")
    house.agent(second, engine.url, "--slots", "4", name="gpu-2", environment=GOES_ON)
    await _both_answer(parent, region.key)
    async with client(parent, region.key) as ask:
        body = chat(stream=True, script={"tokens_per_s": 20}, max_tokens=40)
        answers = await asyncio.gather(*(ask.post(CHAT, json=body) for _ in range(4)))
        for answer in answers:
            await answer.content.readany()
        assert {answer.headers["x-trunkline-agent"] for answer in answers} == {"region", "second"}
        os.kill(region.child.child.pid, signal.SIGKILL)
        streams = [await answer.content.read() for answer in answers]
        async with ask.post(CHAT, json=chat(max_tokens=2)) as answer:
            assert answer.headers["x-trunkline-agent"] == "second"
    assert [stream[-200:] for stream in streams if not stream.endswith(b"data: [DONE]\n\n")] == []


@pytest.mark.cluster
async def test_without_another_child_a_killed_one_is_a_clear_error(region: Region) -> None:
    async with client(region.parent, region.key) as ask:
        body = chat(stream=True, script={"tokens_per_s": 20}, max_tokens=400)
        answer = await ask.post(CHAT, json=body)
        await answer.content.readany()
        os.kill(region.child.child.pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S + 30):
            stream = await answer.content.read()
    error = json.loads(stream.rpartition(b"data: {")[2].join((b"{", b"")).partition(b"\n")[0])["error"]
    assert "lost" in error["message"]


@pytest.mark.cluster
async def test_a_child_that_starts_again_serves_again(region: Region) -> None:
    region.house.children.stop(region.child.child)
    again = await asyncio.to_thread(
        region.house.gateway, "--uplink", region.parent.url, name="region", port=region.child.port
    )
    await asyncio.to_thread(region.house.wait_for_model, again, again.key("more"), MODEL)
    async with client(region.parent, region.key) as ask, ask.post(CHAT, json=chat(max_tokens=2)) as answer:
        assert answer.status == 200, await answer.text()


@pytest.mark.cluster
async def test_a_child_that_drains_finishes_and_a_parent_that_starts_again_finds_it(region: Region) -> None:
    parent, port = region.parent, region.parent.port
    await asyncio.to_thread(region.house.children.stop, parent.child)
    parent = await asyncio.to_thread(region.house.gateway, name="parent", port=port)
    await asyncio.to_thread(region.house.wait_for_model, parent, region.key, MODEL)
    async with client(parent, region.key) as ask:
        body = chat(stream=True, script={"tokens_per_s": 20}, max_tokens=30)
        answer = await ask.post(CHAT, json=body)
        await answer.content.readany()
        os.kill(region.child.child.pid, signal.SIGTERM)
        stream = await answer.content.read()
    assert stream.endswith(b"data: [DONE]\n\n")


async def test_where_a_request_may_run_is_kept_by_the_child(house: House) -> None:
    """The parent believes the identity of the uplink; the child knows its agents."""
    parent = house.gateway(name="parent")
    child = join(house, parent, name="region", labels={"region": "eu"})
    engine = house.engine("--model", MODEL)
    house.agent(child, engine.url, name="gpu-us", token=child.token(labels={"region": "us"}))
    key = parent.key("tests")
    await asyncio.to_thread(house.wait_for_model, parent, key, MODEL)
    async with client(parent, key) as ask:
        async with ask.post(CHAT, json=chat(max_tokens=2)) as answer:
            assert answer.status == 200
        before = (await asyncio.to_thread(engine.stats))["started"]
        async with ask.post(CHAT, json=chat(max_tokens=2), headers=where("region=eu")) as answer:
            assert answer.status == 503
            assert "region=eu" in (await error_of(answer))["message"]
    assert (await asyncio.to_thread(engine.stats))["started"] == before


@pytest.mark.cluster
async def test_agents_without_a_label_have_that_of_their_gateways_uplink(house: House) -> None:
    parent = house.gateway(name="parent")
    labels = {"TRUNKLINE_GATEWAY_UPLINK__LABELS": '{"region": "eu"}'}
    child = join(house, parent, name="region", labels={"region": "eu"}, environment=labels)
    engine = house.engine("--model", MODEL)
    house.agent(child, engine.url, name="gpu-1")
    key = parent.key("tests")
    await asyncio.to_thread(house.wait_for_model, parent, key, MODEL)
    async with client(parent, key) as ask:
        for where, status in (("region=eu", 200), ("region=us", 503)):
            async with ask.post(
                CHAT, json=chat(max_tokens=2), headers={"x-trunkline-where": where}
            ) as answer:
                assert answer.status == status, await answer.text()


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return forks.trunkline("gateway", *arguments)


def test_an_uplink_that_cannot_be_is_wrong_usage(house: House) -> None:
    parent = house.gateway(name="parent")
    state = ("--state", str(house.directory / "child"), "--listen", f"127.0.0.1:{free_port()}")
    for arguments, said in (
        (("--uplink", parent.url), "has not joined"),
        (("--join", parent.token()), "need uplink.url"),
        (("--uplink", parent.url, "--join", "tlj_x"), "join token"),
        (("--uplink", "http://example.com", "--join", parent.token()), "loopback only"),
        (("--uplink", f"{parent.url}/v1", "--join", parent.token()), "/v1 is where clients ask"),
    ):
        ended = _run(*state, *arguments)
        assert ended.returncode == 2, ended.stderr
        assert said in ended.stderr


def test_a_gateway_is_not_its_own_parent(house: House) -> None:
    alone = house.gateway(name="alone")
    token = alone.token()
    house.children.stop(alone.child)
    where = ("--state", str(alone.state), "--listen", f"127.0.0.1:{alone.port}")
    ended = _run(*where, "--uplink", alone.url, "--join", token)
    assert ended.returncode == 2
    assert "no gateway can be its own parent" in ended.stderr


def test_a_token_that_is_used_up_is_told_and_own_clients_are_served(house: House) -> None:
    parent = house.gateway(name="parent")
    token = parent.token()
    child = house.gateway("--uplink", parent.url, "--join", token, name="first")
    until("it has joined", lambda: "joined" in child.child.log.read_text(), WAIT_S)
    other = house.gateway("--uplink", parent.url, "--join", token, name="second")
    until("it is told", lambda: "uplink_rejected" in other.child.log.read_text(), WAIT_S)
    assert other.serving()
