"""Detects responses that an engine broke off because another request came.

llama-cpp-python then sends ``[DONE]`` without a finish reason and closes the connection, which a client takes
for a whole response. The agent takes it for a failure of the engine, so that the response is continued on
another engine or its client gets an error.
"""

import re
from collections.abc import Callable

from agent.engines.backend import BackendFailed, BackendResponse

_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
_FINISHED = re.compile(rb'"finish_reason"\s*+:\s*+"[^"]')
"""In a JSON string quotes and line ends are escaped, so no text looks like either."""
_OVERLAP_BYTES = 64
"""A mark may have begun in the piece before."""


class InterruptionDetector:
    """A :class:`BackendResponse` that fails where the stream of ``response`` ends without a finish reason."""

    def __init__(self, response: BackendResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self._response = response
        kind = dict(response.headers).get("content-type", "")
        self._stream = kind.lower().startswith("text/event-stream") and response.status == 200
        self._finished = False
        self._before = b""

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        """Raises :class:`BackendFailed` instead of giving the end of an answer that was interrupted."""
        await self._response.pour(lambda piece: self._take(piece, take) if self._stream else take(piece))

    def resume(self) -> None:
        self._response.resume()

    def _take(self, piece: bytes, take: Callable[[bytes], bool]) -> bool:
        done = None if self._finished else _DONE.search(piece)
        before = piece if done is None else piece[: done.start()]
        self._finished = self._finished or _FINISHED.search(self._before + before) is not None
        self._before = (self._before + piece)[-_OVERLAP_BYTES:]
        if done is None or self._finished:
            return take(piece)
        if before:
            take(before)
        raise BackendFailed("the engine broke its answer off because somebody else called it")
