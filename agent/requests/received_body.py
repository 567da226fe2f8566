"""A request's body on its way from the gateway to the engine."""

import asyncio

from shared.protocol.endpoint import Stream
from shared.protocol.messages import Trailers


class ReceivedBody:
    """What has come of the body of ``stream``. Implements :class:`agent.engines.backend.BackendBody` and
    the part of :class:`shared.protocol.stream_handler.StreamHandler` that concerns a body. The request whose
    body it is sets the attributes."""

    __slots__ = ("_complete", "_moved", "_over", "_pieces", "ended", "stream", "untaken_bytes")

    _complete: bool
    """All of it has come."""
    _moved: asyncio.Event | None
    """There while more of it is waited for, or was."""
    _over: bool
    """Nobody reads it any more: what comes counts as consumed."""
    _pieces: list[bytes]
    """Never more than was credited."""
    ended: bool
    stream: Stream
    untaken_bytes: int
    """Received and not yet said consumed."""

    # --- what the session says

    def on_data(self, data: bytes) -> None:
        if self._over:
            self.stream.consumed(len(data))
            return
        self._pieces.append(data)
        self.untaken_bytes += len(data)
        if self._moved is not None:
            self._moved.set()

    def on_end(self, trailers: Trailers | None) -> None:
        self._complete = True
        self.ended = not self._pieces
        if self._moved is not None:
            self._moved.set()

    # --- what the engine's side asks

    def drop(self) -> None:
        """Discard what was not taken: no reader is left."""
        self._pieces = []
        self.taken(self.untaken_bytes)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self.ended = self._complete
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def taken(self, size_bytes: int) -> None:
        self.untaken_bytes -= size_bytes
        self.stream.consumed(size_bytes)

    async def more(self) -> None:
        while not self._pieces and not self._complete:
            self._moved = self._moved or asyncio.Event()
            self._moved.clear()
            await self._moved.wait()
