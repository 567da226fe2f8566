"""How answers reach the connection of a client where ASGI's way is not enough.

The direct way is a plain call, with no task between. The head and the end of every answer, and whatever waits
for room in the socket, go the ordinary way, over ASGI's ``send``. For what is left, which is nearly all of a
streamed answer, there is a :class:`DirectWriter`, made where such an answer begins: of the request's cycle,
which our server offers as an extension of its ASGI scope. Under a server that offers none everything goes the
ordinary way; the client gets the same bytes.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from gateway.api.server.answer_cycle import CYCLE, AnswerCycle, DirectBatch, DirectWay
from shared.speedups import BodyPath

UNDRAINED_BYTES = 64 * 1024
"""A server waits for a full socket before it writes, not after. A longer piece therefore goes the ordinary
way, which waits after it as well: what a client leaves unread stays under two buffers (64 KiB in uvicorn)."""


class WriteBatch:
    """Has what was taken in one turn of the loop written at its end: for each client what came for it
    together, in one system call. For all connections of a server."""

    def __init__(self) -> None:
        self._waiting: list[DirectWay] = []

    def add(self, direct: DirectWay) -> None:
        """It took something."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(direct)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        failed: Exception | None = None
        for direct in waiting:
            try:
                direct.flush()
            except Exception as error:  # the other clients have no part in it
                failed = failed or error
        if failed is not None:
            raise failed


class DirectWriter:
    """One request's. Made by :func:`open_direct`."""

    __slots__ = (
        "_batch",
        "_cycle",
        "_flow",
        "_last",
        "_path",
        "_pieces",
        "_taken_bytes",
        "_unwritten_bytes",
    )

    def __init__(self, cycle: AnswerCycle, batch: DirectBatch) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._batch = batch
        self._pieces: list[bytes] = []
        """Taken, and not yet written."""
        self._unwritten_bytes = 0
        """Bytes of these."""
        self._path: BodyPath | None = None
        self._taken_bytes = 0
        """By calls; what the path took is counted there."""
        self._last = b""

    @property
    def path(self) -> BodyPath | None:
        """Takes pieces of whole events straight from the tunnel; None: the body is not sent in chunks. To be
        asked for when the head is out. What it takes is in one line with the pieces taken by calls."""
        if self._path is None and self._cycle.chunked_encoding:
            transport = self._cycle.transport
            self._path = BodyPath(transport.write, self._flow)
            if self._pieces:
                self.flush()
            self._pieces = self._path.waiting
            if not self._cycle.disconnected:
                self._path.buffered_bytes = transport.get_write_buffer_size
                self._path.descriptor = _plain_socket(transport)
        return self._path

    def note_other_write(self) -> None:
        """Something was written that did not go this way: it may wait in the transport, and what the path
        takes next has to wait behind it."""
        if self._path is not None:
            self._path.open = self._path.open  # so that it asks the transport again

    def detach(self) -> None:
        """The connection is about to close, or belongs to another request: the path takes nothing more."""
        if self._path is not None:
            self._path.open = False
            self._path.descriptor = -1

    @property
    def sent_bytes(self) -> int:
        """Taken, all together."""
        return self._taken_bytes + (0 if self._path is None else self._path.sent_bytes)

    @property
    def last(self) -> bytes:
        """The latest piece written; whoever writes the ordinary way empties it."""
        return self._last if self._path is None else self._path.last

    @last.setter
    def last(self, data: bytes) -> None:
        if self._path is None:
            self._last = data
        else:
            self._path.last = data

    def __call__(self, data: bytes) -> bool:
        """Sends a piece of the body, framed as the server frames it, or gives False and has done nothing.

        It has to go the ordinary way then, which knows what to do with a client that does not read or is
        gone, and with a body that is too long. To be used after some of the body has gone that way, and never
        while more of it is on that way. Never raises. :meth:`flush` before anything goes that way again.
        """
        size_bytes = len(data)
        cycle = self._cycle
        if self._flow.write_paused or cycle.disconnected or size_bytes > UNDRAINED_BYTES:
            return False
        if not cycle.chunked_encoding:
            if size_bytes > cycle.expected_content_length:
                return False
            cycle.expected_content_length -= size_bytes
        if not self._pieces:
            self._batch.add(self)
        self._pieces.append(data)
        self._taken_bytes += size_bytes
        self._unwritten_bytes += size_bytes
        if self._unwritten_bytes > UNDRAINED_BYTES:
            self.flush()
        return True

    def flush(self) -> None:
        """What was taken is written now."""
        pieces, cycle = self._pieces, self._cycle
        if not pieces:
            return
        path = self._path
        if path is not None and pieces is path.waiting and not cycle.disconnected:
            self._unwritten_bytes = 0
            path.flush()
            if path.unsaid_bytes >= path.step_bytes and path.on_unsaid is not None:
                path.on_unsaid()  # behind a piece taken by a call no session tells of what the path took
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.last = data
        self._unwritten_bytes = 0
        if not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if cycle.chunked_encoding else data)


def _plain_socket(transport: asyncio.Transport) -> int:
    """The descriptor of a connection whose bytes go out as they are; -1 for any other."""
    facts = transport.get_extra_info
    encrypted = facts("sslcontext") is not None or facts("ssl_object") is not None
    raw = facts("socket")
    return -1 if encrypted or raw is None else int(raw.fileno())


def open_direct(cycle: AnswerCycle) -> DirectWriter | None:
    """The direct way for the rest of an answer with a body that has begun; None where there is none."""
    batch = cycle.batch
    if batch is None or cycle.scope["method"] == "HEAD":
        return None
    direct = DirectWriter(cycle, batch)
    cycle.direct = direct
    return direct


def take_cycle(scope: MutableMapping[str, Any]) -> AnswerCycle | None:
    """What our server offers in place of ASGI's ways. The scope forgets it, or each would keep the other."""
    offered = scope.pop("extensions", None)
    return offered.get(CYCLE) if offered else None
