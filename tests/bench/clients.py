"""Cheap streaming clients: a thousand of them must cost less than what they measure."""

import asyncio
import json
import re
import socket
from dataclasses import dataclass
from typing import Any, cast

_TOKEN = b'"content":"'
_STAMP = re.compile(rb'"sent_s":([0-9.]+)')


def chat_request(
    key: str, model: str, *, tokens: int, path: str = "/v1/chat/completions", **script: object
) -> bytes:
    """A streamed chat as one HTTP request; ``script`` tells the scripted engine how to answer."""
    body: dict[str, Any] = {"model": model, "stream": True, "max_tokens": tokens, "script": script}
    body["messages"] = [{"role": "user", "content": "load"}]
    return post(key, path, "application/json", json.dumps(body).encode())


def post(key: str, path: str, content_type: str, body: bytes) -> bytes:
    head = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        f"authorization: Bearer {key}",
        f"content-type: {content_type}",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


@dataclass(slots=True)
class Reading:
    """What one client saw. Times are seconds of the loop's clock; the engine's stamps are on the same one."""

    status: int = 0
    tokens: int = 0
    received_bytes: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    gaps_s: "list[float] | None" = None
    lateness_s: "list[float] | None" = None
    """From the engine's write to this client's read, for the last token of each read."""
    done: bool = False
    """``data: [DONE]`` came."""


class TokenStream(asyncio.Protocol):
    """One request, and what comes back: counted, timed, not kept."""

    def __init__(self, request: bytes, measured: bool = True) -> None:
        self._request = request
        self.seen = Reading(gaps_s=[] if measured else None, lateness_s=[] if measured else None)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport
        self._last_s: float | None = None
        self._clock = asyncio.get_running_loop().time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        seen = self.seen
        if not seen.status:
            seen.status = int(data[9:12])
        seen.received_bytes += len(data)
        tokens = data.count(_TOKEN)
        if tokens:
            seen.tokens += tokens
            self._measure(data, self._clock())
        if b"data: [DONE]" in data:
            seen.done = True

    def _measure(self, data: bytes, now_s: float) -> None:
        seen = self.seen
        if seen.first_s is None:
            seen.first_s = now_s
        if seen.gaps_s is not None and seen.lateness_s is not None:
            if self._last_s is not None:
                seen.gaps_s.append(now_s - self._last_s)
            stamp = _STAMP.search(data)
            if stamp is not None:
                seen.lateness_s.append(now_s - float(stamp[1]))
        self._last_s = seen.last_s = now_s

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    async def finished(self) -> Reading:
        await self.over
        return self.seen


async def open_stream(
    port: int, request: bytes, measured: bool = True, buffer_bytes: int | None = None
) -> TokenStream:
    """Send the request; ``buffer_bytes`` keeps the kernel from reading megabytes ahead of this client."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    if buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    _, protocol = await loop.create_connection(lambda: TokenStream(request, measured), sock=sock)
    return protocol
