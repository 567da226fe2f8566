"""Handshakes that are under way, on both event loops that gateways run on."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import uvloop

from gateway.api.server.client_addresses import PerAddressLimiter
from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, GatewayServer, bind, build_server
from gateway.api.server.tls import TlsFiles, build_context
from gateway.api.server.tls_handshakes import TlsHandshakeLimiter
from gateway.runtime.descriptors import ConnectionVerdict
from tests.gateway.api.server.test_tls import HEALTH, ask, trusting
from tests.gateway.api.support import Surface
from tests.support.tls import make_certificate

Scenario = Callable[[int, GatewayServer], Awaitable[None]]
Run = Callable[..., None]


class Few:
    """Descriptors that are running out."""

    def room_for(self, descriptor: int) -> ConnectionVerdict:
        return ConnectionVerdict.SCARCE


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(*make_certificate(tmp_path_factory.mktemp("pair")))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a scenario on a server whose clients are all of one address."""
    monkeypatch.setattr(PerAddressLimiter, "_group", lambda self, address: "192.0.2.1")

    def run(
        scenario: Scenario, limits: ConnectionLimits, places: PerAddressLimiter, few: Few | None = None
    ) -> None:
        async def on_a_server() -> None:
            address = Address("127.0.0.1", 0, files)
            server = build_server(
                Surface().app,
                address,
                limits,
                lambda **options: None,
                few,  # type: ignore[arg-type]
                places,
            )
            await served(server, address, scenario)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(on_a_server())

    return run


async def served(server: GatewayServer, address: Address, scenario: Scenario) -> None:
    listener = bind(address)
    serving = asyncio.get_running_loop().create_task(server.serve([listener]))
    await server.ready.wait()
    try:
        async with asyncio.timeout(60):
            await scenario(listener.getsockname()[1], server)
            await empty(server)
    finally:
        server.should_exit = True
        server.abort_connections()
        await serving


def under_way(server: GatewayServer) -> TlsHandshakeLimiter:
    assert server._handshakes is not None
    return server._handshakes


async def empty(server: GatewayServer) -> None:
    """All have left, and the server knows."""
    limiter = under_way(server)
    while (  # noqa: ASYNC110
        limiter._present or limiter.places._taken or server.server_state.connections
    ):
        await asyncio.sleep(0.001)


async def silent(port: int) -> asyncio.StreamReader:
    """Somebody who begins a handshake and says no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x16\x03\x01")
    _KEPT.append(writer)
    return reader


_KEPT: list[asyncio.StreamWriter] = []


def leave() -> None:
    for writer in _KEPT:
        writer.transport.abort()
    _KEPT.clear()


async def refused(port: int) -> None:
    """Nobody begins a handshake now."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x16\x03\x01")
    try:
        assert await reader.read(-1) == b""
    except ConnectionResetError:
        pass
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("limits", "places"),
    [(ConnectionLimits(), PerAddressLimiter(2)), (ConnectionLimits(connections=2), PerAddressLimiter(9))],
    ids=["address", "all"],
)
def test_half_open_handshakes_are_counted(
    run: Run, files: TlsFiles, limits: ConnectionLimits, places: PerAddressLimiter
) -> None:
    async def scenario(port: int, server: GatewayServer) -> None:
        for _ in range(2):
            await silent(port)
        await refused(port)
        leave()
        await empty(server)
        for _ in range(3):  # who shakes hands makes room
            assert b" 200 " in await ask(port, trusting(files.cert))
            await empty(server)

    run(scenario, limits, places)


def test_a_handshake_that_fails_makes_room(
    run: Run, files: TlsFiles, log_records: list[logging.LogRecord]
) -> None:
    async def scenario(port: int, server: GatewayServer) -> None:
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            await reader.read(-1)
            writer.close()
            await empty(server)
        assert b" 200 " in await ask(port, trusting(files.cert))

    run(scenario, ConnectionLimits(), PerAddressLimiter(1))
    assert not log_records


def test_nobody_begins_one_when_descriptors_run_out(run: Run) -> None:
    async def scenario(port: int, server: GatewayServer) -> None:
        await refused(port)

    run(scenario, ConnectionLimits(), PerAddressLimiter(9), Few())


def test_those_under_way_do_not_hold_the_server_back(run: Run) -> None:
    readers: list[asyncio.StreamReader] = []

    async def scenario(port: int, server: GatewayServer) -> None:
        readers.append(await silent(port))
        limiter = under_way(server)
        while not limiter._present:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        limiter.abort()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await readers[0].readexactly(1)
        leave()

    run(scenario, ConnectionLimits(), PerAddressLimiter(9))


def test_what_is_sent_together_with_the_end_of_a_handshake_is_read(run: Run, files: TlsFiles) -> None:
    async def scenario(port: int, server: GatewayServer) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting(files.cert).wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        client.write(HEALTH)
        writer.write(outgoing.read())  # the client's Finished and its request
        answer = b""
        while b"\r\n\r\n" not in answer:
            incoming.write(await reader.read(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += client.read(65_536)
        assert b" 200 " in answer
        writer.transport.abort()

    run(scenario, ConnectionLimits(), PerAddressLimiter(1))


async def test_who_cannot_be_served_leaves_no_place_behind(files: TlsFiles) -> None:
    limiter = TlsHandshakeLimiter(build_context(files), PerAddressLimiter(1), 1, 1.0)

    def make() -> asyncio.Protocol:
        raise MemoryError

    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    server = await loop.create_server(limiter.before(make), "127.0.0.1", 0)
    for _ in range(2):
        await refused(server.sockets[0].getsockname()[1])
    assert [type(error) for error in errors] == [MemoryError] * 2
    assert not limiter._present
    server.close()


class Wire(asyncio.Transport):
    """A connection whose client says what the test gives it."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol = protocol
        self.written = 0
        self.gone = self.paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def write(self, data: Any) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return self.gone

    def abort(self) -> None:
        if not self.gone:
            self.gone = True
            self.protocol.connection_lost(None)

    close = abort

    def receive(self, data: bytes) -> None:
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            memoryview(protocol.get_buffer(len(data)))[: len(data)] = data
            protocol.buffer_updated(len(data))
        else:
            cast(asyncio.Protocol, protocol).data_received(data)


def hello(files: TlsFiles) -> bytes:
    """How a client begins."""
    outgoing = ssl.MemoryBIO()
    client = trusting(files.cert).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_the_handshakes_of_a_crowd_are_answered_in_many_turns_of_the_loop(files: TlsFiles) -> None:
    """One takes 0.1 ms or more, of which 2 ms a turn may be spent."""
    crowd = 150
    limiter = TlsHandshakeLimiter(build_context(files), PerAddressLimiter(crowd), crowd, 5.0)
    make, said = limiter.before(asyncio.Protocol), hello(files)
    wires = [Wire(make()) for _ in range(crowd)]
    for wire in wires:
        wire.protocol.connection_made(wire)
    for wire in wires:
        wire.receive(said)
    most = answered = 0
    while True:
        before, answered = answered, sum(wire.written > 0 for wire in wires)
        most = max(most, answered - before)
        if answered == crowd:
            break
        await asyncio.sleep(0)
    assert most < crowd / 2
    assert not any(wire.paused for wire in wires)
    for wire in wires:
        wire.abort()
    await asyncio.sleep(0)
    assert not limiter._present


async def test_a_client_that_says_nothing_is_cut_off_and_one_that_waits_for_its_turn_is_not(
    files: TlsFiles,
) -> None:
    limiter = TlsHandshakeLimiter(build_context(files), PerAddressLimiter(2), 2, 0.05)
    steps: list[Callable[[], None]] = []
    limiter.request_turn = steps.append  # type: ignore[method-assign, assignment]
    make = limiter.before(asyncio.Protocol)
    silent, waiting = Wire(make()), Wire(make())
    for wire in (silent, waiting):
        wire.protocol.connection_made(wire)
    waiting.receive(hello(files))
    assert waiting.paused
    while not silent.gone:  # noqa: ASYNC110 (the loop's own clock decides)
        await asyncio.sleep(0.01)
    assert not waiting.gone
    (begin,) = steps
    begin()
    assert waiting.written
    assert not waiting.paused
    waiting.abort()
    await asyncio.sleep(0)
    assert not limiter._present
