"""A request's body on its way from the gateway to the engine."""

import asyncio

from shared.protocol.endpoint import Stream


class ReceivedBody:
    """What has come of a request's body. Implements :class:`agent.engines.backend.BackendBody`."""

    __slots__ = ("_complete", "_moved", "_pieces", "_stream", "ended", "untaken_bytes")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: list[bytes] = []
        """Never more than was credited."""
        self.untaken_bytes = 0
        """Received and not yet said consumed."""
        self._complete = False
        self._moved: asyncio.Event | None = None
        self.ended = False

    def put(self, data: bytes) -> None:
        self._pieces.append(data)
        self.untaken_bytes += len(data)
        if self._moved is not None:
            self._moved.set()

    def end(self) -> None:
        self._complete = True
        self.ended = not self._pieces
        if self._moved is not None:
            self._moved.set()

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
        self._stream.consumed(size_bytes)

    async def more(self) -> None:
        while not self._pieces and not self._complete:
            self._moved = self._moved or asyncio.Event()
            self._moved.clear()
            await self._moved.wait()
