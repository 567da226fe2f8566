"""From a record to what can be done with it: the one place that knows the reader of every route."""

from collections.abc import Mapping

from gateway.continuation.chunks import read_chat, read_completions
from gateway.continuation.errors import NotContinuable
from gateway.continuation.interface import Progress
from gateway.continuation.messages import read_messages
from gateway.continuation.progress import Reader
from gateway.continuation.record import Record
from gateway.continuation.responses import read_responses

_READERS: Mapping[str, Reader] = {
    "chat": read_chat,
    "completions": read_completions,
    "messages": read_messages,
    "responses": read_responses,
}


MOST_EVENTS = 8192
"""Of an answer that is read when its engine is lost: each takes some microseconds of the event loop. A
mebibyte, which is what is kept by default, holds fewer unless they are almost empty."""


def read_progress(
    route: str, request_body: bytes, record: Record, *, usage_wanted: bool | None = None
) -> Progress:
    """How far the answer in ``record`` came. Raises :class:`NotContinuable` when it cannot go on.

    ``usage_wanted``: whether the client gets to see the usage of a chat or completion stream; None: as the
    body says, which is not what the client said when the gateway itself added the option.
    """
    reader = _READERS.get(route)
    if reader is None:
        raise NotContinuable(f"answers of the route {route!r} cannot go on at another engine")
    if record.overflowed:
        raise NotContinuable("the answer was too large to be kept, or in a form that was not understood")
    if not request_body:
        raise NotContinuable("the request was not kept")
    if record.data.count(b"data:") > MOST_EVENTS:
        raise NotContinuable(f"the answer has more than {MOST_EVENTS} events")
    return reader(request_body, record.data, usage_wanted)
