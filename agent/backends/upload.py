"""A request's body on its way into the engine's socket."""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import payload
from aiohttp.abc import AbstractStreamWriter

from agent.backends.base import EngineError, EngineTimeout
from shared.errors import ErrorCode


class RequestBodyBroken(EngineError):
    """The request's body is not as long as its head says."""

    code = ErrorCode.PROTOCOL_ERROR


class Upload(payload.Payload):
    """Passes ``body`` on piece by piece, asking for the next one once the socket took the last.

    ``length_bytes`` is what the head declares; None makes aiohttp send it chunked. ``error`` is why it
    could not be sent: aiohttp hides exceptions of a payload behind its own.
    """

    _autoclose = True

    def __init__(
        self,
        body: AsyncIterator[bytes],
        *,
        length_bytes: int | None,
        stall_s: float | None,
        first: bytes = b"",
    ) -> None:
        super().__init__(body, content_type="application/octet-stream")
        self.error: EngineError | None = None
        self._size = length_bytes
        self._first = first
        self._body = body
        self._stall_s = stall_s
        self._transport: asyncio.WriteTransport | None = None

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a streamed body cannot be decoded")

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._consumed = True
        self._transport = writer.transport
        try:
            sent_bytes = 0
            if self._first:
                sent_bytes += await self._write(writer, self._first, sent_bytes)
            async for piece in self._body:
                sent_bytes += await self._write(writer, piece, sent_bytes)
            if self._size is not None and sent_bytes != self._size:
                raise RequestBodyBroken(f"the request's body ended after {sent_bytes} of {self._size} bytes")
        except EngineError as error:
            self.error = error
            raise

    async def _write(self, writer: AbstractStreamWriter, piece: bytes, sent_bytes: int) -> int:
        if self._size is not None and sent_bytes + len(piece) > self._size:
            raise RequestBodyBroken(f"the request's body is longer than its {self._size} bytes")
        try:
            async with asyncio.timeout(self._stall_s):
                await writer.write(piece)
                await writer.drain()
        except TimeoutError:
            raise EngineTimeout(f"the engine took nothing of the request for {self._stall_s:g} s") from None
        return len(piece)

    def abort(self) -> None:
        """Cut the connection, whatever is still waiting to be written. Safe at any time."""
        if self._transport is not None:
            self._transport.abort()
