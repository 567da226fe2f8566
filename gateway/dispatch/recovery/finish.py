"""Whether an engine said why its answer ends, and what its stream lacks after that.

Some engines end the HTTP body of a streamed answer in order without the event that ends their dialect's
streams: ``transformers serve`` sends no ``[DONE]``. The answer is whole all the same once every choice in it
has its finish reason. Pure; the answer is searched by compiled patterns, and JSON is read only of the events
they find and of the answer's two ends.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from gateway.dispatch.recovery.events import DONE, read_events, written

MESSAGE_STOP = written({"type": "message_stop"}, "message_stop")

_CLOSINGS = {"chat": DONE, "completions": DONE, "messages": MESSAGE_STOP}
"""What is sent in place of what is missing. A response of ``/v1/responses`` has no finish reason but in its
last event, so nothing can be missing after it."""

_CHOICE_FINISHED = re.compile(rb'"finish_reason"\s*+:\s*+"[^"]')
_MESSAGE_FINISHED = re.compile(rb'"stop_reason"\s*+:\s*+"[^"]')
"""A reason that is not empty. In a JSON string quotes are escaped, so no text looks like it."""
_ANOTHER_CHOICE = re.compile(rb'"index"\s*+:\s*+[1-9]')
"""There may be several choices; a tool call's index looks alike."""
_LINE_FINISHED = re.compile(_CHOICE_FINISHED.pattern + rb"[^\r\n]*+")
"""With the rest of its line, so that a line is found once."""

WINDOW_BYTES = 32 * 1024
"""Of an answer with several choices its beginning and its end are read for the choices there are: one that
is not finished is in one of them, as choices take turns."""

FINISHES = 512
"""Most lines with finish reasons that are read, of an answer with several choices: one of each is enough."""

FINISHES_BYTES = 64 * 1024
"""Most bytes of such events that are read."""


def closing_of(route: str, data: bytes) -> bytes | None:
    """The events that an answer lacks whose stream ended in order after ``data``, as far as it was kept;
    None when its engine did not say of every choice why it ends."""
    closing = _CLOSINGS.get(route)
    if closing is None or not _is_finished(route, data):
        return None
    return closing


def _is_finished(route: str, data: bytes) -> bool:
    if route == "messages":
        return _MESSAGE_FINISHED.search(data) is not None
    if _CHOICE_FINISHED.search(data) is None:
        return False
    if _ANOTHER_CHOICE.search(data) is None:
        return True
    finished = set[int]()
    for line in _finishing_lines(data):
        finished |= _choices(line, finished=True)
    return finished >= _choices(data[:WINDOW_BYTES]) | _choices(data[-WINDOW_BYTES:])


def _finishing_lines(data: bytes) -> Iterator[bytes]:
    """The lines with a finish reason, as many as are read."""
    read_bytes = 0
    for found in islice(_LINE_FINISHED.finditer(data), FINISHES):
        begin = max(data.rfind(b"\n", 0, found.start()), data.rfind(b"\r", 0, found.start())) + 1
        read_bytes += found.end() - begin
        if read_bytes > FINISHES_BYTES:
            return
        yield data[begin : found.end()]


def _choices(data: bytes, *, finished: bool = False) -> set[int]:
    """The indices of the choices in the events of ``data``; only those with a finish reason if ``finished``.
    Events that are cut say nothing."""
    chunks = [event.value() for event in read_events(data) if event.data is not None]
    return {
        choice["index"]
        for chunk in chunks
        for choice in _list(chunk)
        if isinstance(choice, dict)
        and isinstance(choice.get("index"), int)
        and (choice.get("finish_reason") or not finished)
    }


def _list(chunk: dict[str, Any] | None) -> list[Any]:
    choices = None if chunk is None else chunk.get("choices")
    return choices if isinstance(choices, list) else []
