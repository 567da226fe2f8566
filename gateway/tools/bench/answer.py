"""One answer as its bytes come: counted and timed, hardly looked at."""

from collections import deque
from typing import Any

import orjson

from gateway.tools.bench.plan import RequestFailed
from shared.process.excerpt import shortened

_EVENT = b"\ndata:"
_DONE = b"data: [DONE]"
_LAST_PIECES = 8
"""The end of a stream: its last token, its usage and ``[DONE]`` may come as pieces of their own."""
_HEAD_BYTES = 65_536
_ERROR_BYTES = 16_384
_OUTPUT = ("content", "reasoning_content", "reasoning", "tool_calls", "text")


class EventCounter:
    """Counts the events of a stream (lines that begin with ``data:``), wherever the pieces are cut."""

    def __init__(self) -> None:
        self._carried = b"\n"

    def feed(self, piece: bytes) -> int:
        """How many events begin in it; one that began with the last bytes of the former piece counts here."""
        text = self._carried + piece
        self._carried = text[1 - len(_EVENT) :]
        return text.count(_EVENT)


class BenchAnswer:
    """One answer. ``events`` are those of a stream that carry tokens, as far as bytes tell; ``first`` is true
    from the first one that carries output on, not with one that only names the role."""

    def __init__(self, *, streamed: bool) -> None:
        self._streamed = streamed
        self._counter = EventCounter()
        self._head = bytearray()
        self._last: deque[bytes] = deque(maxlen=_LAST_PIECES)
        self.first = False

    def feed(self, piece: bytes) -> int:
        """How many events it brought; 0 for an answer that is no stream, and until output begins."""
        self._last.append(piece)
        if not self._streamed:
            return 0
        count = self._counter.feed(piece)
        return count if self.first else self._look_for_output(piece)

    def _look_for_output(self, piece: bytes) -> int:
        """Events with output in what came so far, which is the only part of a stream that is read."""
        self._head += piece
        *whole, rest = bytes(self._head).replace(b"\r\n", b"\n").split(b"\n\n")
        for index, event in enumerate(whole):
            if _has_output(event):
                self.first = True
                self._head.clear()
                return len(whole) - index + (1 if rest.startswith(b"data:") else 0)
        self._head = bytearray(rest)
        if len(self._head) > _HEAD_BYTES:
            raise RequestFailed("malformed", "a streamed answer began with an endless event")
        return 0

    def value(self) -> dict[str, Any] | None:
        """The JSON of a short answer that is no stream; None if it is none."""
        return _loads(b"".join(self._last))

    def usage(self) -> tuple[int, int] | None:
        """Prompt and completion tokens as the server counted them, at the end.

        Raises RequestFailed for a stream that ended with an error, or with neither a finish reason nor
        ``[DONE]``.
        """
        if not self._streamed:
            value = self.value()
            return _usage_of(value) if value is not None else None
        found, done = None, False
        for line in b"".join(self._last).splitlines():
            value = _loads(line[5:]) if line.startswith(b"data:") else None
            done = done or line.startswith(_DONE) or (value is not None and _says_why(value))
            if value is not None and value.get("error"):
                raise failure_of("stream", value["error"])
            found = (_usage_of(value) if value is not None else None) or found
        if not done:
            raise RequestFailed("unfinished", "a streamed answer ended without a finish reason or [DONE]")
        return found


def status_failure(status: int, body: bytes) -> RequestFailed:
    """What an answer that is not 200 says."""
    value = _loads(body[:_ERROR_BYTES])
    error = value.get("error") if value is not None else None
    if error is None:
        error = shortened(body[:_ERROR_BYTES].decode("utf-8", "replace"))
    return failure_of(f"HTTP {status}", error)


def failure_of(where: str, error: object) -> RequestFailed:
    """An error in OpenAI's shape; its ``code`` makes part of the kind."""
    if not isinstance(error, dict):
        return RequestFailed(where, shortened(str(error)))
    code = error.get("code") or error.get("type")
    kind = f"{where} {str(code)[:40]}" if code else where
    return RequestFailed(kind, shortened(str(error.get("message", ""))))


def _has_output(event: bytes) -> bool:
    """Whether it carries some of the answer; an event that cannot be read does."""
    start = event.find(b"data:")
    if start < 0:
        return False
    value = _loads(event[start + 5 :])
    if value is None or not isinstance(value.get("choices"), list):
        return value is None and not event.startswith(_DONE)
    for choice in value["choices"]:
        part = choice.get("delta", choice) if isinstance(choice, dict) else {}
        if isinstance(part, dict) and any(part.get(name) for name in _OUTPUT):
            return True
    return False


def _says_why(value: dict[str, Any]) -> bool:
    """Whether it says why an answer ends. Some servers send nothing after that."""
    choices = value.get("choices")
    given = choices if isinstance(choices, list) else []
    return any(isinstance(choice, dict) and choice.get("finish_reason") for choice in given)


def _loads(text: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _usage_of(value: dict[str, Any]) -> tuple[int, int] | None:
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    return (prompt, completion) if isinstance(prompt, int) and isinstance(completion, int) else None
