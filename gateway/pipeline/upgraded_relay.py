"""Engine to client on an upgraded stream: messages, and credit that follows the client (PROTOCOL §5.5)."""

from collections.abc import Sequence
from typing import Protocol

from gateway.domain.errors import EngineError, StreamBroken
from gateway.pipeline.relay import HeaderList, Response, as_request_error
from shared.protocol.errors import PieceMalformed
from shared.protocol.upgraded import INTERNAL_ERROR, MessagePiece, PieceReader, close_code_of


class ClientSocket(Protocol):
    """A client's WebSocket; :class:`gateway.api.server.websocket.ClientWebSocket`."""

    def put(self, piece: MessagePiece) -> None: ...
    async def flush(self) -> None: ...
    async def close(self, code: int, reason: str) -> None: ...
    def end(self) -> None: ...


class UpgradingReply(Protocol):
    """:class:`gateway.api.exchange.reply.Reply`, as far as it gives a client its WebSocket."""

    def upgrade(self, headers: HeaderList, subprotocol: str | None) -> ClientSocket: ...


async def relay_upgraded(
    response: Response, reply: UpgradingReply, *, facts: bool = True, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Give the client its WebSocket, and pass on what the engine says until it closes.

    What the client says goes the other way meanwhile, as the request's body. Raises
    :class:`~gateway.domain.errors.RequestError` when the stream breaks; the client has been told by then.
    """
    chosen = next((text for name, text in response.headers if name == "sec-websocket-protocol"), None)
    socket = reply.upgrade([*(response_facts(response) if facts else ()), *more], chosen)
    reader, ended = PieceReader(), False
    try:
        while chunks := await response.next_chunks():
            size_bytes = 0
            for chunk in chunks:
                size_bytes += len(chunk)
                for piece in reader.feed(chunk):
                    socket.put(piece)
            await socket.flush()
            response.consumed(size_bytes)
        ended = True
        await socket.close(*reader.end())
    except StreamBroken as broken:
        await socket.close(close_code_of(broken.code), broken.reason)
        raise as_request_error(broken) from broken
    except PieceMalformed as malformed:
        await socket.close(INTERNAL_ERROR, "What the engine's agent sent is no message.")
        raise EngineError("What the engine's agent sent on a WebSocket is no message.") from malformed
    finally:
        if not ended:
            response.abort()
        socket.end()


def response_facts(response: Response) -> HeaderList:
    """Header fields that say who answered, and after how long."""
    headers = [
        (b"x-trunkline-agent", response.agent.encode("latin-1", "replace")),
        (b"x-trunkline-queue-ms", b"%.1f" % (response.queue_s * 1000)),
        (b"x-trunkline-attempts", b"%d" % response.attempts),
    ]
    if response.ran_by:
        headers.append((b"x-trunkline-ran-by", response.ran_by.encode("latin-1", "replace")))
    return headers
