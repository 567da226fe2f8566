"""A response whose body is in memory as a whole: one from the cache, or one that was put together."""

from gateway.dispatch.response_stream import READ_BYTES, Sink


class BodyResponse:
    """The body's part of a :class:`gateway.pipeline.relay.Response`; heads and trailers are of the heirs."""

    status = 200

    def __init__(self, body: bytes) -> None:
        self._left = body

    def take_whole(self) -> bytes | None:
        """All of it, unless it is long."""
        return None if len(self._left) > READ_BYTES else self._take()

    async def next_chunks(self, sink: Sink | None = None) -> list[bytes]:
        """All of it, then the end."""
        body = self._take()
        return [body] if body else []

    def consumed(self, size_bytes: int) -> None:
        """Nothing to do: the body is in memory, so no sender waits for credit."""

    def abort(self) -> None:
        """The client is gone."""
        self._left = b""

    def _take(self) -> bytes:
        body, self._left = self._left, b""
        return body
