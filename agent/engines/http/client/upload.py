"""A request on its way into the engine's socket."""

import asyncio
from dataclasses import dataclass, field

from agent.engines.backend import BackendBody, BackendError, BackendTimeout
from agent.engines.http.client.connection import EngineConnection
from shared.protocol.errors import ErrorCode

REPLAY_BYTES = 64 * 1024
"""A request up to here can be sent again when a kept connection turns out to be closed."""

_LAST_CHUNK = b"0\r\n\r\n"


class RequestBodyBroken(BackendError):
    """The request's body is not as long as its head says."""

    code = ErrorCode.PROTOCOL_ERROR


class NoBody:
    """Implements :class:`agent.engines.backend.BackendBody`."""

    ended = True

    def take(self) -> bytes:
        return b""

    def taken(self, size_bytes: int) -> None: ...
    async def more(self) -> None: ...


@dataclass
class EngineUpload:
    """``head`` is all that precedes the body, its framing among it: ``length_bytes`` of body follow, or, with
    None, chunks.

    What is there of the body leaves together with the head, in one write. :meth:`begin` does as much as can
    be done without waiting, :meth:`rest` what is left. The body is told that bytes were taken once the socket
    has room for more. A socket that takes nothing for ``stall_s`` is an :class:`BackendTimeout`.
    """

    head: bytes
    body: BackendBody
    length_bytes: int | None
    stall_s: float | None
    ended: bool = field(default=False, init=False)
    """All of the request has been handed to the socket."""
    replayable: bool = field(default=True, init=False)
    _sent_bytes: int = field(default=0, init=False)
    """Bytes of the body that were sent, where its length is known."""
    _untaken_bytes: int = field(default=0, init=False)
    _wire: bytes = field(default=b"", init=False)
    """All that was written, as long as it is short enough to be written again."""

    def begin(self, connection: EngineConnection) -> bool:
        """Writes what is there. True: the request is whole and the socket took it.

        A second call, with another connection, begins anew. Raises :class:`RequestBodyBroken`.
        """
        return self._write(connection, self._wire or self.head + self._next(), b"")

    async def rest(self, connection: EngineConnection) -> None:
        """Writes what is still to come as it comes. Raises :class:`RequestBodyBroken`, EngineTimeout."""
        await self._drained(connection)
        while not self.ended:
            await self.body.more()
            data = self._next()
            if not self._write(connection, data, self._wire):
                await self._drained(connection)

    def _write(self, connection: EngineConnection, data: bytes, before: bytes) -> bool:
        if self.replayable and len(before) + len(data) <= REPLAY_BYTES:
            self._wire = before + data
        else:
            self.replayable, self._wire = False, b""
        connection.transport.write(data)
        if connection.full:
            return False
        if self._untaken_bytes:
            self._take()
        return self.ended

    def _next(self) -> bytes:
        """What is there of the body, framed; the end of it too when it is known."""
        body, length_bytes = self.body, self.length_bytes
        data = body.take()
        size_bytes = len(data)
        self._untaken_bytes += size_bytes
        ended = self.ended = body.ended
        if length_bytes is None:
            framed = b"%x\r\n%b\r\n" % (size_bytes, data) if data else b""
            return framed + _LAST_CHUNK if ended else framed
        sent_bytes = self._sent_bytes = self._sent_bytes + size_bytes
        if sent_bytes > length_bytes:
            raise RequestBodyBroken(f"the request's body is longer than its {length_bytes} bytes")
        if ended and sent_bytes < length_bytes:
            raise RequestBodyBroken(f"the request's body ended after {sent_bytes} of {length_bytes} bytes")
        return data

    async def _drained(self, connection: EngineConnection) -> None:
        try:
            async with asyncio.timeout(self.stall_s):
                await connection.drained()
        except TimeoutError:
            raise BackendTimeout(f"the engine took nothing of the request for {self.stall_s:g} s") from None
        if self._untaken_bytes:
            self._take()

    def _take(self) -> None:
        self.body.taken(self._untaken_bytes)
        self._untaken_bytes = 0
