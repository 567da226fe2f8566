"""An engine that speaks WebSocket: it lists a model, and echoes what it is sent."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response


@dataclass(slots=True)
class EchoEngine:
    """``/refused`` answers 403; a text ``close CODE REASON`` has it close; all else comes back."""

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
        if request.path != "/v1/models":
            return connection.respond(HTTPStatus.NOT_FOUND, "nothing\n")
        listed = {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "tests"}]}
        response = connection.respond(HTTPStatus.OK, json.dumps(listed))
        response.headers["content-type"] = "application/json"
        return response

    async def _echo(self, socket: ServerConnection) -> None:
        self.open += 1
        try:
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


@asynccontextmanager
async def echo_engine(model: str) -> AsyncIterator[EchoEngine]:
    """One on a free port of loopback."""
    engine = EchoEngine(model)
    async with serve(
        engine._echo,
        "127.0.0.1",
        0,
        process_request=engine._answer,
        compression=None,
        max_size=None,
        ping_interval=None,
    ) as server:
        engine.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield engine
