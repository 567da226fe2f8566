"""A request on its way into the engine's socket."""

import asyncio

from agent.engines.backend import BackendBody, BackendError, BackendTimeout
from agent.engines.http.client.connection import EngineConnection
from agent.engines.settings import EngineTimeouts
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


class EngineUpload:
    """The part of a call that sends its request. ``_start`` is all that precedes the ``_body``, its framing
    among it: ``_length_bytes`` of body follow, or, with None, chunks. The call sets these,
    and whatever else has no value here: at first nothing was sent.

    What is there of the body leaves together with the head, in one write. :meth:`_send_over` does as much as
    can be done without waiting, :meth:`_send_more` what is left. The body is told that bytes were taken once
    the socket has room for more. A socket that takes nothing for ``idle_s`` of the ``_timeouts`` is an
    :class:`BackendTimeout`.
    """

    _body: BackendBody
    _length_bytes: int | None
    _replayable: bool
    _all_sent = False
    """All of the request has been handed to the socket."""
    _sent_bytes: int
    """Bytes of the body that were sent, where its length is known."""
    _start: bytes
    _timeouts: EngineTimeouts
    _untaken_bytes: int
    _wire: bytes
    """All that was written, as long as it is short enough to be written again."""

    async def _send_more(self, connection: EngineConnection) -> None:
        """Writes what is still to come as it comes. Raises :class:`RequestBodyBroken`, EngineTimeout."""
        await self._drained(connection)
        while not self._all_sent:
            await self._body.more()
            data = self._next()
            if not self._write(connection, data, self._wire):
                await self._drained(connection)

    def _write(self, connection: EngineConnection, data: bytes, before: bytes) -> bool:
        if self._replayable and len(before) + len(data) <= REPLAY_BYTES:
            self._wire = before + data
        else:
            self._replayable, self._wire = False, b""
        connection.transport.write(data)
        if connection.full:
            return False
        if self._untaken_bytes:
            self._take()
        return self._all_sent

    def _next(self) -> bytes:
        """What is there of the body, framed; the end of it too when it is known."""
        body, length_bytes = self._body, self._length_bytes
        data = body.take()
        size_bytes = len(data)
        self._untaken_bytes += size_bytes
        ended = self._all_sent = body.ended
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
        """Raises BackendTimeout."""
        stall_s, transport = self._timeouts.idle_s, connection.transport
        left_bytes = transport.get_write_buffer_size() if connection.full else 0
        while connection.full:
            try:
                async with asyncio.timeout(stall_s):
                    await connection.drained()
                break
            except TimeoutError:
                before_bytes, left_bytes = left_bytes, transport.get_write_buffer_size()
                if left_bytes >= before_bytes:  # else it takes a long piece slowly
                    raise BackendTimeout(
                        f"the engine took nothing of the request for {stall_s:g} s"
                    ) from None
        if self._untaken_bytes:
            self._take()

    def _take(self) -> None:
        self._body.taken(self._untaken_bytes)
        self._untaken_bytes = 0
