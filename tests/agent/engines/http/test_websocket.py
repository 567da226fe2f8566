"""WebSockets to engines: messages both ways, closing codes, refusals, and what breaks (PROTOCOL §5.5)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve, unix_serve
from websockets.exceptions import ConnectionClosed

from agent.engines.http.openai import EngineSettings, OpenAIHTTPBackend
from agent.engines.settings import EngineTimeouts
from shared.protocol.endpoint import Stream
from shared.protocol.errors import ErrorCode
from shared.protocol.limits import KIB, PIECE_BYTES, UPLOAD_WINDOW_BYTES
from shared.protocol.messages import DeploymentState
from shared.protocol.upgraded import (
    CloseNotice,
    MessagePiece,
    PieceKind,
    PieceReader,
    encode_close,
    encode_pieces,
)
from tests.agent.support.canned import canned, until
from tests.agent.support.requests_in import Set, agent_with
from tests.support.tunnels import Recorder

Handler = Callable[[ServerConnection], Awaitable[None]]


async def echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


class Asked(OpenAIHTTPBackend):
    """Of an engine that is only asked for WebSockets."""

    def deployments(self) -> tuple[DeploymentState, ...]:
        return (DeploymentState(id="e/m", model="m", slots=2, upgrades=True),)


@asynccontextmanager
async def backend_at(url: str, **settings: Any) -> AsyncIterator[OpenAIHTTPBackend]:
    backend = Asked(EngineSettings(url=url, name="e", **settings))
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def engine(
    handler: Handler = echo, *, timeouts: EngineTimeouts | None = None, **options: Any
) -> AsyncIterator[Set]:
    settings: dict[str, Any] = {} if timeouts is None else {"timeouts": timeouts}
    async with serve(handler, "127.0.0.1", 0, compression=None, max_size=None, **options) as server:
        url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with backend_at(url, api_key="engines", **settings) as backend, agent_with(backend) as here:
            yield here


def ask(here: Set, *fields: tuple[str, str], path: str = "/ws") -> tuple[Stream, Recorder]:
    return here.ask(None, method="GET", path=path, headers=fields, upgrade=True)


def said(answer: Recorder) -> tuple[list[tuple[bool, bytes]], PieceReader]:
    """Whole messages, True for texts, and the reader."""
    reader = PieceReader()
    messages: list[tuple[bool, bytes]] = []
    open_pieces: list[MessagePiece] = []
    for piece in reader.feed(answer.body):
        open_pieces.append(piece)
        if piece.final:
            is_text = open_pieces[0].kind == PieceKind.TEXT
            messages.append((is_text, b"".join(each.data for each in open_pieces)))
            open_pieces.clear()
    return messages, reader


def send(stream: Stream, kind: PieceKind, data: bytes) -> None:
    for piece in encode_pieces(kind, data, final=True):
        stream.send_data(piece)


async def test_texts_and_bytes_come_back_as_they_went_and_the_close_is_carried() -> None:
    async with engine() as here:
        stream, answer = ask(here)
        head = await answer.until("head")
        assert head.status == 101
        sent = [(PieceKind.TEXT, "hé".encode()), (PieceKind.BINARY, b"\x00\xff"), (PieceKind.TEXT, b"")]
        for kind, data in sent:
            send(stream, kind, data)
        await until(lambda: len(said(answer)[0]) == 3)
        stream.send_data(encode_close(4001, "enough"))
        stream.end()
        await answer.until("closed")
    messages, reader = said(answer)
    assert messages == [(kind == PieceKind.TEXT, data) for kind, data in sent]
    assert reader.closed == CloseNotice(4001, "enough")


async def test_an_engine_that_closes_ends_the_stream_with_its_code_and_reason() -> None:
    async def bye(socket: ServerConnection) -> None:
        await socket.send("last")
        await socket.close(4321, "bye")

    async with engine(bye) as here:
        _, answer = ask(here)
        await answer.until("end")
        messages, reader = said(answer)
        assert messages == [(True, b"last")]
        assert reader.closed == CloseNotice(4321, "bye")
        await until(lambda: here.registry.running == 0)


async def test_the_engine_sees_path_key_and_subprotocols_and_no_credential_of_the_client() -> None:
    seen: list[Any] = []

    async def look(socket: ServerConnection) -> None:
        seen.append(socket.request)

    async with engine(look, subprotocols=["realtime"]) as here:
        fields = (("sec-websocket-protocol", "other, realtime"), ("authorization", "theirs"), ("x-a", "1"))
        _, answer = ask(here, *fields, path="/v1/realtime?model=m")
        head = await answer.until("head")
        await answer.until("end")
    (request,) = seen
    assert request.path == "/v1/realtime?model=m"
    assert request.headers["authorization"] == "Bearer engines"
    assert request.headers["x-a"] == "1"
    assert request.headers["sec-websocket-protocol"] == "other, realtime"
    assert ("sec-websocket-protocol", "realtime") in head.headers
    assert not {"upgrade", "connection", "sec-websocket-accept"} & {name for name, _ in head.headers}


async def test_an_engine_that_refuses_the_upgrade_answers_as_to_any_request() -> None:
    def refuse(socket: ServerConnection, request: Any) -> Any:
        return socket.respond(403, "not here")

    async with engine(process_request=refuse) as here:
        _, answer = ask(here)
        head = await answer.until("head")
        await answer.until("end")
    assert (head.status, answer.body) == (403, b"not here")


async def test_an_engine_that_sends_clients_elsewhere_is_not_followed() -> None:
    def elsewhere(socket: ServerConnection, request: Any) -> Any:
        response = socket.respond(307, "")
        response.headers["location"] = "ws://192.0.2.1/ws"
        return response

    async with engine(process_request=elsewhere) as here:
        _, answer = ask(here)
        assert (await answer.until("head")).status == 307
        await answer.until("end")


async def test_an_engine_that_is_not_there_was_never_asked() -> None:
    async with backend_at("http://127.0.0.1:9") as backend, agent_with(backend) as here:
        _, answer = ask(here)
        code, _ = await answer.until("reset")
    assert code is ErrorCode.ENGINE_UNREACHABLE


async def test_an_engine_that_speaks_no_websocket_failed() -> None:
    async with canned(b"HTTP/1.1 101 Switching Protocols\r\n\r\n") as server:  # noqa: SIM117
        async with backend_at(server.url) as backend, agent_with(backend) as here:
            _, answer = ask(here)
            code, reason = await answer.until("reset")
    assert code is ErrorCode.ENGINE_FAILED
    assert "WebSocket" in reason


async def test_a_connection_that_is_lost_ends_without_a_code() -> None:
    async def die(socket: ServerConnection) -> None:
        await socket.send("one")
        socket.transport.abort()

    async with engine(die) as here:
        _, answer = ask(here)
        await answer.until("end")
    messages, reader = said(answer)
    assert (messages, reader.closed) == ([(True, b"one")], None)


async def test_a_client_that_leaves_ends_the_engines_socket() -> None:
    gone = asyncio.Event()

    async def wait(socket: ServerConnection) -> None:
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
        if caught.value.rcvd is not None and caught.value.rcvd.code == 1001:
            gone.set()

    async with engine(wait) as here:
        stream, answer = ask(here)
        await answer.until("head")
        stream.reset(ErrorCode.CANCELLED)
        await gone.wait()
        await until(lambda: here.registry.running == 0)


@pytest.mark.parametrize("data", [b"\x89\x00\x00", b"\x80\x00\x01x"], ids=["no piece", "nothing to continue"])
async def test_what_is_no_piece_resets_the_stream_and_blames_no_engine(data: bytes) -> None:
    async with engine() as here:
        stream, answer = ask(here)
        await answer.until("head")
        stream.send_data(data)
        code, _ = await answer.until("reset")
        assert code is ErrorCode.PROTOCOL_ERROR
        await until(lambda: here.registry.running == 0)


async def test_a_message_of_many_windows_passes_in_pieces_both_ways() -> None:
    """Of 2 MiB, eight times what may be sent at first: neither side holds it whole but the engine."""
    size, piece_count = 8 * UPLOAD_WINDOW_BYTES, 8 * UPLOAD_WINDOW_BYTES // PIECE_BYTES

    async def swallow(socket: ServerConnection) -> None:
        message = await socket.recv()
        await socket.send(str(len(message)))

        async def fragments() -> AsyncIterator[bytes]:
            for _ in range(piece_count):
                yield bytes(PIECE_BYTES)

        await socket.send(fragments())

    async with engine(swallow) as here:
        stream, answer = ask(here)
        await answer.until("head")
        unsent = encode_pieces(PieceKind.BINARY, bytes(size), final=True)
        while unsent:
            answer.calls = [call for call in answer.calls if call[0] != "writable"]
            if not stream.send_data(unsent.pop(0)):
                await answer.until("writable")
            stream.consumed(1 << 30)
        while "end" not in answer.names():
            stream.consumed(1 << 30)
            await asyncio.sleep(0)
    messages, _ = said(answer)
    assert messages == [(True, str(size).encode()), (False, bytes(size))]


async def test_a_frame_longer_than_the_limit_closes_with_1009(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.engines.http.websocket.FRAME_BYTES", 1000)

    async def big(socket: ServerConnection) -> None:
        await socket.send(bytes(1001))
        await socket.wait_closed()

    async with engine(big) as here:
        _, answer = ask(here)
        await answer.until("end")
    _, reader = said(answer)
    assert reader.closed is not None
    assert reader.closed.code == 1009


async def test_an_engine_whose_client_reads_nothing_is_not_taken_for_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.engines.http.websocket.PING_S", 0.05)
    size, count = 64 * KIB, 24

    async def burst(socket: ServerConnection) -> None:
        for _ in range(count):
            await socket.send(bytes(size))
        await socket.close(4000, "done")

    async with engine(burst, timeouts=EngineTimeouts(idle_s=0.1)) as here:
        stream, answer = ask(here)
        await answer.until("head")
        await asyncio.sleep(0.5)
        while "end" not in answer.names():
            stream.consumed(1 << 30)
            await asyncio.sleep(0.001)
    messages, reader = said(answer)
    assert len(messages) == count
    assert reader.closed == CloseNotice(4000, "done")


async def test_an_engine_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.engines.http.websocket.PING_S", 0.05)
    released = asyncio.Event()

    async def deaf(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await released.wait()
        socket.transport.abort()

    async with engine(deaf, timeouts=EngineTimeouts(idle_s=0.2)) as here:
        stream, answer = ask(here)
        await answer.until("head")

        async def say() -> None:
            (piece,) = encode_pieces(PieceKind.BINARY, bytes(PIECE_BYTES), final=True)
            while True:
                if not stream.send_data(piece):
                    await answer.until("writable")
                answer.calls = [call for call in answer.calls if call[0] != "writable"]

        saying = asyncio.ensure_future(say())
        try:
            async with asyncio.timeout(20.0):
                await answer.until("closed")
        finally:
            saying.cancel()
            released.set()
    _, reader = said(answer)
    assert reader.closed is not None
    assert reader.closed.code == 1011


async def test_an_engine_on_a_unix_socket_is_reached(tmp_path: Path) -> None:
    place = tmp_path / "engine"
    async with unix_serve(echo, str(place)):  # noqa: SIM117
        async with backend_at("http://localhost", unix_socket=place) as backend, agent_with(backend) as here:
            stream, answer = ask(here)
            await answer.until("head")
            send(stream, PieceKind.TEXT, b"hello")
            await until(lambda: said(answer)[0] == [(True, b"hello")])
            stream.reset(ErrorCode.CANCELLED)
            await until(lambda: here.registry.running == 0)
