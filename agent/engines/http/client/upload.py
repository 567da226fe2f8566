"""A request on its way into the engine's socket."""

import asyncio

from agent.engines.backend import BackendBody, BackendError, BackendTimeout
from agent.engines.http.client.exchange import EngineExchange
from shared.protocol.errors import ErrorCode

REPLAY_BYTES = 64 * 1024
"""A request up to here can be sent again when a kept connection turns out to be closed."""

_LAST_CHUNK = b"0\r\n\r\n"


class RequestBodyBroken(BackendError):
    """The request's body is not as long as its head says."""

    code = ErrorCode.PROTOCOL_ERROR


class EngineUpload:
    """``head`` is all that precedes the body, its framing among it: ``length_bytes`` of body follow, or, with
    None, chunks. ``body`` None: nothing follows.

    What is there of the body leaves together with the head, in one write. :meth:`begin` does as much as can
    be done without waiting, :meth:`rest` what is left. The body is told that bytes were taken once the socket
    has room for more. A socket that takes nothing for ``stall_s`` is an :class:`BackendTimeout`.
    """

    def __init__(
        self, head: bytes, body: BackendBody | None, *, length_bytes: int | None, stall_s: float | None
    ) -> None:
        self._head = head
        self._body = body
        self._length_bytes = length_bytes
        self._stall_s = stall_s
        self._sent_bytes = 0
        """Of the body."""
        self._untaken_bytes = 0
        self._wire = b""
        """All that was written, as long as it is short enough to be written again."""
        self.ended = False
        """All of the request has been handed to the socket."""
        self.replayable = True

    def begin(self, exchange: EngineExchange) -> bool:
        """Writes what is there. True: the request is whole and the socket took it.

        A second call, with another exchange, begins anew. Raises :class:`RequestBodyBroken`.
        """
        if self._wire:
            return self._written(exchange.write(self._wire))
        return self._write(exchange, self._head)

    async def rest(self, exchange: EngineExchange) -> None:
        """Writes what is still to come as it comes. Raises :class:`RequestBodyBroken`, EngineTimeout."""
        await self._drained(exchange)
        while not self.ended:
            assert self._body is not None
            await self._body.more()
            if not self._write(exchange, b""):
                await self._drained(exchange)

    def _write(self, exchange: EngineExchange, before: bytes) -> bool:
        data = before + self._next()
        self.replayable = self.replayable and len(self._wire) + len(data) <= REPLAY_BYTES
        self._wire = self._wire + data if self.replayable else b""
        return self._written(exchange.write(data))

    def _written(self, drained: bool) -> bool:
        if drained:
            self._take()
        return drained and self.ended

    def _next(self) -> bytes:
        """What is there of the body, framed; the end of it too when it is known."""
        if self._body is None:
            self.ended = True
            return b""
        data = self._body.take()
        self._sent_bytes += len(data)
        self._untaken_bytes += len(data)
        self.ended = self._body.ended
        if self._length_bytes is not None:
            self._check_length(self._length_bytes)
            return data
        framed = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return framed + _LAST_CHUNK if self.ended else framed

    def _check_length(self, length_bytes: int) -> None:
        if self._sent_bytes > length_bytes:
            raise RequestBodyBroken(f"the request's body is longer than its {length_bytes} bytes")
        if self.ended and self._sent_bytes < length_bytes:
            raise RequestBodyBroken(
                f"the request's body ended after {self._sent_bytes} of {length_bytes} bytes"
            )

    async def _drained(self, exchange: EngineExchange) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await exchange.drained()
        except TimeoutError:
            raise BackendTimeout(f"the engine took nothing of the request for {self._stall_s:g} s") from None
        self._take()

    def _take(self) -> None:
        if self._body is not None and self._untaken_bytes:
            self._body.taken(self._untaken_bytes)
            self._untaken_bytes = 0
