"""An engine that speaks WebSocket: it lists a model, and echoes what it is sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.support.long_messages import send_zeros
from tests.support.websocket_server import listed_model, websocket_server


@dataclass(slots=True)
class EchoEngine:
    """``/refused`` answers 403; a text ``close CODE REASON`` has it close; all else comes back.

    At ``/long`` messages are not held: each is answered with its length, and a text ``send SIZE FRAME`` with
    so many bytes in frames of that size.
    """

    model: str
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    """Those that asked for a WebSocket."""
    closed: list[tuple[int, str]] = field(default_factory=list)
    """How clients closed, in order."""
    received: int = 0
    """Messages, all together."""
    open: int = 0

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        if "upgrade" in request.headers:
            if request.path == "/refused":
                return connection.respond(HTTPStatus.FORBIDDEN, "not here\n")
            self.requests.append(request)
            return None
        return listed_model(connection, request, self.model, "tests")

    async def _echo(self, socket: ServerConnection) -> None:
        self.open += 1
        assert socket.request is not None
        try:
            if socket.request.path == "/long":
                await self._take_long(socket)
            async for message in socket:
                self.received += 1
                if isinstance(message, str) and message.startswith("close "):
                    _, code, reason = message.split(" ", 2)
                    await socket.close(int(code), reason)
                else:
                    await socket.send(message)
        except ConnectionClosed:
            pass
        finally:
            self.open -= 1
            if socket.close_code is not None:
                self.closed.append((socket.close_code, socket.close_reason or ""))

    async def _take_long(self, socket: ServerConnection) -> None:
        while True:
            size_bytes, order = 0, ""
            async for fragment in socket.recv_streaming():
                size_bytes += len(fragment)
                order = fragment if isinstance(fragment, str) else ""
            self.received += 1
            if order:
                _, size, frame = order.split()
                await send_zeros(socket, int(size), int(frame))
            else:
                await socket.send(str(size_bytes))


@asynccontextmanager
async def echo_engine(model: str) -> AsyncIterator[EchoEngine]:
    """One on a free port of loopback."""
    engine = EchoEngine(model)
    async with websocket_server(engine._echo, engine._answer) as engine.url:
        yield engine
