"""A response on its way from a stream to its reader: a buffer bounded by credit, one wake a batch."""

import asyncio

from gateway.dispatch.recovery import AnswerRecord, Splicer
from gateway.dispatch.response_buffers import UnreadBudget
from gateway.dispatch.response_fields import ResponseFields
from gateway.dispatch.response_stream import (
    HELD_BYTES,
    HOLD_BACK_BYTES,
    NOBODY,
    READ_BYTES,
    Ending,
    ResponseOwner,
    ResponseStream,
    Sink,
)
from gateway.domain.errors import StreamBroken
from gateway.domain.request import Principal
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers
from shared.speedups import BodyPath
from shared.speedups.body_path import STEP_BYTES

_COMPLETE = Ending.COMPLETE  # a global is found faster
_WHOLE = (b"\n\n", b"\r\n\r\n")  # how nearly everybody ends events

_COMMENT = b": waiting\n\n"
_MUCH_BYTES = min(HELD_BYTES, HOLD_BACK_BYTES)


class EngineResponse(ResponseFields):
    """One response, whatever number of attempts it took. Made by ``Dispatcher.run``.

    Its reader must call :meth:`abort` if it stops before the end (after it that does no harm), and
    :meth:`consumed` for what the client's socket took: that lets the engine go on sending. The buffer holds
    no more than the credit granted, and what ``unread`` allows besides, in memory and in a file: for that the
    engine is given credit at once, so that it can finish and its slot be free.
    """

    __slots__ = ()

    def __init__(
        self,
        head: ResponseHead,
        stream: ResponseStream,
        agent: str,
        deployment: str,
        version: str,
        queue_s: float,
        attempts: int,
        owner: ResponseOwner = NOBODY,
        record: AnswerRecord | None = None,
        kept_back: bool = False,
        unread: UnreadBudget | None = None,
        reader: Principal | None = None,
    ) -> None:
        """``attempts`` deployments were asked, which took ``queue_s`` seconds of waiting for slots in all.
        What comes passes through ``record``; with ``kept_back`` nobody is to read it before all is there, or
        ``HELD_BYTES``. What ``reader`` leaves unread has the room that ``unread`` gives; None: none."""
        self.status, self.headers = head.status, head.headers
        self.ran_by = head.ran_by  # where the agent is a gateway: its agent that answers
        self.agent, self.deployment = agent, deployment  # the key, ``agent/id``
        self.version = version  # the deployment's; empty if it says none
        self.queue_s, self.attempts = queue_s, attempts
        self._stream, self._owner = stream, owner
        self._unread, self._reader = unread, reader
        self._record, self._kept_back = record, kept_back
        self._held = self._waiter = self._sink = self._path = self._splicer = None
        self._broken = self._ending = self.trailers = None
        self._first = b""
        self._outstanding_bytes = self._older_bytes = self._owed_bytes = self._sunk_bytes = 0
        self.taken_bytes = 0
        self._window_held = self._no_room = self._asks_again = self._ended = False

    # --- The reader's side ---

    async def next_chunks(self, sink: Sink | None = None) -> list[bytes]:
        """What has arrived since the last call, about ``READ_BYTES`` at most, waiting for at least one chunk.

        While it waits, what comes is offered to ``sink``. What that takes is consumed, is in no list, and
        wakes nobody. An empty list says the response ended in order. Chunks are never empty. Raises
        :class:`~gateway.domain.errors.StreamBroken` when the response cannot be finished; whatever came
        before the break is returned first. One reader at a time. Cancelling the call loses nothing.
        """
        assert self._waiter is None, "one reader at a time"
        if self._window_held:
            self._free_window()
        while (chunks := self._take_ready(self._wake)) is None:
            more = self._held is not None and bool(self._held)
            if not more and (self._ended or self._broken is not None):
                self._done(Ending.COMPLETE if self._broken is None else Ending.BROKEN)
                if self._broken is not None:
                    raise self._broken
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            if sink is not None and self._splicer is None and not more:
                self._open_sink(sink)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if self._sink is not None:
                    self._close_sink()
        return chunks

    def take_whole(self) -> bytes | None:
        """The body in one piece, to be reported by :meth:`consumed`, where all of it is here and no longer
        than ``READ_BYTES``; nothing else comes then. Else None: :meth:`next_chunks` has it."""
        if not self._ended or self._outstanding_bytes > READ_BYTES:
            return None
        if self._held is None:
            body, self._first = self._first, b""
        elif (chunks := self._held.take_memory(READ_BYTES)) is None:
            return None
        else:
            body = b"".join(chunks)
        self._done(_COMPLETE)
        return body

    def consumed(self, size_bytes: int) -> None:
        """The client's socket took this many bytes; the engine may send as many more. Safe after the end."""
        self.taken_bytes += size_bytes
        own_bytes = size_bytes
        if self._older_bytes:
            older = size_bytes if size_bytes < self._older_bytes else self._older_bytes
            self._older_bytes -= older
            self._outstanding_bytes -= older
            own_bytes -= older
        if self._splicer is not None:
            self._consumed_joined(own_bytes)
        elif own_bytes:
            self._outstanding_bytes -= own_bytes
            self._stream.consumed(own_bytes)
        if self._held is not None:  # who waits for memory gets it then, perhaps for what is left of this
            self._held.read(size_bytes)
        if self._no_room and not self.behind:
            self._has_room()

    def abort(self) -> None:
        """Reset the stream and drop what is buffered. Idempotent, safe after the end.

        The deployment's slot is free once the agent has confirmed that the engine let go.
        """
        self._buffer.clear()
        self._outstanding_bytes = self._older_bytes = 0
        if not (self._ended or self._broken):
            self._broken = StreamBroken(ErrorCode.CANCELLED, "The response was given up.")
            self._wake()
        self._stream.reset(ErrorCode.CANCELLED)
        self._done(Ending.ABORTED)

    # --- The stream's side ---

    @property
    def continued(self) -> bool:
        """Whether more than one engine wrote it."""
        return self._splicer is not None

    @property
    def behind(self) -> bool:
        """Whether the engine may be waiting for its reader, or for a file: then silence is not its own."""
        return self._outstanding_bytes - self._older_bytes >= HOLD_BACK_BYTES

    def feed(self, data: bytes) -> None:
        """Body bytes came."""
        sink, record = self._sink, self._record
        if sink is None:
            if record is None and self._splicer is None and self._broken is None and self._ending is None:
                self._put(data)
            else:
                self._feed_reader(data)
            return
        if record is not None and record.between and data.endswith(_WHOLE) and sink(data):
            record.fresh.append(data)  # the way of every token
        else:
            passed = data if record is None else record.feed(data)
            if passed and not sink(passed):
                self._put_passed(data, passed)
                return
        self._sunk_bytes += len(data)
        if self._sunk_bytes >= STEP_BYTES:
            self._credit_sunk()
        if self._path is not None and record is not None:
            self._path.open = record.between

    def _feed_reader(self, data: bytes) -> None:
        if self._broken is not None or self._ending is not None:
            self._stream.consumed(len(data))
            return
        if self._splicer is not None:
            self._owed_bytes += len(data)
            data = self._splicer.feed(data)
        self._put_passed(data, data if self._record is None else self._record.feed(data))
        own_bytes = self._outstanding_bytes - self._older_bytes
        if self._owed_bytes > own_bytes:  # the splicer made less of it, or holds it: nobody is to read that
            self._stream.consumed(self._owed_bytes - own_bytes)
            self._owed_bytes = own_bytes

    def flush_joined(self) -> None:
        """The joined stream is over for HTTP: what was held back of it comes now. May raise SpliceFailed."""
        if self._splicer is not None and self._record is not None:
            self.add(self._splicer.finish())

    def flush(self) -> None:
        """The body is whole: so is what was held back of it."""
        record = self._record
        if record is not None and not record.between:
            data = record.finish()
            self._older_bytes += len(data)
            self._put(data)

    def _put_passed(self, data: bytes, passed: bytes) -> None:
        """``data`` came, and the record lets ``passed`` go on. What it holds counts as consumed when it came:
        an event longer than the stream's window would never be whole otherwise."""
        held_bytes = len(data) - len(passed)
        if held_bytes < 0:
            self._older_bytes -= held_bytes
        elif held_bytes and self._splicer is None:
            self._stream.consumed(held_bytes)
        self._put(passed)

    def _open_sink(self, sink: Sink) -> None:
        """While the reader waits, ``sink`` is offered what comes; whole events take its path, if any."""
        self._sink, record = sink, self._record
        path: BodyPath | None = getattr(sink, "path", None)
        if path is None or record is None:
            return
        if path is not self._path:
            record.settle()
            record.fresh = path.fresh
            self._stream.take_path(path)
            self._path = path
        path.on_unsaid = self._credit_sunk
        path.open = record.between

    def _close_sink(self) -> None:
        """From now on everything waits for the reader."""
        self._sink = None
        if self._path is not None:
            self._path.open = False
            self._path.on_unsaid = None
        self._credit_sunk()

    def _credit_sunk(self) -> None:
        size_bytes, self._sunk_bytes = self._sunk_bytes, 0
        if self._path is not None:
            size_bytes += self._path.unsaid_bytes
            self._path.unsaid_bytes = 0
        if not size_bytes:
            return
        if self._record is not None:
            self._record.settle()
        self.taken_bytes += size_bytes
        self._stream.consumed(size_bytes)

    def add(self, data: bytes) -> None:
        """Whole events that belong to the answer and not to the stream there is."""
        assert self._record is not None
        self._older_bytes += len(data)
        self._put(self._record.feed(data))

    def comment(self) -> None:
        """A comment between events, no part of the answer. Only while all that came was whole events."""
        if not self._buffer and self._broken is None and self._ending is None:
            self._older_bytes += len(_COMMENT)
            self._put(_COMMENT)

    def go_on(self, stream: ResponseStream, splicer: Splicer) -> None:
        """From here on the answer comes from another stream, through ``splicer``."""
        self._close_sink()
        self._stream, self._splicer = stream, splicer
        self._older_bytes, self._owed_bytes = self._outstanding_bytes, 0
        self._has_room()  # its engine waits for nobody yet

    def _put(self, data: bytes) -> None:
        if not data:
            return
        if self._held is None and not self._first:
            self._first = data
        else:
            self._buffer.put(data)
        waiting_bytes = self._outstanding_bytes = self._outstanding_bytes + len(data)
        if waiting_bytes >= _MUCH_BYTES:
            self._much_waits()
        if self._waiter is not None:
            self._wake()

    def _much_waits(self) -> None:
        """So much waits for the reader that it must begin to read, or that the engine may have to wait."""
        if self._kept_back and self._outstanding_bytes >= HELD_BYTES:
            self._kept_back = False
            self._owner.much_came()
        if self.behind and not self._kept_back:  # what is kept back may yet be dropped for another's
            self._read_ahead()

    def _read_ahead(self) -> None:
        """Have memory or a file take what the client has not, so that the engine need not wait for it."""
        if self._ending is not None:
            return
        own_bytes = self._outstanding_bytes - self._older_bytes
        self._kept(self._buffer.hold(own_bytes))
        stream, left_bytes = self._stream, self._outstanding_bytes - self._older_bytes
        fits = left_bytes < HOLD_BACK_BYTES
        if fits or self._buffer.spill(left_bytes, lambda size_bytes: self._spilled(stream, size_bytes)):
            if not (fits or self._buffer.spilling):
                self._kept(left_bytes)  # its reader has it in hand, as what it reads of the file
            self._has_room()
            return
        self._no_room = self._asks_again = True
        self._buffer.ask_again(self._read_ahead)
        self._owner.held_up(True)

    def _spilled(self, stream: ResponseStream, size_bytes: int) -> None:
        """So many bytes went to the file, of ``stream`` if it is still the one there was."""
        if stream is self._stream:
            self._kept(min(size_bytes, self._outstanding_bytes - self._older_bytes))
        if self.behind:
            self._read_ahead()

    def _kept(self, size_bytes: int) -> None:
        """Report bytes as consumed that the client has not taken, so that the engine can go on."""
        if not size_bytes:
            return
        if self._splicer is None:
            self._stream.consumed(size_bytes)
        else:
            self._count_joined(size_bytes, self._outstanding_bytes - self._older_bytes)
        self._older_bytes += size_bytes

    def _has_room(self) -> None:
        if self._no_room:
            self._no_room = False
            self._owner.held_up(False)

    def _count_joined(self, size_bytes: int, own_bytes: int) -> None:
        """Report as large a share of the joined stream as consumed as was taken of what was made of it."""
        share = self._owed_bytes if size_bytes >= own_bytes else self._owed_bytes * size_bytes // own_bytes
        self._owed_bytes -= share
        self._stream.consumed(share)

    def _consumed_joined(self, size_bytes: int) -> None:
        own_bytes = self._outstanding_bytes - self._older_bytes
        self._outstanding_bytes -= size_bytes
        self._count_joined(size_bytes, own_bytes)

    def end(self, trailers: Trailers | None) -> None:
        """The body is complete."""
        self._ended, self.trailers = True, trailers
        if self._waiter is not None:
            self._wake()
        elif self._kept_back:  # its reader is called now, and nearly always takes all of it at once
            self._window_held = True
        else:
            self._free_window()

    def _free_window(self) -> None:
        """The stream has ended: its window would be held until the last byte is read."""
        self._window_held = False
        own_bytes = self._outstanding_bytes - self._older_bytes
        if own_bytes >= HOLD_BACK_BYTES:
            self._read_ahead()
        elif own_bytes > 0:
            self._kept(self._buffer.hold(own_bytes))

    def break_off(
        self, code: ErrorCode, reason: str, *, not_continued: bool = False, read_slowly: bool = False
    ) -> None:
        """The response cannot be finished. Without effect once it has ended."""
        if not self._ended and self._broken is None:
            self._broken = StreamBroken(code, reason, not_continued=not_continued, read_slowly=read_slowly)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
            self._close_sink()

    def _done(self, ending: Ending) -> None:
        if self._ending is None:
            self._ending = ending
            owner, self._owner = self._owner, NOBODY
            if self._asks_again:
                self._buffer.ask_no_more()
            owner.reader_done(ending)
