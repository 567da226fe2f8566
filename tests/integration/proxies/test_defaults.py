"""What breaks without a directive of the files: so the directives are needed, and the checks notice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake

from shared.process.ports import free_port
from shared.tunnel import PATH, SUBPROTOCOL
from tests.integration.asking import CHAT, chat
from tests.integration.proxies.places import (
    FULL,
    MIB,
    THINKS_S,
    Gateways,
    Place,
    place,
    proxy_answers,
    stored_bytes,
    until_true,
)
from tests.integration.proxies.test_checks import form_of, text_of
from tests.support.front_proxies import (
    CADDY,
    ENVOY,
    HAPROXY,
    NGINX,
    TRAEFIK,
    ProxyKind,
    ProxyNotInstalled,
    front_proxy,
)
from tests.support.processes import answer_to, until

pytestmark = [
    pytest.mark.proxy,
    pytest.mark.skipif(not FULL, reason="takes minutes: tests/run proxies"),
]


async def _upload_passes_on(at: Place) -> bool:
    """The first half of a file is stored before the second half is sent."""
    gateway, passed = at.behind.gateway, False
    before = await asyncio.to_thread(stored_bytes, gateway)

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal passed
        for number in range(16):
            if number == 8:
                try:
                    await until_true("stored", lambda: stored_bytes(gateway) > before + 2 * MIB, 5.0)
                    passed = True
                except AssertionError:
                    pass
            yield bytes(MIB)

    async with at.client() as client, client.post("/v1/files", data=form_of(pieces())) as response:
        await response.read()
    return passed


async def _slow_upload_arrives(at: Place) -> bool:
    """A file that takes six seconds."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(24):
            await asyncio.sleep(0.25)
            yield bytes(64 * 1024)

    try:
        async with at.client() as client, client.post("/v1/files", data=form_of(pieces())) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def _long_upload_arrives(at: Place) -> bool:
    """A file of 4 MiB."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield bytes(MIB)

    try:
        async with at.client() as client, client.post("/v1/files", data=form_of(pieces())) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def _long_stream_is_whole(at: Place) -> bool:
    """A stream of eighteen seconds."""
    body = chat(stream=True, max_tokens=90, script={"tokens_per_s": 5, "delay_s": THINKS_S})
    try:
        async with at.client() as client, client.post(CHAT, json=body) as response:
            return text_of(await response.read()) == answer_to("hi", 90)
    except aiohttp.ClientError:
        return False


async def _answer_after_silence_comes(at: Place) -> bool:
    """An answer in one piece after four seconds."""
    try:
        async with at.client() as client, client.get("/admin/diagnosis/silence?s=4") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def _leaving_is_noticed(at: Place) -> bool:
    """The engine stops when the client of a silent stream goes."""
    engine = at.behind.engine
    async with at.client(leaves_at_once=True) as client:
        body = chat(stream=True, script={"stepped": True, "delay_s": THINKS_S})
        (await client.post(CHAT, json=body)).close()
    try:
        await until_true("the engine stops", lambda: engine.stats()["running"] == 0, 8.0)
        return True
    except AssertionError:
        await engine.step(lambda: engine.stats()["running"] == 0)
        return False


async def _one_more_is_answered(at: Place) -> bool:
    """While 16 streams run, or as many of them as reach the gateway."""
    engine = at.behind.engine
    async with at.client(leaves_at_once=True) as client:
        body = chat(stream=True, script={"stepped": True, "delay_s": THINKS_S})
        asking = [asyncio.ensure_future(client.post(CHAT, json=body)) for _ in range(16)]
        await until_true("they run", lambda: engine.stats()["running"] >= 8)
        try:
            async with asyncio.timeout(8), client.get("/v1/models") as response:
                return response.status == 200
        except TimeoutError:
            return False
        finally:
            for each in asking:
                each.cancel()
            for answer in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(answer, aiohttp.ClientResponse):
                    answer.close()
            await until_true("the engine is idle", lambda: engine.stats()["running"] == 0)


async def _websocket_opens(at: Place) -> bool:
    options = {"ssl": at.trust(), "proxy": None, "subprotocols": [SUBPROTOCOL]}
    try:
        async with connect(at.url.replace("http", "ws", 1) + PATH, **options) as socket:  # type: ignore[arg-type]
            return bool(await socket.recv())
    except (InvalidHandshake, OSError):
        return False


@dataclass(frozen=True, slots=True)
class Missing:
    """A directive, what is in its place, and what does not work then."""

    kind: ProxyKind
    directive: str
    instead: str
    works: Callable[[Place], Awaitable[bool]]


MISSING = (
    Missing(NGINX, "proxy_request_buffering off;", "", _upload_passes_on),
    Missing(NGINX, "client_max_body_size 520m;", "", _long_upload_arrives),
    Missing(NGINX, "proxy_set_header Upgrade $http_upgrade;", "", _websocket_opens),
    Missing(NGINX, "proxy_read_timeout 3700s;", "proxy_read_timeout 2s;", _answer_after_silence_comes),
    Missing(HAPROXY, "timeout server 3700s", "timeout server 2s", _answer_after_silence_comes),
    Missing(HAPROXY, "option abortonclose", "", _leaving_is_noticed),
    Missing(ENVOY, "max_connections: 65536", "max_connections: 8", _one_more_is_answered),
    Missing(ENVOY, "timeout: 0s\n                            idle", "idle", _long_stream_is_whole),
    Missing(ENVOY, "upgrade_configs: [{upgrade_type: websocket}]", "", _websocket_opens),
    Missing(ENVOY, "idle_timeout: 3700s", "idle_timeout: 2s", _answer_after_silence_comes),
    Missing(TRAEFIK, "readTimeout: 0s", "readTimeout: 3s", _slow_upload_arrives),
    Missing(TRAEFIK, "responseHeaderTimeout: 0s", "responseHeaderTimeout: 2s", _answer_after_silence_comes),
    Missing(CADDY, "response_header_timeout 0", "response_header_timeout 2s", _answer_after_silence_comes),
)
"""Times of the proxies' defaults are shortened, but for Envoy's 15 s."""


@pytest.mark.parametrize(
    "missing", MISSING, ids=lambda each: f"{each.kind.name}: {each.directive.split()[0]}"
)
async def test_without_a_directive_something_breaks(
    behind: Gateways, missing: Missing, tmp_path: Path
) -> None:
    try:
        whole = place(behind, missing.kind, tmp_path / f"whole-{missing.kind.name.lower()}")
        with whole as good:
            assert await missing.works(good), "nor does it work with the directive"
            changed = {missing.directive: missing.instead}
            ports = (behind.gateway.port, free_port())
            with front_proxy(missing.kind, tmp_path / "changed", ports, changed) as proxy:
                until("the proxy passes requests on", lambda: proxy_answers(proxy), 60.0)
                assert not await missing.works(Place(behind, proxy))
    except ProxyNotInstalled as reason:
        pytest.skip(str(reason))
