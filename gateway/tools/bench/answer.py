"""One answer as its bytes come: counted and timed, hardly looked at."""

from collections import deque
from typing import Any

import orjson

from gateway.tools.bench.plan import RequestFailed
from shared.process.excerpt import shortened
from shared.process.server_sent_events import EventTooLong, ServerSentEvent, ServerSentEventReader

_LAST = 8
"""Events at the end of a stream: its last token, its usage and ``[DONE]``."""
_WHOLE_BYTES = 16 * 2**20
"""How much is kept of an answer that is no stream: a list of models, or the embeddings of many texts."""
_ERROR_BYTES = 16_384
_OUTPUT = ("content", "reasoning_content", "reasoning", "tool_calls", "text")


class BenchAnswer:
    """One answer. Its events that carry output count; after the ``first`` of them only those are looked into
    that say why an answer ends, or how many tokens it has."""

    def __init__(self, *, streamed: bool) -> None:
        self._reader = ServerSentEventReader() if streamed else None
        self._whole = bytearray()
        self._kept = True
        """The answer is no longer than what is kept."""
        self._events: deque[ServerSentEvent] = deque(maxlen=_LAST)
        self.first = False

    def feed(self, piece: bytes) -> int:
        """How many events with output it completed; 0 for an answer that is no stream. Raises RequestFailed
        for an event that does not end."""
        if self._reader is None:
            self._kept = self._kept and len(self._whole) + len(piece) <= _WHOLE_BYTES
            if self._kept:
                self._whole += piece
            return 0
        count = 0
        try:
            for event in self._reader.feed(piece):
                if event.data is not None:
                    self._events.append(event)
                    if (self.first and not _may_be_last(event.data)) or _has_output(event):
                        self.first = True
                        count += 1
        except EventTooLong:
            raise RequestFailed("malformed", "a streamed answer has an endless event") from None
        return count

    def value(self) -> dict[str, Any] | None:
        """The JSON of an answer that is no stream; None if it is none or too long to be kept."""
        return _loads(bytes(self._whole)) if self._kept else None

    def usage(self) -> tuple[int, int] | None:
        """Prompt and completion tokens as the server counted them, at the end.

        Raises RequestFailed for a stream that ended with an error, or with neither a finish reason nor
        ``[DONE]``, and for another answer that is an error or no JSON.
        """
        if self._reader is None:
            return self._usage_of_whole()
        found, done = None, False
        for event in (*self._events, *self._reader.finish()):
            value = event.value() or {}
            done = done or event.is_done or _says_why(value)
            if value.get("error"):
                raise failure_of("stream", value["error"])
            found = _usage_of(value) or found
        if not done:
            raise RequestFailed("unfinished", "a streamed answer ended without a finish reason or [DONE]")
        return found

    def _usage_of_whole(self) -> tuple[int, int] | None:
        value = self.value()
        if value is None and self._kept:
            said = shortened(bytes(self._whole[:_ERROR_BYTES]).decode("utf-8", "replace"))
            raise RequestFailed("malformed", f"an answer is no JSON object: {said}")
        if value is None:
            return None
        if value.get("error"):
            raise failure_of("HTTP 200", value["error"])
        return _usage_of(value)


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


def _may_be_last(data: bytes) -> bool:
    """Whether an event may be without output: it says why an answer ends, or its usage, with or without a
    blank, or is no JSON. This is asked for each token, so nothing is parsed."""
    return (
        data[-1:] != b"}"
        or b'"finish_reason":"' in data
        or b'"finish_reason": "' in data
        or b'"usage":{' in data
        or b'"usage": {' in data
    )


def _has_output(event: ServerSentEvent) -> bool:
    """Whether it carries some of the answer; an event that cannot be read does."""
    value = event.value()
    if value is None or not isinstance(value.get("choices"), list):
        return value is None and not event.is_done
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
