"""What an engine says on a WebSocket on its way to the client, and how it ends (PROTOCOL §5.5)."""

import pytest

from gateway.domain.errors import EngineError, RequestError, StreamBroken
from gateway.pipeline.relay import HeaderList
from gateway.pipeline.upgraded_relay import relay_upgraded
from shared.protocol.errors import ErrorCode
from shared.protocol.upgraded import ABNORMAL, MessagePiece, PieceKind, encode_close, encode_pieces
from tests.gateway.api.support import FakeResponse

HELLO = encode_pieces(PieceKind.TEXT, b"hello", final=True)[0]


class Socket:
    """A client's; also the reply that gives it."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.subprotocol: str | None = None
        self.pieces: list[MessagePiece] = []
        self.flushed = 0
        self.closed: tuple[int, str] | None = None
        self.ended = False

    def upgrade(self, headers: HeaderList, subprotocol: str | None) -> "Socket":
        self.headers, self.subprotocol = dict(headers), subprotocol
        return self

    def put(self, piece: MessagePiece) -> None:
        self.pieces.append(piece)

    async def flush(self) -> None:
        self.flushed = len(self.pieces)

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    def end(self) -> None:
        self.ended = True


async def test_messages_and_the_closing_code_reach_the_client_however_the_body_is_cut() -> None:
    body = HELLO + encode_close(4001, "bye")
    response = FakeResponse(chunks=(body[:4], body[4:9], body[9:]))
    response.headers = (("sec-websocket-protocol", "realtime"),)
    socket = Socket()
    await relay_upgraded(response, socket)
    assert socket.pieces == [MessagePiece(PieceKind.TEXT, True, b"hello")]
    assert (socket.closed, socket.ended, socket.flushed) == ((4001, "bye"), True, 1)
    assert socket.subprotocol == "realtime"
    assert b"x-trunkline-agent" in socket.headers
    assert response.consumed_bytes == len(body)
    assert not response.aborted


async def test_an_engine_whose_connection_was_lost_closes_without_a_code_of_its_own() -> None:
    socket = Socket()
    await relay_upgraded(FakeResponse(chunks=(HELLO,)), socket, facts=False)
    assert socket.closed == (ABNORMAL, "")
    assert socket.headers == {}


@pytest.mark.parametrize(("code", "closed"), [(ErrorCode.DRAINING, 1001), (ErrorCode.ENGINE_FAILED, 1011)])
async def test_a_stream_that_breaks_closes_with_a_code_that_fits(code: ErrorCode, closed: int) -> None:
    socket = Socket()
    response = FakeResponse(chunks=(HELLO,), ended=False)
    response.break_off(StreamBroken(code, "why"))
    with pytest.raises(RequestError):
        await relay_upgraded(response, socket)
    assert socket.closed == (closed, "why")
    assert socket.ended


async def test_what_is_no_message_ends_the_stream() -> None:
    socket, response = Socket(), FakeResponse(chunks=(b"\xff\x00\x00",))
    with pytest.raises(EngineError):
        await relay_upgraded(response, socket)
    assert socket.closed is not None
    assert socket.closed[0] == 1011
    assert response.aborted
