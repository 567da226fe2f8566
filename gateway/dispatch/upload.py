"""Sends a request's body up one stream, as fast as the agent takes it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.domain.request import RequestBody
from shared.protocol.endpoint import Stream
from shared.protocol.errors import SessionClosed, StreamHalfClosed
from shared.protocol.limits import SEND_BUFFER_BYTES

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Starts a task and owns it until it is done."""


class StreamUpload:
    """One body on its way up one stream.

    What was read of the body already goes up without a task, piece by piece as the send buffer empties. The
    rest is read only then, so a request that its agent refuses can still be given to another one.
    """

    def __init__(
        self, body: RequestBody, stream: Stream, failed: Callable[[Exception], None], spawn: Spawn
    ) -> None:
        """``failed`` is told when the rest of the body could not be read."""
        self._body = body
        self._pieces = list(reversed(body.pieces))
        self._stream = stream
        self._failed = failed
        self._spawn = spawn
        self._offset = 0
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Event | None = None
        self._stopped = False

    def send_on(self) -> None:
        """The stream is open, or takes more."""
        if self._stopped:
            return
        if self._writable is not None:
            self._writable.set()
        else:
            self._send_prefix()

    def stop(self) -> None:
        """Nobody wants the rest. Idempotent."""
        self._stopped = True
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()

    def _send_prefix(self) -> None:
        pieces = self._pieces
        try:
            while pieces:
                piece = self._next_piece()
                if piece and not self._stream.send_data(piece) and (pieces or self._body.rest):
                    return
            if self._body.rest is None:
                self._stopped = True
                self._stream.end()
            else:
                self._task = self._spawn(self._send_rest())
        except (StreamHalfClosed, SessionClosed):
            self._stopped = True  # the stream's handler is told why

    def _next_piece(self) -> bytes:
        """The next bytes of what was read, as many as fit into the send buffer at most."""
        whole, size = self._pieces[-1], SEND_BUFFER_BYTES
        piece = whole[self._offset : self._offset + size]
        self._offset += len(piece)
        if self._offset >= len(whole):
            self._pieces.pop()
            self._offset = 0
        return piece

    async def _send_rest(self) -> None:
        rest = self._body.rest
        assert rest is not None
        self._writable = asyncio.Event()
        self._body.rest_begun = True
        try:
            async for chunk in rest:
                for start in range(0, len(chunk), SEND_BUFFER_BYTES):
                    if self._stopped:
                        return
                    await self._send(chunk[start : start + SEND_BUFFER_BYTES])
            if not self._stopped:
                self._stream.end()
        except (StreamHalfClosed, SessionClosed):
            pass
        except Exception as error:  # whatever the client's side raises is handed on to who awaits the answer
            if not self._stopped:
                self._failed(error)

    async def _send(self, piece: bytes) -> None:
        assert self._writable is not None
        self._writable.clear()
        if not self._stream.send_data(piece):
            await self._writable.wait()


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
