"""``trunkline gateway --workers 2``: two processes at one address, with TLS and without."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.storage import Store
from shared.tunnel.base import SUBPROTOCOL
from tests.integration.asking import CHAT, chat
from tests.integration.conftest import _HOUSES, MODEL
from tests.integration.workers import SLOTS, WorkersSite, both_offer, workers_of
from tests.support.processes import House, until
from tests.support.tls import make_certificate

pytestmark = pytest.mark.long

DONE = "data: [DONE]\n\n"


@pytest.fixture(scope="module", params=["plain", "tls"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersSite]:
    directory = tmp_path_factory.mktemp(f"workers-{request.param}")
    trust = None
    if request.param == "tls":
        trust = directory
        make_certificate(directory)
    with House(directory) as house:
        _HOUSES.append(house)
        yield workers_of(house, trust)
    _HOUSES.remove(house)


async def ask(client: aiohttp.ClientSession, tokens: int, tokens_per_s: float) -> str:
    body = chat(stream=True, max_tokens=tokens, script={"tokens_per_s": tokens_per_s})
    async with client.post(CHAT, json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.read()).decode()


async def eventually(what: str, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    await asyncio.to_thread(until, what, condition, timeout_s)


def command_lines(*pids: int) -> list[bytes]:
    """Of these processes: that of a fork is its supervisor's."""
    return [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]


async def serves_again(site: WorkersSite, began: int) -> None:
    """Return once a worker has begun to serve since there were so many events of that."""
    await eventually("it serves again", lambda: len(site.events("worker_serves")) > began)


def logged(site: WorkersSite, key: str, status: int) -> int:
    return sum((each.get("key"), each["status"]) == (key, status) for each in site.events("request"))


def processes_that_answered(site: WorkersSite, since: int) -> set[str]:
    return {each["process"] for each in site.events("request")[since:] if each.get("model") == MODEL}


async def test_clients_are_spread_over_both_and_each_reaches_the_agent(site: WorkersSite) -> None:
    since = len(site.events("request"))
    async with site.client(fresh=True) as client:
        answers = await asyncio.gather(*(ask(client, 5, 200.0) for _ in range(24)))
    assert all(answer.endswith(DONE) for answer in answers)
    await eventually("both have answered", lambda: len(processes_that_answered(site, since)) == 2)
    assert site.engine.stats()["peak_running"] <= SLOTS


async def test_limits_hold_over_both(site: WorkersSite) -> None:
    async with site.client("limited", fresh=True) as client:

        async def status() -> int:
            async with client.post(CHAT, json=chat(max_tokens=1)) as response:
                await response.read()
                return response.status

        found = Counter(await asyncio.gather(*(status() for _ in range(80))))
    assert found == {200: 40, 429: 40}


async def test_requests_at_once_are_counted_over_both(site: WorkersSite) -> None:
    async with site.client("at-once", fresh=True) as client:
        running = [asyncio.ensure_future(held(client, patient=True)) for _ in range(3)]
        await eventually("three run", lambda: site.engine.stats()["running"] == 3)
        for _ in range(8):
            async with client.post(CHAT, json=chat(max_tokens=1)) as response:
                assert response.status == 429
        await site.engine.step(lambda: all(each.done() for each in running))
        assert all(answer.endswith(DONE) for answer in await asyncio.gather(*running))
    await eventually("all are logged", lambda: logged(site, "at-once", 200) == 3)


async def test_metrics_and_admin_pages_tell_of_both_whichever_is_asked(site: WorkersSite) -> None:
    async with site.client("operator", fresh=True) as client:
        for _ in range(6):
            async with client.get("/metrics") as response:
                text = await response.text()
            requests = [
                line
                for line in text.splitlines()
                if line.startswith("trunkline_requests_total{") and 'status="2xx"' in line and MODEL in line
            ]
            assert len(requests) == 2
            ups = [line for line in text.splitlines() if line.startswith("trunkline_gateway_process_up{")]
            assert [line.rpartition(" ")[2] for line in ups] == ["1.0", "1.0"]
            async with client.get("/admin/processes") as response:
                found = (await response.json())["processes"]
            assert [(each["up"], each["agents"], each["state"]) for each in found] == [
                (True, 1, "serving"),
                (True, 1, "serving"),
            ]
            assert {each["pid"] for each in found} == {site.pid(0), site.pid(1)}
            async with client.get("/admin/models") as response:
                (model,) = (await response.json())["models"]
            assert model["slots"] == SLOTS, "what the agent lends to both"


async def test_a_decision_record_is_found_whichever_worker_is_asked(site: WorkersSite) -> None:
    since = len(site.events("request"))
    async with site.client(fresh=True) as client:
        await asyncio.gather(*(ask(client, 2, 200.0) for _ in range(16)))
    await eventually("both have answered", lambda: len(processes_that_answered(site, since)) == 2)
    answered = {each["process"]: each["id"] for each in site.events("request")[since:] if "model" in each}

    def asked() -> set[tuple[str, str]]:
        """The requests that were asked for, and by which worker each was told of."""
        lines = [each for each in site.events("request")[since:] if each["id"].startswith("why-")]
        return {(each["id"].removeprefix("why-"), each["process"]) for each in lines}

    async with site.client("operator", fresh=True) as client:
        async with asyncio.timeout(60):
            while len(asked()) < 4:
                for process, name in answered.items():
                    headers = {"x-request-id": f"why-{name}"}
                    async with client.get(f"/admin/requests/{name}", headers=headers) as response:
                        found = await response.json()
                    assert (response.status, found["id"], found["process"]) == (200, name, process), found
                    assert len(found["decisions"]) == 1
    for name in answered.values():
        told = await asyncio.to_thread(site.command, "why", name)
        assert told.returncode == 0, told.stderr
        assert MODEL in told.stdout


async def test_an_agent_is_drained_at_both_and_stays_so_when_one_starts_anew(site: WorkersSite) -> None:
    async with site.client("operator", fresh=True) as client:
        async with client.post("/admin/agents/agent/drain") as response:
            assert response.status == 200
        began = len(site.events("worker_serves"))
        os.kill(site.pid(0), signal.SIGKILL)
        await serves_again(site, began)

        async def draining() -> list[bool]:
            async with client.get("/admin/models") as response:
                return [each["ready"] for each in (await response.json())["models"]]

        for _ in range(6):
            assert await draining() == [False]
        async with client.delete("/admin/agents/agent/drain") as response:
            assert response.status == 200
    await eventually("it has work again", lambda: both_offer(site))


async def test_connections_do_not_wait_for_the_start_of_one_that_was_killed(site: WorkersSite) -> None:
    """They are answered one after the other by the worker that is left, though the kernel gives half of them
    to the one that is away."""
    for _ in range(3):  # each time it is longer until it is started again
        began = len(site.events("worker_serves"))
        os.kill(site.pid(1), signal.SIGKILL)
        await serves_again(site, began)
    began = len(site.events("worker_serves"))
    waits_s: list[float] = []
    async with site.client(fresh=True) as client:
        os.kill(site.pid(1), signal.SIGKILL)
        while len(site.events("worker_serves")) == began:
            asked_s = time.monotonic()
            async with client.get("/healthz") as response:
                assert response.status == 200
            waits_s.append(time.monotonic() - asked_s)
            await asyncio.sleep(0.01)  # else all cores were busy with this, and not with the start
    sys.stdout.write(f"{len(waits_s)} connections, the longest wait {max(waits_s) * 1000:.0f} ms\n")
    assert len(waits_s) > 8, "each that waited for the start would be one of the last"
    await eventually("the agent is at both again", lambda: both_offer(site))


async def test_a_tunnel_is_led_to_the_worker_that_its_path_names(site: WorkersSite) -> None:
    """Whichever worker the kernel gives it to, unless the gateway has TLS of its own."""
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "sec-websocket-protocol": SUBPROTOCOL,
    }
    found = Counter[int]()
    async with site.client("operator", fresh=True) as client:
        async with client.get("/admin/processes") as response:
            names = [each["process"] for each in (await response.json())["processes"]]
        for name in names * 12:
            async with client.get(f"/tunnel/{name}", headers=headers) as response:
                found[response.status] += 1
    assert found == {101: 24} if site.trust is None else set(found) == {101, 421}


async def running_at_each(
    site: WorkersSite, client: aiohttp.ClientSession, at_least: int
) -> list[asyncio.Task[str]]:
    """Streams that the engine holds until it is stepped: so many or more, some at each worker."""
    running: list[asyncio.Task[str]] = []
    while True:
        running += [asyncio.ensure_future(held(client)) for _ in range(max(1, at_least - len(running)))]
        streams = len(running)
        await eventually("they run", partial(engine_runs, site, streams))
        if len(await processes_with_requests(site)) == 2:
            return running


async def held(client: aiohttp.ClientSession, *, patient: bool = False) -> str:
    """``patient``: come again as long as a place is leased to the worker that does not need it."""
    body = chat(stream=True, max_tokens=20, script={"stepped": True})
    async with client.post(CHAT, json=body) as response:
        if patient and response.status == 429:
            await asyncio.sleep(float(response.headers["retry-after-ms"]) / 1000)
            return await held(client, patient=True)
        assert response.status == 200, await response.text()
        return (await response.read()).decode()


def engine_runs(site: WorkersSite, streams: int) -> bool:
    return bool(site.engine.stats()["running"] == streams)


async def processes_with_requests(site: WorkersSite) -> set[str]:
    async with site.client("operator") as client, client.get("/metrics") as response:
        text = await response.text()
    lines = [line for line in text.splitlines() if line.startswith("trunkline_requests_in_flight{")]
    return {line for line in lines if MODEL in line and float(line.rpartition(" ")[2]) > 0}


async def test_one_that_is_killed_harms_nobody_elses_streams_and_refuses_nobody(site: WorkersSite) -> None:
    killed = site.pid(1)
    since = datetime.now(UTC).isoformat()  # lines of what tests before this one asked may still come
    began = len(site.events("worker_serves"))
    refused: list[Exception] = []
    took_s: list[float] = []

    async def look(client: aiohttp.ClientSession) -> None:
        began_s = time.monotonic()
        try:
            async with client.get("/healthz") as response:
                assert response.status == 200
        except (aiohttp.ClientError, OSError) as error:
            refused.append(error)
        took_s.append(time.monotonic() - began_s)

    async with site.client(fresh=True) as client:
        running = await running_at_each(site, client, 8)
        os.kill(killed, signal.SIGKILL)
        await eventually(
            "its end is noticed", lambda: killed in [each["pid"] for each in site.events("worker_ended")]
        )
        looks = []
        while len(site.events("worker_serves")) == began:
            looks.append(asyncio.ensure_future(look(client)))
            await asyncio.sleep(0.05)
        await asyncio.gather(*looks)
        await site.engine.step(lambda: all(each.done() for each in running))
        answers = await asyncio.gather(*running, return_exceptions=True)
    assert refused == []
    assert took_s
    whole = [each for each in answers if isinstance(each, str) and each.endswith(DONE)]
    cut = [each for each in answers if not isinstance(each, str)]
    assert len(whole) + len(cut) == len(running), answers
    assert whole, answers
    assert cut, answers

    def logged() -> list[dict[str, Any]]:
        return [each for each in site.events("request") if each["path"] == CHAT and each["timestamp"] > since]

    await eventually("they are logged", lambda: len(logged()) == len(whole))
    survivors = logged()
    assert len({each["process"] for each in survivors}) == 1
    assert all(each["status"] == 200 for each in survivors)
    await eventually("the agent is at both again", lambda: both_offer(site))
    assert site.pid(1) != killed
    await eventually("the engine is idle", lambda: site.engine.stats()["running"] == 0)


async def test_all_are_replaced_without_a_lost_stream_or_a_failed_request(site: WorkersSite) -> None:
    replaced = len(site.events("workers_replaced"))
    before = {site.pid(0), site.pid(1)}
    assert len(set(command_lines(site.supervisor.pid, *before))) == 1, "they are forks"
    served, over = Counter[int](), asyncio.Event()

    async def go_on(client: aiohttp.ClientSession) -> None:
        while not over.is_set():
            async with client.post(CHAT, json=chat(max_tokens=1)) as response:
                assert response.status == 200, await response.text()
                await response.read()
            served[response.status] += 1
            await asyncio.sleep(0.1)

    async with site.client(fresh=True) as fresh, site.client() as lasting:
        streams = [asyncio.ensure_future(ask(fresh, 25, 5.0)) for _ in range(6)]
        asking = [asyncio.ensure_future(go_on(client)) for client in (fresh, lasting, lasting)]
        await eventually("they run", lambda: site.engine.stats()["running"] >= 6)
        site.supervisor.signal(signal.SIGUSR2)
        await eventually("all are replaced", lambda: len(site.events("workers_replaced")) > replaced, 60.0)
        over.set()
        await asyncio.gather(*asking)
        assert all(answer.endswith(DONE) for answer in await asyncio.gather(*streams))
    assert served[200] > 10
    after = {site.pid(0), site.pid(1)}
    assert not before & after
    assert site.events("workers_not_replaced") == []
    lines = command_lines(*after)
    assert all(b"\0gateway.cli.worker\0" in line for line in lines), "these may be of a later version"


async def test_settings_are_read_again_by_both(site: WorkersSite) -> None:
    before = len(site.events("settings_reloaded"))
    site.supervisor.signal(signal.SIGHUP)
    await eventually("both have", lambda: len(site.events("settings_reloaded")) == before + 2)
    assert len({each["process"] for each in site.events("settings_reloaded")[-2:]}) == 2


def test_the_audit_log_of_both_is_one_and_sound(site: WorkersSite) -> None:
    from gateway.observability.audit import audit_files, trusted_keys, verify

    with Store.open(site.state) as store:
        report = verify(audit_files(store).directory, trusted_keys(store))
    assert report.findings == []
    assert report.lines > 20


async def test_stopping_lets_streams_finish(site: WorkersSite) -> None:
    async with site.client(fresh=True) as client:
        running = [asyncio.ensure_future(held(client)) for _ in range(6)]
        await eventually("they run", lambda: site.engine.stats()["running"] == 6)
        for pid in (site.pid(0), site.pid(1), site.supervisor.pid):  # as service managers do it
            os.kill(pid, signal.SIGTERM)
        await site.engine.step(lambda: all(each.done() for each in running))
        assert all(answer.endswith(DONE) for answer in await asyncio.gather(*running))
    assert await asyncio.to_thread(site.supervisor.ended, 60.0) == 0
