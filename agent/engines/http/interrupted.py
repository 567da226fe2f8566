"""Detects responses that an engine broke off because another request came.

llama-cpp-python then sends ``[DONE]`` without a finish reason and closes the connection, which a client takes
for a whole response. The agent takes it for a failure of the engine, so that the response is continued on
another engine or its client gets an error.
"""

import re

from agent.engines.backend import BackendFailed, ResponseReceiver
from shared.protocol.messages import Headers

_DONE = re.compile(rb"(?<=[\r\n])data: ?\[DONE\]")
_FINISHED = re.compile(rb'"finish_reason"\s*+:\s*+"[^"]')
"""In a JSON string quotes and line ends are escaped, so no text looks like either."""
_OVERLAP_BYTES = 64
"""A mark may have begun in the piece before."""


class InterruptionDetector:
    """A :class:`ResponseReceiver` that hands on to ``receiver``, and fails where a stream ends without a
    finish reason."""

    def __init__(self, receiver: ResponseReceiver) -> None:
        self._receiver = receiver
        self.on_over = receiver.on_over
        self.on_progress, self.tells_progress = receiver.on_progress, receiver.tells_progress
        self._stream = False
        self._finished = False
        self._before = b"\n"
        """The last of what came, and before that the end of a line."""

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> None:
        kind = dict(headers).get("content-type", "")
        self._stream = kind.lower().startswith("text/event-stream") and status == 200
        self._receiver.on_response(status, headers)

    def on_body(self, piece: bytes) -> bool:
        """Raises :class:`BackendFailed` instead of giving the end of an answer that was interrupted."""
        if not self._stream:
            return self._receiver.on_body(piece)
        text = self._before + piece
        done = None if self._finished else _DONE.search(text)
        said = text if done is None else text[: done.start()]
        self._finished = self._finished or _FINISHED.search(said) is not None
        new = said[len(self._before) :]
        self._before = text[-_OVERLAP_BYTES:]
        if done is None or self._finished:
            return self._receiver.on_body(piece)
        if new:
            self._receiver.on_body(new)
        raise BackendFailed("the engine broke its answer off because somebody else called it")
