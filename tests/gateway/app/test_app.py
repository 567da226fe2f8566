"""A whole gateway in this process: real server, real store, no agent."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import job_runner
from gateway.app.app import Gateway
from gateway.runtime.config import ConfigError, load
from gateway.runtime.stop_signals import StopSignals
from gateway.storage import Store
from shared.process.ports import free_port
from tests.support.tls import make_certificate


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


@dataclass
class Running:
    gateway: Gateway
    stop: StopSignals
    task: "asyncio.Task[None]"
    client: httpx.AsyncClient

    async def ended(self) -> None:
        async with asyncio.timeout(60):
            await self.task


@asynccontextmanager
async def running(
    store: Store, verify: ssl.SSLContext | bool = False, **flags: Any
) -> AsyncIterator[Running]:
    settings = load({"listen": "127.0.0.1:0", **flags}, None, {}).settings
    gateway, stop = Gateway(settings, store), StopSignals()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def announce(where: str) -> None:
        url.set_result(where)

    task = asyncio.create_task(gateway.run(stop, announce))
    async with httpx.AsyncClient(base_url=await url, verify=verify) as client:
        try:
            yield Running(gateway, stop, task, client)
        finally:
            stop.receive()
            stop.receive()
            await task


async def test_a_gateway_serves_from_its_store(no_leaks: None, store: Store) -> None:
    key = store.keys.create("k", "default", 0.0)
    async with running(store) as house:
        assert (await house.client.get("/readyz")).json() == {"status": "ready", "agents": 0}
        assert (await house.client.get("/v1/models")).status_code == 401
        authorization = {"authorization": f"Bearer {key}"}
        assert (await house.client.get("/v1/models", headers=authorization)).json()["data"] == []
        asked = await house.client.post("/v1/embeddings", headers=authorization, json={"model": "m"})
        assert (asked.status_code, asked.json()["error"]["code"]) == (404, "model_not_found")
        metrics = (await house.client.get("/metrics", headers=authorization)).text
        assert (
            'trunkline_requests_total{model="other",route="embeddings",status="4xx",tier="standard"} 1.0'
            in metrics
        )


async def test_one_that_leaves_answers_once_more_on_each_connection_and_takes_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.app.draining.LEAVE_S", 60.0)
    async with running(store) as house:
        assert "connection" not in (await house.client.get("/healthz")).headers
        house.stop.leave()
        while not house.gateway._server._left:  # noqa: ASYNC110 (nobody tells us)
            await asyncio.sleep(0)
        last = await house.client.get("/readyz")
        assert (last.status_code, last.headers["connection"]) == (200, "close")
        with pytest.raises(httpx.ReadTimeout):
            await house.client.get("/healthz", timeout=httpx.Timeout(60, read=0.2))
        house.stop.end_at_once()
        await house.ended()


async def test_a_model_served_before_a_restart_is_waited_for(store: Store) -> None:
    store.models.note({"m": 7.0}, ["m"], 9.0, 10)
    key = store.keys.create("k", "default", 0.0)
    async with running(store, dispatch={"reconnect_grace_s": 0.01}) as house:
        authorization = {"authorization": f"Bearer {key}"}
        asked = await house.client.post("/v1/embeddings", headers=authorization, json={"model": "m"})
        assert asked.status_code == 503
        known = (await house.client.get("/v1/models/m", headers=authorization)).json()
        assert (known["created"], known["ready"]) == (7, False)


async def test_tls_is_ended_here_when_there_are_files_for_it(store: Store, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(certificate))
    async with running(store, verify=trust, tls={"cert": certificate, "key": key}) as house:
        assert house.client.base_url.scheme == "https"
        assert (await house.client.get("/healthz")).status_code == 200
        huge = await house.client.get("/healthz", headers={"x": "a" * 100_000})
        assert huge.status_code == 431


async def test_certificates_of_clients_and_a_plain_port_that_sends_on(store: Store, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(certificate))
    plain = free_port()
    tls = {
        "cert": certificate,
        "key": key,
        "client_ca": certificate,
        "client_required": True,
        "redirect_listen": f"127.0.0.1:{plain}",
        "reload_s": 0.05,
    }
    async with running(store, verify=_with(certificate, key), tls=tls) as house:
        assert (await house.client.get("/healthz")).status_code == 200
        url = str(house.client.base_url)
        async with httpx.AsyncClient(verify=trust) as bare:
            refused = await bare.get(f"{url}/healthz")
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                403,
                "client_certificate_required",
            )
            sent_on = await bare.get(f"http://127.0.0.1:{plain}/v1/models?x=1")
            assert (sent_on.status_code, sent_on.headers["location"]) == (308, f"{url}/v1/models?x=1")
        other, other_key = make_certificate(_directory(tmp_path / "other"))
        os.replace(other, certificate)
        os.replace(other_key, key)
        house.gateway.reload_tls()
        async with httpx.AsyncClient(verify=_with(certificate, key)) as again:
            assert (await again.get(f"{url}/healthz")).status_code == 200


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


def _with(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificate))
    context.load_cert_chain(certificate, key)
    return context


async def test_an_idle_gateway_stops_at_once(store: Store) -> None:
    async with running(store, drain_s=3600) as house:
        house.stop.receive()
        await house.ended()


async def slow_body(begun: asyncio.Event, release: asyncio.Event) -> AsyncIterator[bytes]:
    yield b'{"model":'
    begun.set()
    await release.wait()
    yield b'"m"}'


async def begin(house: Running, key: str) -> tuple["asyncio.Task[httpx.Response]", asyncio.Event]:
    """A request that the gateway has begun to read and cannot finish before the event is set."""
    begun, release = asyncio.Event(), asyncio.Event()
    request = house.client.post(
        "/v1/embeddings", headers={"authorization": f"Bearer {key}"}, content=slow_body(begun, release)
    )
    task = asyncio.create_task(request)
    await begun.wait()
    async with asyncio.timeout(60):
        while not house.gateway.lifecycle.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return task, release


async def test_a_stopping_gateway_finishes_what_it_began_and_takes_nothing_new(store: Store) -> None:
    key = store.keys.create("k", "default", 0.0)
    async with running(store) as house:
        asked, release = await begin(house, key)
        house.stop.receive()
        async with asyncio.timeout(60):
            while (refused := await house.client.get("/readyz")).status_code == 200:
                pass
        assert (refused.status_code, refused.json()["status"]) == (503, "draining")
        new = await house.client.post("/v1/embeddings", headers={"authorization": f"Bearer {key}"}, json={})
        assert (new.status_code, new.headers["connection"]) == (503, "close")
        release.set()
        assert (await asked).status_code in (404, 503)
        await house.ended()


async def cut_short(house: Running, key: str, hurry: Callable[[], None]) -> None:
    asked, release = await begin(house, key)
    house.stop.receive()
    hurry()
    await house.ended()
    release.set()
    with pytest.raises(httpx.TransportError):
        await asked


async def test_the_drain_ends_at_its_deadline(store: Store) -> None:
    key = store.keys.create("k", "default", 0.0)
    async with running(store, drain_s=0.01) as house:
        await cut_short(house, key, lambda: None)


async def test_a_second_signal_ends_the_drain(store: Store) -> None:
    key = store.keys.create("k", "default", 0.0)
    async with running(store, drain_s=3600) as house:
        await cut_short(house, key, house.stop.receive)


async def test_a_second_signal_ends_the_wait_for_jobs_that_are_given_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the store does not answer."""
    monkeypatch.setattr(job_runner, "STOP_S", 3600.0)
    async with running(store) as here:
        jobs = here.gateway._jobs.running
        assert jobs is not None
        monkeypatch.setattr(jobs.runner, "stop", lambda: None)
        here.stop.receive()
        here.stop.receive()
        await here.ended()


async def test_signals_are_received_while_they_are_installed() -> None:
    stop = StopSignals()
    with stop.installed():
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60):
            await stop.requested.wait()
        assert not stop.forced.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(60):
            await stop.forced.wait()


async def test_a_policy_there_is_none_of_is_a_setting_that_is_wrong(store: Store) -> None:
    settings = load({"dispatch": {"policy": "astrology"}}, None, {}).settings
    with pytest.raises(ConfigError, match="astrology"):
        Gateway(settings, store)
