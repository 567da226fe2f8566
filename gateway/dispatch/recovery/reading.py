"""From a record to what can be done with it: the one place that knows the reader of every route."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import structlog

from gateway.dispatch.recovery.chunks import ChunksRead
from gateway.dispatch.recovery.continued_request import AnswerProgress, AnswerRead
from gateway.dispatch.recovery.editing import NotContinuable
from gateway.dispatch.recovery.messages import MessagesRead
from gateway.dispatch.recovery.original_request import OriginalRequest
from gateway.dispatch.recovery.record import HELD_BYTES, AnswerRecord
from gateway.dispatch.recovery.responses import ResponsesRead
from shared.process.server_sent_events import each_event, last_event_end

MOST_EVENTS = 8192
"""The most events of an answer that are read when its engine is lost. A mebibyte, the default limit of a
record, holds fewer unless they are almost empty."""

SLICE_BYTES = 4 * 1024
"""How much of an answer is read in one slice, unless an event is longer: some twenty events with a token
each, which take 0.1 ms, or almost empty ones for some milliseconds."""

EVENT_US = 7
"""What reading an event takes."""

LINE_US = 1
"""What each of its lines takes besides."""

KIB_US = 20
"""What reading a kibibyte takes besides."""

NOT_READ = "how far it came could not be read"

_log = structlog.get_logger(__name__)


_READERS: Mapping[str, Callable[[], AnswerRead]] = {
    "chat": ChunksRead,
    "completions": partial(ChunksRead, chat=False),
    "messages": MessagesRead,
    "responses": ResponsesRead,
}
"""The reader of events of each route."""


class ContinuationReading:
    """How far one answer came, found out a slice at a time.

    What was read need not be read again: after more of the answer came, it goes on with that.
    ``usage_wanted``: whether the client gets to see the usage of a chat or completion stream; None: as the
    body says, which is not what the client said when the gateway itself added the option.
    """

    def __init__(
        self, route: str, request_body: bytes, record: AnswerRecord, *, usage_wanted: bool | None = None
    ) -> None:
        self._route = route
        self._body = request_body
        self._record = record
        self._usage_wanted = usage_wanted
        self._received = _READERS[route]() if route in _READERS else None
        self._original = OriginalRequest(request_body)
        self._asking: Iterator[int] | None = self._original.read()
        """What is left to read of the request."""
        self._place = 0
        """So far the record has been read."""
        self._events = 0
        self._refusal: str | None = None

    @property
    def left_bytes(self) -> int:
        """Bytes of the request and the answer that are still to be read."""
        asking_bytes = len(self._body) if self._asking is not None else 0
        return asking_bytes + self._record.size_bytes - self._place

    @property
    def nearly_done(self) -> bool:
        """What is left to read is no more than a slice."""
        left = self._asking is not None or self.left_bytes > SLICE_BYTES
        return not left or self._why_not() is not None

    def step(self) -> int:
        """Read the next slice. Gives some microseconds that it took; 0 when there is nothing left to read.
        Raises nothing: an answer that cannot be read cannot go on elsewhere, and :meth:`progress` says so."""
        try:
            return self._step()
        except Exception:
            _log.exception("reading_failed")
            self._refusal = NOT_READ
            return 0

    def _step(self) -> int:
        if self._why_not() is not None:
            return 0
        if self._asking is not None:
            return self._ask(self._asking)
        return self._read_slice()

    def progress(self) -> AnswerProgress:
        """How far it came, when what is left has been read too. Raises :class:`NotContinuable`."""
        while self.step():
            pass
        refusal = self._why_not()
        if refusal is not None:
            raise NotContinuable(refusal)
        assert self._received is not None
        return self._received.copy().progress(self._original, self._usage_wanted)

    def _why_not(self) -> str | None:
        """Why reading on is of no use, as far as is known."""
        if self._received is None:
            return f"answers of the route {self._route!r} cannot go on at another engine"
        if self._record.overflowed:
            return "the answer was too large to be kept, or in a form that was not understood"
        if not self._body:
            return "the request was not kept"
        return self._refusal

    def _ask(self, asking: Iterator[int]) -> int:
        try:
            return next(asking)
        except StopIteration:
            self._asking = None
            return 1
        except NotContinuable as error:
            self._asking, self._refusal = None, str(error)
            return 1 + self._original.cost_us

    def _read_slice(self) -> int:
        data = self._record.data
        if self._place >= len(data):
            return 0
        piece = data[self._place : _slice_end(data, self._place)]
        self._place += len(piece)
        events = list(each_event(piece))
        self._events += sum(event.data is not None for event in events)
        if self._events > MOST_EVENTS:
            self._refusal = f"the answer has more than {MOST_EVENTS} events"
            events = []
        assert self._received is not None
        for event in events:
            self._received.read(event)
        lines = piece.count(b"\n") + piece.count(b"\r")
        return 1 + len(events) * EVENT_US + lines * LINE_US + len(piece) * KIB_US // 1024


def _slice_end(data: bytes, start: int) -> int:
    """Where a slice that begins at ``start`` ends: behind the last event within it, or its only one."""
    size_bytes = SLICE_BYTES
    while start + size_bytes < len(data):
        end = last_event_end(data[start : start + size_bytes], 0)
        if end:
            return start + end
        size_bytes += HELD_BYTES
    return len(data)
