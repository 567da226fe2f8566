"""A client's WebSocket on a connection: both directions, closing, and what a client may try (RFC 6455)."""

import asyncio
from typing import Any

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from gateway.api.server import websocket
from gateway.api.server.websocket import FRAME_BYTES, UNSENT_BYTES, UNTAKEN_BYTES, ClientWebSocket
from gateway.domain.errors import BadRequest
from shared.protocol.upgraded import NO_CODE, CloseNotice, MessagePiece, PieceKind, PieceReader

HEADERS = [
    (b"host", b"gateway"),
    (b"connection", b"keep-alive, Upgrade"),
    (b"upgrade", b"websocket"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    (b"sec-websocket-extensions", b"permessage-deflate"),
]


class Connection:
    """The cycle, the flow and the transport of one, and the client at its other end."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.flow = self.transport = self
        self.read_paused = self.write_paused = self.disconnected = False
        self.written = b""
        self.closing = self.aborted = self.ended = self.half_closed = False
        self.receiver: Any = None
        self.writable = asyncio.Event()
        self.client = ClientProtocol(parse_uri("ws://gateway/"))
        self.frames: list[Frame] = []

    def switch_protocols(self, head: bytes, receiver: Any) -> None:
        self.written += head
        self.receiver = receiver

    def end_switched(self) -> None:
        self.ended = True

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.read_paused = True

    def resume_reading(self) -> None:
        self.read_paused = False

    def resume_writing(self) -> None:
        self.write_paused = False
        self.writable.set()

    async def drain(self) -> None:
        await self.writable.wait()

    def send(self, frame: Frame) -> None:
        """From the client, masked."""
        self.receiver.data_received(frame.serialize(mask=True))

    def received(self) -> list[tuple[int, bytes]]:
        """Frames that were written, by opcode, since the last call."""
        data, self.written = self.written, b""
        found = []
        while data:
            assert data[1] < 126
            found.append((data[0] & 0x0F, data[2 : 2 + data[1]]))
            data = data[2 + data[1] :]
        return found


def opened() -> tuple[Connection, ClientWebSocket]:
    connection = Connection()
    socket = ClientWebSocket(connection, HEADERS)  # type: ignore[arg-type]
    socket.accept([(b"x-trunkline-agent", b"gpu-1")], "realtime")
    return connection, socket


async def test_the_handshake_is_answered_as_rfc_6455_says() -> None:
    connection, _ = opened()
    head, _, rest = connection.written.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "http/1.1 101 switching protocols"
    assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in lines
    assert "sec-websocket-protocol: realtime" in lines
    assert "x-trunkline-agent: gpu-1" in lines
    assert not any(line.startswith("sec-websocket-extensions") for line in lines)
    assert rest == b""


@pytest.mark.parametrize("missing", [b"sec-websocket-key", b"sec-websocket-version", b"connection"])
async def test_what_asks_for_no_websocket_is_refused(missing: bytes) -> None:
    headers = [field for field in HEADERS if field[0] != missing]
    with pytest.raises(BadRequest) as caught:
        ClientWebSocket(Connection(), headers)  # type: ignore[arg-type]
    assert caught.value.code == "invalid_upgrade"


async def test_what_a_client_says_becomes_pieces_to_its_close() -> None:
    connection, socket = opened()
    connection.send(Frame(Opcode.TEXT, b"one"))
    connection.send(Frame(Opcode.BINARY, b"two", fin=False))
    connection.send(Frame(Opcode.CONT, b"three"))
    connection.send(Frame(Opcode.CLOSE, b"\x0f\xa1bye"))
    reader = PieceReader()
    pieces = [piece async for data in socket.pieces() for piece in reader.feed(data)]
    assert pieces == [
        MessagePiece(PieceKind.TEXT, True, b"one"),
        MessagePiece(PieceKind.BINARY, False, b"two"),
        MessagePiece(PieceKind.CONTINUATION, True, b"three"),
    ]
    assert reader.closed == CloseNotice(4001, "bye")
    assert connection.closing, "the server ends the connection first"
    assert socket.bytes_in == 11


async def test_what_the_engine_says_becomes_frames_and_nothing_follows_the_close() -> None:
    connection, socket = opened()
    connection.written = b""
    socket.put(MessagePiece(PieceKind.TEXT, False, b"a"))
    socket.put(MessagePiece(PieceKind.CONTINUATION, True, b"b"))
    socket.put(MessagePiece(PieceKind.BINARY, True, b"c"))
    await socket.flush()
    assert connection.received() == [(1, b"a"), (0, b"b"), (2, b"c")]
    closing = asyncio.ensure_future(socket.close(4001, "bye"))
    await asyncio.sleep(0)
    assert connection.received() == [(8, b"\x0f\xa1bye")]
    socket.put(MessagePiece(PieceKind.TEXT, True, b"late"))
    await socket.flush()
    assert connection.received() == []
    connection.send(Frame(Opcode.CLOSE, b"\x0f\xa1bye"))
    await closing
    assert connection.closing
    socket.end()
    assert connection.ended


@pytest.mark.parametrize(("code", "sent"), [(NO_CODE, b""), (1006, b"\x03\xf3")])
async def test_codes_that_are_never_sent_are_not(code: int, sent: bytes) -> None:
    connection, socket = opened()
    connection.written = b""
    closing = asyncio.ensure_future(socket.close(code, ""))
    await asyncio.sleep(0)
    assert connection.received() == [(8, sent)]
    socket.connection_lost()
    await closing


async def test_a_client_that_says_more_than_its_engine_takes_is_not_read() -> None:
    connection, socket = opened()
    while not connection.read_paused:
        connection.send(Frame(Opcode.BINARY, bytes(10_000)))
    assert socket._received_bytes <= UNSENT_BYTES + 10_006
    pieces = socket.pieces()
    assert len(await anext(pieces)) > UNSENT_BYTES
    assert connection.read_paused, "until the pieces were taken"
    more = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    assert not connection.read_paused
    more.cancel()


async def test_a_client_that_floods_with_pings_and_reads_nothing_is_not_read() -> None:
    connection, socket = opened()
    connection.write_paused = True
    for _ in range(UNTAKEN_BYTES // 100):
        assert not connection.read_paused
        connection.send(Frame(Opcode.PING, bytes(100)))
        if len(connection.written) > UNTAKEN_BYTES:
            break
    assert connection.read_paused
    socket._read_on()
    assert connection.read_paused
    connection.written, connection.write_paused = b"", False
    socket.writing_resumed()
    assert not connection.read_paused


async def test_what_a_client_says_that_does_not_read_is_heard() -> None:
    connection, socket = opened()
    told: list[str] = []
    socket.on_closed = lambda: told.append("closed")
    connection.write_paused = True
    connection.send(Frame(Opcode.BINARY, b"x"))
    pieces = socket.pieces()
    assert (await anext(pieces)).endswith(b"x")
    more = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    assert not connection.read_paused
    flushing = asyncio.ensure_future(socket.flush())
    await asyncio.sleep(0)
    assert not flushing.done()
    connection.send(Frame(Opcode.CLOSE, b"\x03\xe8"))
    assert PieceReader().feed(await more) == []
    assert told == ["closed"]
    await flushing


async def test_pings_are_answered_here_and_are_no_messages() -> None:
    connection, socket = opened()
    connection.written = b""
    connection.send(Frame(Opcode.PING, b"x"))
    connection.send(Frame(Opcode.PONG, b"y"))
    assert connection.received() == [(10, b"x")]
    assert socket._received_bytes == 0


async def test_a_frame_longer_than_the_limit_closes_with_1009_and_is_not_held() -> None:
    connection, socket = opened()
    connection.receiver.data_received(b"\x82\xff" + (FRAME_BYTES + 1).to_bytes(8, "big") + b"mask")
    reader = PieceReader()
    async for data in socket.pieces():
        reader.feed(data)
    assert reader.closed is not None
    assert reader.closed.code == 1009


async def test_the_rest_of_a_frame_that_is_too_long_is_read_before_the_connection_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, socket = opened()
    told: list[str] = []
    socket.on_closed = lambda: told.append("closed")
    connection.written = b""
    connection.receiver.data_received(b"\x82\xff" + (FRAME_BYTES + 1).to_bytes(8, "big") + b"mask")
    assert told == ["closed"]
    assert [opcode for opcode, _ in connection.received()] == [8]
    assert connection.half_closed
    assert not connection.closing
    for _ in range(64):
        connection.receiver.data_received(bytes(UNSENT_BYTES))
    assert not connection.read_paused
    assert not connection.closing
    assert socket._received_bytes < 64
    monkeypatch.setattr(websocket, "QUIET_S", 0.0)
    socket._wait_for_quiet()
    assert connection.closing
    await socket.close(1000, "")


async def test_a_client_that_goes_on_sending_after_its_mistake_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "CLOSE_S", 0.0)
    connection, _ = opened()
    connection.receiver.data_received(b"\x82\xff" + (FRAME_BYTES + 1).to_bytes(8, "big") + b"mask")
    assert connection.closing


async def test_what_a_client_still_sends_when_its_engine_has_closed_is_read_up_to_its_answer() -> None:
    connection, socket = opened()
    closing = asyncio.ensure_future(socket.close(1000, "done"))
    await asyncio.sleep(0)
    for _ in range(4):
        connection.send(Frame(Opcode.BINARY, bytes(UNSENT_BYTES)))
    assert not connection.read_paused
    connection.send(Frame(Opcode.CLOSE, b"\x03\xe8"))
    await closing
    assert connection.closing


async def test_the_answer_to_a_close_is_read_whatever_was_not_taken_of_what_its_client_said() -> None:
    connection, socket = opened()
    connection.send(Frame(Opcode.BINARY, bytes(UNSENT_BYTES)))
    connection.write_paused, connection.written = True, bytes(UNTAKEN_BYTES)
    closing = asyncio.ensure_future(socket.close(1000, "done"))
    await asyncio.sleep(0)
    connection.send(Frame(Opcode.BINARY, b"more"))
    assert connection.read_paused
    connection.write_paused, connection.written = False, b""
    socket.writing_resumed()
    assert not connection.read_paused
    connection.send(Frame(Opcode.CLOSE, b"\x03\xe8"))
    await closing
    assert connection.closing


@pytest.mark.parametrize("data", [b"\x81\x01x", b"\xf1\x80mask", b"\x80\x80mask"])
async def test_what_is_no_frame_of_a_client_closes_with_1002(data: bytes) -> None:
    connection, socket = opened()
    connection.receiver.data_received(data)
    reader = PieceReader()
    async for piece in socket.pieces():
        reader.feed(piece)
    assert reader.closed is not None
    assert reader.closed.code == 1002


async def test_a_client_that_is_silent_is_pinged_and_then_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, socket = opened()
    connection.written = b""
    socket._beat()
    assert connection.received() == [(9, b"")]
    assert not connection.aborted
    monkeypatch.setattr(websocket, "SILENT_S", -1.0)
    socket._beat()
    assert connection.aborted
    socket.end()
