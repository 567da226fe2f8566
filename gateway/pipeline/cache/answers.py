"""Answers as the relay takes them: cached ones, those read whole before anybody gets them, those recorded as
they pass. Each is a :class:`gateway.pipeline.relay.Response`."""

import re
from collections.abc import Callable

from gateway.dispatch.request_heads import is_encoded, is_event_stream
from gateway.dispatch.response_stream import Sink
from gateway.pipeline.body_response import BodyResponse
from gateway.pipeline.cache.cache import CachedAnswer
from gateway.pipeline.relay import Response
from shared.protocol.messages import Headers, Trailers

_ERROR = re.compile(rb'(?:^|[\r\n])(?:data: ?)?\{\s*"(?:error"\s*:\s*[^n\s]|object"\s*:\s*"error")|"abort"')
"""What engines write under status 200 of a request that failed, or was ended by somebody."""

_ENDS = {"chat": b"[DONE]", "completions": b"[DONE]", "responses": b"response.completed"}
_TAIL_BYTES = 256
"""Of a stream of chat or completions, where its end is said."""


def is_shareable(status: int, headers: Headers, *, streaming: bool) -> bool:
    """Whether an answer with this head may serve others, if its body is complete."""
    if status != 200 or is_encoded(headers) or is_event_stream(headers) != streaming:
        return False
    return not any(name == "cache-control" and "no-store" in value.lower() for name, value in headers)


def is_complete(body: bytes, route: str, *, streaming: bool) -> bool:
    """Whether a whole body says nothing of a failure and, of a stream, how it ended."""
    if not body or _reports_failure(body):
        return False
    if not streaming:
        return True
    tail = body if route == "responses" else body[-_TAIL_BYTES:]
    return route in _ENDS and _ENDS[route] in tail


def _reports_failure(body: bytes) -> bool:
    """Looked for twice, because the first look is much the quicker and nearly always enough."""
    return (b'"error"' in body or b'"abort"' in body) and _ERROR.search(body) is not None


def content_headers(headers: Headers) -> Headers:
    """Those that describe the content, without its length."""
    return tuple(each for each in headers if each[0].startswith("content-") and each[0] != "content-length")


class CachedResponse(BodyResponse):
    """An entry of the cache as a response. Nothing was computed for it: there are no trailers."""

    queue_s = 0.0
    attempts = 0
    ran_by = ""
    trailers: Trailers | None = None
    continued = False

    def __init__(self, entry: CachedAnswer) -> None:
        super().__init__(entry.body)
        self.headers: Headers = entry.headers
        if not is_event_stream(entry.headers):
            self.headers = (*entry.headers, ("content-length", str(len(entry.body))))
        self.agent = entry.agent
        self.version = entry.version


class _Wrapped:
    """A response with something added; the rest is the inner one's."""

    def __init__(self, inner: Response) -> None:
        self.inner = inner
        self.status = inner.status
        self.headers = inner.headers
        self.agent = inner.agent
        self.ran_by = inner.ran_by
        self.version = inner.version
        self.queue_s = inner.queue_s
        self.attempts = inner.attempts

    @property
    def continued(self) -> bool:
        return self.inner.continued

    @property
    def trailers(self) -> Trailers | None:
        return self.inner.trailers

    def take_whole(self) -> bytes | None:
        """None: what is read passes through :meth:`next_chunks`."""
        return None

    def abort(self) -> None:
        self.inner.abort()


class ReadAhead(_Wrapped):
    """A response of which ``chunks`` were read, and said to be consumed, before anybody else reads it."""

    def __init__(self, inner: Response, chunks: list[bytes], release: Callable[[], None]) -> None:
        """``release`` is called when nobody holds ``chunks`` any more; it is idempotent."""
        super().__init__(inner)
        self._chunks = chunks
        self._release = release
        self._paid_bytes = sum(map(len, chunks))

    async def next_chunks(self, sink: Sink | None = None) -> list[bytes]:
        """What was read first, then the rest."""
        if self._chunks:
            chunks, self._chunks = self._chunks, []
            return chunks
        self._release()
        return await self.inner.next_chunks(sink)

    def consumed(self, size_bytes: int) -> None:
        paid_bytes = min(size_bytes, self._paid_bytes)
        self._paid_bytes -= paid_bytes
        if size_bytes > paid_bytes:
            self.inner.consumed(size_bytes - paid_bytes)

    def abort(self) -> None:
        self._chunks = []
        self._release()
        super().abort()


class Recording(_Wrapped):
    """A response whose body is kept as it passes, while there is room for it.

    ``grow`` says whether there is room for so many bytes more; ``ended`` is called once, with the whole body
    when the response ended in order and all of it was kept, else with None.
    """

    def __init__(
        self, inner: Response, grow: Callable[[int], bool], ended: Callable[[bytes | None], None]
    ) -> None:
        super().__init__(inner)
        self._grow = grow
        self._ended: Callable[[bytes | None], None] | None = ended
        self._pieces: list[bytes] = []

    async def next_chunks(self, sink: Sink | None = None) -> list[bytes]:
        chunks = await self.inner.next_chunks(None if sink is None else self._recording(sink))
        if self._ended is not None:
            for chunk in chunks:
                self._record(chunk)
            if not chunks:
                self._finish(b"".join(self._pieces))
        return chunks

    def consumed(self, size_bytes: int) -> None:
        self.inner.consumed(size_bytes)

    def abort(self) -> None:
        self._finish(None)
        super().abort()

    def _recording(self, sink: Sink) -> Sink:
        if self._ended is None:
            return sink

        def take(data: bytes) -> bool:
            taken = sink(data)
            if taken:
                self._record(data)
            return taken

        return take

    def _record(self, data: bytes) -> None:
        if self._ended is None:
            return
        if self._grow(len(data)):
            self._pieces.append(data)
        else:
            self._finish(None)

    def _finish(self, body: bytes | None) -> None:
        ended, self._ended = self._ended, None
        self._pieces = []
        if ended is not None:
            ended(None if self.inner.continued else body)
