"""TLS on real connections: versions, certificates that change, certificates of clients, the plain port."""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, GatewayServer, bind, build_server
from gateway.api.server.tls import Redirect, Tls, TlsFiles, answer_to, build_context, certificate_end_s
from tests.gateway.api.support import Surface
from tests.support.tls import make_certificate

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
TUNNEL = b"GET /tunnel HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Two certificates and their keys."""
    return [make_certificate(tmp_path_factory.mktemp("pair")) for _ in range(2)]


@asynccontextmanager
async def secured(
    files: TlsFiles, *, wants_certificate: bool = False
) -> AsyncIterator[tuple[GatewayServer, int]]:
    address = Address("127.0.0.1", 0, files)
    server = build_server(
        Surface().app,
        address,
        ConnectionLimits(),
        lambda **options: None,
        wants_certificate=wants_certificate,
    )
    listener = bind(address)
    serving = asyncio.get_running_loop().create_task(server.serve([listener]))
    await server.ready.wait()
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        server.abort_connections()
        await serving


def trusting(cert: Path, shown: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=cert)
    if shown is not None:
        context.load_cert_chain(*shown)
    return context


async def ask(port: int, context: ssl.SSLContext, request: bytes = HEALTH, name: str = "localhost") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    try:
        writer.write(request)
        async with asyncio.timeout(60):
            return await reader.read(-1)
    finally:
        writer.close()


async def nothing_from(port: int, context: ssl.SSLContext) -> bool:
    """Whether the server ended it in the handshake, which a client of TLS 1.3 may notice after its own."""
    try:
        return await ask(port, context) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def replace(files: TlsFiles, cert: bytes, key: bytes) -> None:
    for path, content in ((files.cert, cert), (files.key, key)):
        new = path.with_suffix(".new")
        new.write_bytes(content)
        os.replace(new, path)


async def test_http_1_1_over_tls_1_3_without_compression(pairs: list[tuple[Path, Path]]) -> None:
    async with secured(TlsFiles(*pairs[0])) as (_, port):
        context = trusting(pairs[0][0])
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        connection = writer.get_extra_info("ssl_object")
        assert connection.version() == "TLSv1.3"
        assert connection.selected_alpn_protocol() == "http/1.1"
        assert connection.compression() is None
        writer.close()


_HELLOS = [
    (ssl.TLSVersion.TLSv1_2, "ECDHE+AESGCM", True),
    (ssl.TLSVersion.TLSv1_2, "AES256-GCM-SHA384", False),
    (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES256-SHA", False),
    (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0", False),
]


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated:DeprecationWarning")
async def test_old_versions_and_ciphers_are_refused(pairs: list[tuple[Path, Path]]) -> None:
    async with secured(TlsFiles(*pairs[0])) as (_, port):
        for version, ciphers, taken in _HELLOS:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(pairs[0][0])
            context.set_ciphers(ciphers)
            context.minimum_version = min(version, context.minimum_version)
            context.maximum_version = version
            assert await nothing_from(port, context) is not taken, (version, ciphers)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
async def test_a_changed_certificate_is_taken_up_and_a_broken_one_refused(
    pairs: list[tuple[Path, Path]], tmp_path: Path, name: str
) -> None:
    (old_cert, old_key), (new_cert, new_key) = pairs
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    replace(files, old_cert.read_bytes(), old_key.read_bytes())
    async with secured(files) as (server, port):
        assert server.tls is not None
        assert not server.tls.reload()
        with capture_logs() as lines:
            replace(files, new_cert.read_bytes(), old_key.read_bytes())
            assert not server.tls.reload()
            assert not server.tls.reload()
        assert [line["event"] for line in lines] == ["tls_files_refused"]
        assert b" 200 " in await ask(port, trusting(old_cert), name=name)
        replace(files, new_cert.read_bytes(), new_key.read_bytes())
        assert server.tls.reload()
        assert b" 200 " in await ask(port, trusting(new_cert), name=name)
        with pytest.raises(ssl.SSLError):
            await ask(port, trusting(old_cert), name=name)
        files.key.unlink()
        assert not server.tls.reload()
        assert b" 200 " in await ask(port, trusting(new_cert), name=name)


def test_a_look_that_takes_long_does_not_bring_an_older_certificate_back(
    pairs: list[tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    replace(files, *(path.read_bytes() for path in pairs[0]))
    tls, built = Tls(files), list[ssl.SSLContext]()
    begun, go_on = threading.Event(), threading.Event()

    def slowly(files: TlsFiles) -> ssl.SSLContext:
        context = build_context(files)
        built.append(context)
        if len(built) == 1:
            begun.set()
            go_on.wait(60)
        return context

    monkeypatch.setattr("gateway.api.server.tls.build_context", slowly)
    with ThreadPoolExecutor(2) as threads:
        replace(files, *(path.read_bytes() for path in pairs[1]))
        reloads = [threads.submit(tls.reload)]
        begun.wait(60)
        replace(files, *(path.read_bytes() for path in pairs[0]))
        reloads.append(threads.submit(tls.reload))
        wait(reloads[1:], 0.05)
        go_on.set()
        assert all(look.result() for look in reloads)
    assert tls._newest is built[1]


async def test_clients_show_certificates_where_wanted_and_agents_need_none(
    pairs: list[tuple[Path, Path]],
) -> None:
    ours, strange = pairs
    async with secured(TlsFiles(*ours, client_ca=ours[0]), wants_certificate=True) as (_, port):
        assert b" 200 " in await ask(port, trusting(ours[0], shown=ours))
        refused = await ask(port, trusting(ours[0]))
        assert b" 403 " in refused
        assert b'"client_certificate_required"' in refused
        assert b" 426 " in await ask(port, trusting(ours[0]), TUNNEL)
        assert await nothing_from(port, trusting(ours[0], shown=strange))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("required", [False, True])
async def test_no_session_outlives_the_authority_of_its_client(
    pairs: list[tuple[Path, Path]], tmp_path: Path, version: ssl.TLSVersion, required: bool
) -> None:
    ours, other = pairs
    files = TlsFiles(*ours, client_ca=tmp_path / "ca.pem", required=required)
    assert files.client_ca is not None
    files.client_ca.write_bytes(ours[0].read_bytes())
    context = trusting(ours[0], shown=ours)
    context.maximum_version = version
    async with secured(files, wants_certificate=True) as (server, port):
        assert server.tls is not None
        try:
            session, _ = await asyncio.to_thread(talk, port, context, None)
        except ssl.SSLError:
            assert version is ssl.TLSVersion.TLSv1_2
            return
        files.client_ca.write_bytes(other[0].read_bytes())
        assert server.tls.reload()
        with contextlib.suppress(OSError):
            _, answer = await asyncio.to_thread(talk, port, context, session)
            assert b" 200 " not in answer


def talk(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession, bytes]:
    """The session and what came, on a connection that takes up ``session``."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=60)
    with context.wrap_socket(raw, server_hostname="localhost", session=session) as client:
        client.sendall(HEALTH)
        answer = client.recv(4096)
        assert client.session is not None
        return client.session, answer


async def test_nobody_connects_without_a_certificate_where_agents_need_one_too(
    pairs: list[tuple[Path, Path]],
) -> None:
    ours, _ = pairs
    async with secured(TlsFiles(*ours, client_ca=ours[0], required=True)) as (_, port):
        assert b" 200 " in await ask(port, trusting(ours[0], shown=ours))
        assert await nothing_from(port, trusting(ours[0]))


async def test_a_handshake_that_does_not_come_is_not_waited_for(
    pairs: list[tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.api.server.server.HANDSHAKE_S", 0.05)
    async with secured(TlsFiles(*pairs[0])) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01")
        async with asyncio.timeout(60):
            assert await reader.read(-1) == b""
        writer.close()


# --- The plain port ---


@pytest.mark.parametrize(
    ("head", "status", "where"),
    [
        (
            b"GET /v1/models?x=1 HTTP/1.1\r\nhost: a.test\r\n\r\n",
            b"308",
            b"https://a.test:8443/v1/models?x=1",
        ),
        (b"POST / HTTP/1.1\r\nHost: a.test:80\r\n\r\n", b"308", b"https://a.test:8443/"),
        (b"GET //evil/ HTTP/1.1\r\nhost: [::1]:80\r\n\r\n", b"308", b"https://[::1]:8443//evil/"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer k\r\n\r\n", b"403", None),
        (b"GET / HTTP/1.1\r\nhost: a\r\nX-Api-Key: k\r\n\r\n", b"403", None),
        (b"GET / HTTP/1.1\r\n\r\n", b"400", None),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"400", None),
        (b"GET / HTTP/1.1\r\nhost: a/b@c\r\n\r\n", b"400", None),
        (b"GET http://a/ HTTP/1.1\r\nhost: a\r\n\r\n", b"400", None),
        (b"GET /\rx HTTP/1.1\r\nhost: a\r\n\r\n", b"400", None),
        (b"\x16\x03\x01", b"400", None),
    ],
)
def test_the_plain_port_sends_on_to_https_and_serves_nothing(
    head: bytes, status: bytes, where: bytes | None
) -> None:
    answer = answer_to(head, 8443)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert (b"location: %b\r\n" % where in answer) if where else b"location" not in answer


def test_the_usual_port_is_not_written() -> None:
    assert b"location: https://a/\r\n" in answer_to(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", 443)


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_plain_port_answers_on_either_event_loop(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> bytes:
        with bind(Address("127.0.0.1", 0)) as listener:
            loop, present = asyncio.get_running_loop(), set[Redirect]()
            server = await loop.create_server(lambda: Redirect(443, present), sock=listener.dup())
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            async with asyncio.timeout(60):
                answer = await reader.read(-1)
            writer.close()
            server.close()
            return answer

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert b" 308 " in runner.run(scenario())


async def test_the_plain_port_waits_for_nobody_and_takes_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.api.server.tls.REDIRECT_WAIT_S", 0.05)
    monkeypatch.setattr("gateway.api.server.tls.REDIRECT_CONNECTIONS", 2)
    listener = bind(Address("127.0.0.1", 0))
    port = listener.getsockname()[1]
    present: set[Redirect] = set()
    server = await asyncio.get_running_loop().create_server(lambda: Redirect(443, present), sock=listener)
    talks = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    async with asyncio.timeout(60):
        ends = [await _end_of(reader) for reader, _ in talks]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 2000)
        assert b" 400 " in await reader.readuntil(b"\r\n")
    assert ends == [b"", b"", b""]
    for each in (writer, *(talk[1] for talk in talks)):
        each.close()
    server.close()
    async with asyncio.timeout(60):
        while present:  # noqa: ASYNC110 (the server learns of it in its own time)
            await asyncio.sleep(0.001)


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(-1)
    except ConnectionResetError:
        return b""


def test_the_end_of_the_certificate_in_force_is_known(pairs: list[tuple[Path, Path]], tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for source, place in zip(pairs[0], (cert, key), strict=True):
        place.write_bytes(source.read_bytes())
    tls = Tls(TlsFiles(cert, key))
    assert tls.ends_s is not None
    assert tls.ends_s == pytest.approx(time.time() + 86_400, abs=3600)
    before = tls.ends_s
    cert.write_text("no certificate")
    tls.reload()
    assert tls.ends_s == before, "what cannot be used does not come into force"
    assert certificate_end_s(cert) is None
