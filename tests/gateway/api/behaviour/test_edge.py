"""Web pages, proxies and floods, on the real server with fakes behind it."""

import asyncio
import contextlib
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.request_log import facts
from gateway.api.openapi import document
from gateway.api.server.client_addresses import PerAddressLimiter, TrustedProxies
from gateway.api.server.cors import Cors
from gateway.api.server.protocol import PIPELINED
from gateway.domain.surface import ENDPOINTS, FIXED
from tests.gateway.api.server.test_server import ASK, wire
from tests.gateway.api.support import BEARER, JSON_TYPE, FakeResponse, Surface, json_response, served
from tests.support.attacks import rows

PAGE, EVIL = (b"origin", b"https://app.test"), (b"origin", b"https://evil.test")
ASKED = (b"access-control-request-method", b"POST")
CHAT = "/v1/chat/completions"
CLIENT = "192.0.2.1"
OK = (200, None)


@pytest.fixture
def pages() -> Surface:
    return Surface(HttpSettings(cors=Cors(["https://app.test"])))


def behind(**settings: object) -> Surface:
    """A surface that trusts the proxy on loopback."""
    return Surface(HttpSettings(proxies=TrustedProxies(["127.0.0.0/8"]), **settings))  # type: ignore[arg-type]


# --- Web pages ---


async def test_without_a_setting_no_page_may_read_anything() -> None:
    surface = Surface()
    surface.dispatcher.answer(json_response()).headers = (
        ("access-control-allow-origin", "*"),
        ("access-control-allow-credentials", "true"),
        ("set-cookie", "a=b"),
    )
    call = await surface.post(CHAT, ASK, JSON_TYPE, EVIL)
    assert call.status == 200
    assert not [name for name in call.headers if name.startswith("access-control-") or name == "set-cookie"]
    assert (await surface.get(CHAT, EVIL, ASKED, method="OPTIONS")).status == 405


async def test_a_page_that_may_is_told_so_with_every_answer(pages: Surface) -> None:
    for call in (
        await pages.post(CHAT, ASK, JSON_TYPE, PAGE),
        await pages.post(CHAT, ASK, JSON_TYPE, PAGE, key=False),
    ):
        assert call.headers["access-control-allow-origin"] == "https://app.test"
        assert "x-request-id" in call.headers["access-control-expose-headers"]
        assert call.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in call.headers


async def test_a_preflight_is_answered_without_a_key(pages: Surface) -> None:
    wanted = (b"access-control-request-headers", b"authorization, x-stainless-os")
    call = await pages.get(CHAT, PAGE, ASKED, wanted, method="OPTIONS", key=False)
    assert (call.status, call.content) == (204, b"")
    assert call.headers["access-control-allow-origin"] == "https://app.test"
    assert call.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert "POST" in call.headers["access-control-allow-methods"]


@pytest.mark.parametrize(
    "origin", [b"https://evil.test", b"null", b"*", b"https://app.test.evil.test", b"http://app.test", b""]
)
async def test_no_other_page_may(pages: Surface, origin: bytes) -> None:
    call = await pages.get(CHAT, (b"origin", origin), ASKED, method="OPTIONS")
    assert call.status == 405
    assert "access-control-allow-origin" not in call.headers
    assert call.headers["vary"] == "origin"


async def test_a_preflight_asks_for_fields_by_name_only(pages: Surface) -> None:
    odd = (b"access-control-request-headers", b"*, x y")
    call = await pages.get(CHAT, PAGE, ASKED, odd, method="OPTIONS")
    assert "access-control-allow-headers" not in call.headers


# --- Proxies ---


async def _ask(address: str, *lines: str, path: str = "/v1/models") -> tuple[int, str | None]:
    """Status and error code of an answer."""
    fields = ("host: x", "authorization: Bearer sk-tl-test", "connection: close", *lines)
    async with wire(address) as client:
        client.send("\r\n".join((f"GET {path} HTTP/1.1", *fields, "", "")).encode())
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), orjson.loads(body).get("error", {}).get("code")


async def test_a_trusted_proxy_says_who_the_client_is() -> None:
    surface = behind()
    async with served(surface) as address:
        assert await _ask(address, f"x-forwarded-for: 6.6.6.6, {CLIENT}") == OK
    exchange, status, failure = surface.finished[0]
    assert facts(exchange, status, failure, 0.0, None, 0).client == CLIENT


async def test_nobody_else_does() -> None:
    surface = Surface()
    async with served(surface) as address:
        assert await _ask(address, f"x-forwarded-for: {CLIENT}", f"forwarded: for={CLIENT}") == OK
    assert surface.finished[0][0].address == "127.0.0.1"


async def test_what_came_to_the_terminator_in_the_clear_is_refused() -> None:
    surface = behind(refuse_plain=True)
    async with served(surface) as address:
        refused = await _ask(address, f"x-forwarded-for: {CLIENT}", "x-forwarded-proto: http")
        assert refused == (403, "https_required")
        assert await _ask(address, "x-forwarded-proto: https") == OK
        assert await _ask(address) == OK
        assert await _ask(address, "x-forwarded-proto: http", path="/healthz") == OK


async def test_one_client_behind_a_proxy_takes_no_more_than_its_places() -> None:
    surface = behind(requests_per_ip=1)
    held = surface.dispatcher.hold()
    async with served(surface) as address, wire(address) as first, wire(address) as second:
        first.post(ASK, b"x-forwarded-for: 192.0.2.1")
        await surface.dispatcher.arrived.wait()
        refused = await _ask(address, "x-forwarded-for: 192.0.2.1")
        assert refused == (503, "too_many_connections")
        assert await _ask(address, "x-forwarded-for: 192.0.2.2") == OK
        held.set_result(json_response())
        await first.until(b'{"ok":true}')
        surface.dispatcher.answer(json_response())
        second.post(ASK, b"x-forwarded-for: 192.0.2.1")
        await second.until(b'{"ok":true}')


# --- Floods ---


async def test_one_address_takes_no_more_connections_than_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    places = PerAddressLimiter(2)
    monkeypatch.setattr(places, "group", lambda address: "192.0.2.1")
    surface = Surface()
    async with served(surface, places=places) as address:
        async with wire(address) as first, wire(address) as second:
            for client in (first, second):
                client.post(ASK)
                await client.until(b'{"ok":true}')
            async with wire(address) as third:
                refused = await third.rest()
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"too_many_connections" in refused
        async with asyncio.timeout(60):
            while places._taken:  # noqa: ASYNC110 (the server learns of it in its own time)
                await asyncio.sleep(0.001)
        async with wire(address) as again:
            again.post(ASK)
            await again.until(b'{"ok":true}')


async def test_trailers_are_no_header_fields() -> None:
    surface = Surface()
    async with served(surface) as address, wire(address) as client:
        head = b"POST /v1/models HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        client.send(head + b"0\r\nauthorization: Bearer sk-tl-test\r\nx-forwarded-for: 1.2.3.4\r\n\r\n")
        await client.until(b"}}")
    assert b"authorization" not in surface.finished[0][0].fields
    assert b"x-forwarded-for" not in surface.finished[0][0].fields


async def test_an_engines_header_that_is_none_breaks_its_answer_and_injects_nothing() -> None:
    surface = Surface()
    surface.dispatcher.answer(json_response()).headers = (("x-a", "b\r\nset-cookie: c=d"),)
    async with served(surface) as address, wire(address) as client:
        with capture_logs():
            client.post(ASK)
            assert b"set-cookie" not in await client.rest()


@pytest.mark.parametrize("status", [204, 304])
async def test_an_engine_cannot_answer_the_next_request_too(status: int) -> None:
    forged = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
    surface = Surface()
    surface.dispatcher.answer(FakeResponse(status, (("content-length", str(len(forged))),), (forged,)))
    async with served(surface) as address, wire(address) as client:
        client.post(ASK)
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 %d " % status)
        surface.dispatcher.answer(json_response())
        client.post(ASK)
        assert b"forged" not in await client.until(b'{"ok":true}')


# --- The document ---


async def test_the_document_names_every_path_and_no_model() -> None:
    call = await Surface().get("/openapi.json", key=False)
    assert call.status == 200
    found = orjson.loads(call.content)
    assert found == document()
    paths = found["paths"]
    assert set(FIXED) <= set(paths)
    for endpoint in ENDPOINTS:
        assert any(path.startswith(endpoint.path) for path in paths), endpoint.path
    ids = [each["operationId"] for item in paths.values() for each in item.values() if isinstance(each, dict)]
    assert len(ids) == len(set(ids))
    assert BEARER[1].decode() not in call.content.decode()


async def test_garbage_behind_a_head_that_waits_for_continue_is_refused_once() -> None:
    surface = Surface()
    async with served(surface) as address, wire(address) as client:
        with capture_logs() as lines:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-tl-test\r\n"
            client.send(head + b"transfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\nZZ\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
            await surface.lifecycle.wait_idle()
    assert not lines


def test_the_table_of_attacks_in_the_docs_is_the_one_that_is_tried() -> None:
    page = (Path(__file__).parents[4] / "docs" / "security.md").read_text()
    missing = [row for row in rows() if row not in page]
    assert not missing


async def test_a_pipeline_of_thousands_is_cut_and_one_of_some_is_answered() -> None:
    surface = Surface()
    request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    async with served(surface) as address:
        async with wire(address) as client:
            client.send(request * PIPELINED)
            for _ in range(PIPELINED):
                await client.until(b'{"status":"ok"}')
        async with wire(address) as flood:
            flood.send(request * 3000)
            with contextlib.suppress(ConnectionResetError):
                assert (await flood.rest()).count(b"HTTP/1.1 200 ") <= PIPELINED
        async with asyncio.timeout(60):
            await surface.lifecycle.wait_idle()
    assert len(surface.finished) <= 2 * PIPELINED + 1
