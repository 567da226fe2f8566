"""Answers for clients of HTTP/1.0, who know no chunks: a body without a length ends with its connection.

uvicorn would send them chunks all the same.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_ANY_LENGTH = sys.maxsize


class UntilClose:
    """Wraps the application for one request of such a client; the server closes its connections anyway."""

    def __init__(self, app: Callable[..., Awaitable[None]], cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._unbounded = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def plainly(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._begin(message)
            elif self._unbounded and not message.get("more_body", False):
                await send({**message, "more_body": True})
                self._cycle.expected_content_length = 0
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, receive, plainly)

    def _begin(self, head: dict[str, Any]) -> None:
        names = {name.lower() for name, _ in head.get("headers", ())}
        if head["status"] not in (204, 304) and b"content-length" not in names:
            self._unbounded = True
            self._cycle.chunked_encoding = False
            self._cycle.expected_content_length = _ANY_LENGTH
