"""Whoever writes a gateway's URL wrongly reads what is wrong and what to write instead."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection

from shared.link.dialer import DialSettings, dial_with
from shared.protocol.errors import DialFailed, DialMisdirected
from shared.tunnel import dial
from shared.tunnel.dial_errors import explain_dial_error
from tests.support.identities import joining_agent
from tests.support.tls import make_certificate
from tests.support.tunnels import Recorder


@asynccontextmanager
async def answering(answer: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers whatever comes with ``answer``; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


def http(status: str, body: bytes = b"", fields: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{fields}connection: close\r\n\r\n"
    return head.encode() + body


async def words(url: str, proxy: str | None = None, tls: ssl.SSLContext | None = None) -> str:
    clock = asyncio.get_running_loop().time
    with pytest.raises(DialFailed) as failed:
        await dial(url, handshake=joining_agent(), listener=Recorder(), clock=clock, proxy=proxy, ssl=tls)
    return str(failed.value)


async def test_tls_at_a_plain_port_says_what_to_write() -> None:
    async with answering(http("400 Bad Request")) as port:
        said = await words(f"wss://127.0.0.1:{port}/tunnel")
    assert "speaks no TLS" in said
    assert f"write http://127.0.0.1:{port} if the gateway is on this host" in said


async def test_no_tls_at_a_tls_port_says_what_to_write(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*make_certificate(tmp_path))
    async with answering(b"", context) as port:
        said = await words(f"ws://127.0.0.1:{port}/tunnel")
    assert f"if the port speaks TLS, write https://127.0.0.1:{port}" in said


async def test_an_untrusted_certificate_names_the_option(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with answering(http("404 Not Found"), context) as port:
        untrusted = await words(f"wss://127.0.0.1:{port}/tunnel")
    assert "not trusted here (self-signed certificate)" in untrusted
    assert "--ca-file" in untrusted


async def test_who_has_no_such_option_names_its_own(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with answering(http("404 Not Found"), context) as port:
        settings = DialSettings(url=f"wss://127.0.0.1:{port}/tunnel", trust_option="uplink.ca_file")
        dial_gateway = dial_with(settings, asyncio.get_running_loop().time)
        with pytest.raises(DialFailed, match=r"is self-signed, with uplink\.ca_file$"):
            await dial_gateway(joining_agent(), Recorder(), None)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Hostname mismatch, certificate is not valid for 'a.example'.", "for another name than a.example"),
        ("certificate has expired", "out of date by this host's clock (certificate has expired)"),
        ("unable to get local issuer certificate", "not trusted here"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said(message: str, expected: str) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = message
    assert expected in explain_dial_error("wss://a.example/tunnel", error)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (http("404 Not Found", b"nginx"), "/tunnel is not found (404); write the URL without any path"),
        (
            http("200 OK", b"<html>", "content-type: text/html\r\n"),
            "answers 200 in place of opening a WebSocket",
        ),
        (http("426 Upgrade Required"), "a proxy in front does not pass upgrades on /tunnel"),
        (http("502 Bad Gateway"), "a proxy in front cannot reach it"),
        (http("503 Unavailable", b"this gateway is shutting down\n"), "(this gateway is shutting down)"),
        (http("503 Unavailable", b"\x1b[31mred"), "cannot reach it"),
        (http("403 Forbidden"), "lets nobody through to /tunnel (it answers 403)"),
        (http("308 Moved", fields="location: https://other.example/tunnel\r\n"), "sends on to https://other"),
        (http("101 Switching", fields="upgrade: websocket\r\n"), "spoils WebSockets"),
        (b"SSH-2.0-OpenSSH\r\n", "no plain HTTP"),
    ],
)
async def test_what_answers_and_is_no_gateway_is_said_plainly(answer: bytes, expected: str) -> None:
    async with answering(answer) as port:
        said = await words(f"ws://127.0.0.1:{port}/tunnel")
    assert expected in said
    assert said.startswith(f"http://127.0.0.1:{port}")
    assert said.isprintable()


async def test_a_connection_that_is_closed_at_once_is_a_failure_to_dial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a gateway that stops with the connection among those that it has not accepted."""
    made = ClientConnection.connection_made

    def closed(connection: ClientConnection, transport: asyncio.BaseTransport) -> None:
        made(connection, transport)
        connection.transport.close()

    monkeypatch.setattr(ClientConnection, "connection_made", closed)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # and accepts nobody
        said = await words(f"ws://127.0.0.1:{listening.getsockname()[1]}/tunnel")
    assert "closed before anything could be asked" in said


async def test_a_name_that_does_not_resolve_and_a_port_where_nobody_listens() -> None:
    assert "cannot be resolved" in await words("wss://no-such-host.invalid/tunnel")
    assert "nobody listens there (127.0.0.1 refuses the connection)" in await words("ws://127.0.0.1:9/tunnel")


async def test_a_proxy_is_named_where_it_is_the_reason_and_its_password_is_not() -> None:
    async with answering(http("407 Proxy Authentication Required")) as port:
        wants = await words("wss://x.example/tunnel", f"http://me:secret@127.0.0.1:{port}")
    async with answering(http("403 Forbidden")) as port:
        forbids = await words("wss://x.example/tunnel", f"http://me:secret@127.0.0.1:{port}")
    async with answering(b"rubbish\r\n\r\n") as port:
        rubbish = await words("wss://x.example/tunnel", f"http://me:secret@127.0.0.1:{port}")
    away = await words("wss://x.example/tunnel", "http://me:secret@127.0.0.1:9")
    assert "the proxy 127.0.0.1 wants a user and a password (407)" in wants
    assert "the proxy 127.0.0.1 does not connect to it: it answers 403" in forbids
    assert "does not answer as one" in rubbish
    assert "the proxy 127.0.0.1 refuses the connection" in away
    assert not any("secret" in said for said in (wants, forbids, rubbish, away))


async def test_that_another_process_answered_is_an_error_of_its_own() -> None:
    async with answering(http("421 DialMisdirected Request")) as port:
        with pytest.raises(DialMisdirected, match="answers 421: what is there serves another name"):
            await dial(
                f"ws://127.0.0.1:{port}/tunnel/b",
                handshake=joining_agent(),
                listener=Recorder(),
                clock=asyncio.get_running_loop().time,
            )
