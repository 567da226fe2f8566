"""Tells a client that asked for it how far its request's engine has come, between the events of its answer.

What is told is bounded: the newest only, a few times a second, and only while the client reads. Nothing is
told in the middle of an event or ahead of what was to be written before, so the answer is what it would be
without.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from time import monotonic
from typing import Protocol

import orjson

from gateway.api.errors import HeaderList
from gateway.domain.errors import BadRequest
from gateway.domain.request import Request
from shared.protocol.progress import Progress, newest

PROGRESS = b"x-trunkline-progress"

EVERY_S = 0.05
"""Progress is told no more often."""
RETRY_S = 0.05
"""After so long it is looked again whether an event that has come in part is whole, and the client reads."""


class ProgressForm(Enum):
    """How it is written."""

    COMMENT = b": progress %b\n\n"
    """Which every client of event streams skips that does not look for it."""
    EVENT = b"event: progress\ndata: %b\n\n"
    """For readers that know what is not the answer by the event's name, as browsers do."""


_FORMS = {
    b"1": ProgressForm.COMMENT,
    b"true": ProgressForm.COMMENT,
    b"comments": ProgressForm.COMMENT,
    b"events": ProgressForm.EVENT,
    b"0": None,
    b"false": None,
}


def progress_form(fields: Mapping[bytes, bytes]) -> ProgressForm | None:
    """What the client asks for; None: it does not. Raises BadRequest."""
    asked = fields.get(PROGRESS)
    if asked is None:
        return None
    try:
        return _FORMS[asked.strip().lower()]
    except KeyError:
        name = PROGRESS.decode()
        raise BadRequest(
            f"The header {name} is 1 or comments for comments, events for events named progress, or 0.",
            param=name,
            code="invalid_progress",
        ) from None


class Writer(Protocol):
    """The way to the client."""

    async def start(self, status: int, headers: HeaderList, *, body_follows: bool = False) -> None: ...
    async def write(self, data: bytes, *, more: bool) -> None: ...


class InterruptedReply(Protocol):
    """:class:`gateway.api.exchange.reply.Reply`."""

    @property
    def started(self) -> bool: ...
    @property
    def event_stream(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def comments(self) -> object | None:
        """There while the answer is a stream of events for sure, and has not begun."""

    def tell_progress(
        self, form: ProgressForm, *, may_begin: bool, on_delivered: Callable[[float], None]
    ) -> "ProgressWriter": ...
    def between_events(self) -> bool:
        """What went out of the body is whole events, and the client reads."""

    async def interject(self, data: bytes) -> None:
        """Write ``data``, which is whole, behind what went out, and the head first if need be."""


class ProgressWriter:
    """Owns the timer and the task that tell of one request, and the order of all that is written: it stands
    between the reply and its ``writer``. No task exists between two of what it tells."""

    def __init__(
        self,
        reply: InterruptedReply,
        writer: Writer,
        form: ProgressForm,
        *,
        may_begin: bool,
        on_delivered: Callable[[float], None],
    ) -> None:
        """``may_begin``: the answer is a stream of events for sure, and progress may be the first of it.
        ``on_delivered`` is called with the seconds from what was told here to its writing."""
        self._reply = reply
        self._writer = writer
        self._form = form
        self._may_begin = may_begin
        self._on_delivered = on_delivered
        self._newest: Progress | None = None
        """Not told yet."""
        self._since_s = 0.0
        """When that came."""
        self._loop = asyncio.get_running_loop()
        self._order = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def tell(self, progress: Progress) -> None:
        """The newest; it takes the place of what was not told yet. A preview stays the newest until there is
        a newer one."""
        if self._stopped:
            return
        self._newest, self._since_s = newest(self._newest, progress), monotonic()
        if self._timer is None:
            self._begin()

    def stop(self) -> None:
        """Nothing more is told."""
        self._stopped, self._newest = True, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        """Nothing more is told, and nothing is being written."""
        self.stop()
        if self._task is not None:
            await self._task

    # --- What the reply writes ---

    async def start(self, status: int, headers: HeaderList, *, body_follows: bool = False) -> None:
        """See :class:`Writer`."""
        async with self._order:
            await self._writer.start(status, headers, body_follows=body_follows)
        if not self._reply.event_stream:
            self.stop()
        elif self._newest is not None and self._timer is None:
            self._begin()

    async def write(self, data: bytes, *, more: bool) -> None:
        """See :class:`Writer`."""
        if not more:
            self.stop()
        async with self._order:
            await self._writer.write(data, more=more)

    # --- What is told ---

    def _begin(self) -> None:
        self._timer = None
        reply = self._reply
        if self._task is None and self._newest is not None and (reply.started or self._may_begin):
            self._task = self._loop.create_task(self._tell_newest())

    async def _tell_newest(self) -> None:
        wait_s = RETRY_S
        try:
            if await self._head_sent() and self._is_free():
                assert self._newest is not None
                progress, self._newest = self._newest, None
                since_s, wait_s = self._since_s, EVERY_S
                await self._reply.interject(self._form.value % orjson.dumps(progress.to_dict()))
                self._on_delivered(monotonic() - since_s)
        finally:
            self._task = None
            if not self._stopped:
                self._timer = self._loop.call_later(wait_s, self._begin)

    async def _head_sent(self) -> bool:
        """Whether the answer has begun; it is begun where it may be."""
        reply = self._reply
        if not reply.started and self._is_free():
            await reply.interject(b"")
        return reply.started

    def _is_free(self) -> bool:
        """Whether something may be told now. As long as nothing is awaited, this stays so."""
        reply = self._reply
        return (
            not self._stopped
            and self._newest is not None
            and not self._order.locked()
            and not reply.ended
            and (not reply.started or (reply.event_stream and reply.between_events()))
        )


def ask_progress(
    request: Request,
    fields: Mapping[bytes, bytes],
    reply: InterruptedReply,
    delivered: Callable[[str, float], None],
) -> None:
    """Have the client told how far engines come with ``request``, if its header ``fields`` ask for that.
    ``delivered`` is called with the model, and as ``on_delivered`` of :class:`ProgressWriter`. Raises
    BadRequest."""
    form = progress_form(fields)
    if form is not None:
        may_begin, on_delivered = reply.comments is not None, partial(delivered, request.model)
        request.on_progress = reply.tell_progress(form, may_begin=may_begin, on_delivered=on_delivered).tell
