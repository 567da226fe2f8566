"""What the stand-ins share whose engines speak WebSocket: listening, and the list of their one model."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response


def listed_model(connection: ServerConnection, request: Request, model: str, owner: str) -> Response:
    """The answer to a request for no WebSocket: ``model`` at ``/v1/models``, and nothing else."""
    if request.path != "/v1/models":
        return connection.respond(HTTPStatus.NOT_FOUND, "nothing\n")
    listed = {"object": "list", "data": [{"id": model, "object": "model", "owned_by": owner}]}
    response = connection.respond(HTTPStatus.OK, json.dumps(listed))
    response.headers["content-type"] = "application/json"
    return response


@asynccontextmanager
async def websocket_server(
    handle: Callable[[ServerConnection], Awaitable[None]],
    answer: Callable[[ServerConnection, Request], Response | None],
) -> AsyncIterator[str]:
    """The URL of one on a free port of loopback. ``answer`` is asked first: None opens the WebSocket."""
    async with serve(
        handle,
        "127.0.0.1",
        0,
        process_request=answer,
        compression=None,
        max_size=None,
        ping_interval=None,
    ) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
