"""The one owner of a request's ASGI ``receive``: its body in bounded pieces, and when the client leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from gateway.api.exchange.buffers import NOBODY, BodyReservation, BufferBudget
from gateway.domain.errors import BadRequest, BodyTimeout, BodyTooLarge, ClientGone, RequestError
from gateway.runtime.pressure import SMALL_BYTES

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MIB = 1024 * 1024

PIECE_BYTES = 64 * 1024
PIECE_CHUNKS = 1024
"""Chunks are joined when they are so many bytes or so many together. A client that sends a few bytes at a
time then costs their memory and not ten times that, and no join is longer than a piece and one read of the
socket."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a client may send and how slowly."""

    body_bytes: int = 64 * MIB
    prefix_bytes: int = MIB
    """Read ahead of a body that is passed on as it comes."""
    grace_s: float = 30.0
    """Longest silence; and what a body gets before its rate counts."""
    rate_bytes_per_s: int = 1024
    """Slowest average after the grace, for bodies of which ``whole_s`` demands no more."""
    whole_s: float = 600.0
    """Longest time beyond the grace for all of a body that is held here, or was announced: so a long one must
    come faster than a short one."""

    def earned_s(self, received_bytes: int, declared_bytes: int | None) -> float:
        """How much time beyond the grace so many bytes of a body allow for."""
        slowest_s = received_bytes / self.rate_bytes_per_s
        return min(slowest_s, self.whole_s * received_bytes / declared_bytes) if declared_bytes else slowest_s


class ArrivedBody(Protocol):
    """Has what came of a body; :class:`gateway.api.server.answer_cycle.AnswerCycle`."""

    def take_whole(self, most_bytes: int) -> bytes | None:
        """All of it, if it is no longer than that and is here already."""
        ...


class Inbound:
    """A request's body and its end.

    Two phases. First the handler reads: :meth:`read`. Then :meth:`until_gone` runs beside the answer: it
    reads what is left one message ahead of :meth:`rest`, and otherwise waits for the client to leave. (While
    a body waits for its reader the socket is not read, so a client that leaves then is noticed when the
    reader takes more: nothing can be told from a socket nobody reads.)
    """

    def __init__(
        self,
        receive: Receive,
        fields: Mapping[bytes, bytes],
        limits: BodyLimits,
        budget: BufferBudget,
        whole: "ArrivedBody | None" = None,
    ) -> None:
        """``fields`` are those of the head. ``whole`` has all of the body, if that is here already."""
        self._receive = receive
        self._fields = fields
        self._limits = limits
        self._budget = budget
        self._whole = whole
        self.owner = NOBODY
        """Whose memory it takes. To be set before anything is read."""
        self.reservation: BodyReservation | None = None
        """The memory that it holds. To be released when the body is not used any more."""
        self.received_bytes = 0
        self.complete = False

    # only of bodies that are read piece by piece
    _slot = b""
    _fault: RequestError | None = None
    _waited_s = 0.0
    """For the rest, while somebody wanted it."""

    @cached_property
    def declared_bytes(self) -> int | None:
        """``Content-Length``, if there is one that counts."""
        length = self._fields.get(b"content-length", b"")
        usable = length.isdigit() and len(length) < 19 and b"transfer-encoding" not in self._fields
        return int(length) if usable else None

    @cached_property
    def _filled(self) -> asyncio.Event:
        return asyncio.Event()

    @cached_property
    def _emptied(self) -> asyncio.Event:
        return asyncio.Event()

    def take_small(self) -> bytes | None:
        """All of the body, if it is small and here already; None: it has to be read. Raises BodyTooLarge and
        BuffersFull."""
        whole = self._whole
        data = None if whole is None else whole.take_whole(SMALL_BYTES)
        if data is None:
            return None
        size_bytes = len(data)
        if size_bytes > self._limits.body_bytes:
            raise self._too_large(self._limits.body_bytes)
        if size_bytes:
            reservation = self.reservation = BodyReservation(self._budget, self.owner)
            reservation.take_small(size_bytes)
        self.received_bytes, self.complete = size_bytes, True
        return data

    def _reserve(self) -> BodyReservation:
        if self.reservation is None:
            self.reservation = BodyReservation(self._budget, self.owner)
        return self.reservation

    async def read(self, enough: Callable[[bytes], bool], announced_bytes: int | None = None) -> bytes:
        """Like :meth:`read_pieces`, joined: for bodies that are short."""
        return b"".join(await self.read_pieces(enough, announced_bytes))

    async def read_pieces(
        self, enough: Callable[[bytes], bool], announced_bytes: int | None = None
    ) -> list[bytes]:
        """The body up to the first chunk for which ``enough`` is true, or to its end (see ``complete``).

        Memory is reserved for what has come. ``announced_bytes``: so much is to be held of it, as far as is
        known; where that has no room at all the body is refused before it is read. Raises BodyTooLarge,
        BodyTimeout, BuffersFull, ClientGone, and whatever ``enough`` raises.
        """
        self._check_declared(announced_bytes)
        if announced_bytes is not None:
            self._reserve().announce(announced_bytes)
        limits, pieces = self._limits, _Pieces()
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            async with asyncio.timeout_at(started_s + limits.grace_s) as patience:
                while not self.complete:
                    chunk = await self._next()
                    self._reserve().grow(self.received_bytes)
                    pieces.add(chunk)
                    if enough(chunk) or self.complete:
                        break
                    earned_s = limits.earned_s(self.received_bytes, self.declared_bytes)
                    earned_s = min(earned_s, limits.whole_s, loop.time() - started_s)
                    patience.reschedule(started_s + earned_s + limits.grace_s)
        except TimeoutError:
            raise self._too_slow() from None
        return pieces.all()

    async def pieces(self, limits: BodyLimits) -> AsyncIterator[bytes]:
        """The body as it comes, for what passes it on at once: nothing of it is held here. ``limits`` count
        in place of those for other bodies. Raises BodyTooLarge, BodyTimeout, ClientGone."""
        self._limits = limits
        self._check_declared(None)
        loop, waited_s = asyncio.get_running_loop(), 0.0
        while not self.complete:
            earned_s = limits.earned_s(self.received_bytes, self.declared_bytes)
            began_s = loop.time()
            try:
                async with asyncio.timeout(limits.grace_s + min(0.0, earned_s - waited_s)):
                    chunk = await self._next()
            except TimeoutError:
                raise self._too_slow() from None
            waited_s += loop.time() - began_s
            if chunk:
                yield chunk

    def rest(self) -> AsyncIterator[bytes] | None:
        """What :meth:`read` left, once; None if it read everything. Needs :meth:`until_gone` running."""
        return None if self.complete else self._rest()

    async def until_gone(self) -> None:
        """Return when the client has left, or when the server says so after the answer's end."""
        while not self.complete and self._fault is None:
            try:
                self._slot = await self._next()
            except RequestError as error:
                self._fault = error
            self._filled.set()
            if isinstance(self._fault, ClientGone):
                return
            if self._fault is None and not self.complete:
                await self._emptied.wait()
                self._emptied.clear()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _rest(self) -> AsyncIterator[bytes]:
        last = False
        while not last:
            await self._fill()
            if self._fault is not None:
                raise self._fault
            chunk, self._slot, last = self._slot, b"", self.complete
            self._emptied.set()
            if chunk:
                yield chunk

    async def _fill(self) -> None:
        """Wait for the next of the rest. The time in which nobody wanted it is not the client's. Raises
        BodyTimeout."""
        loop, limits = asyncio.get_running_loop(), self._limits
        began_s = loop.time()
        earned_s = limits.earned_s(self.received_bytes, self.declared_bytes)
        left_s = limits.grace_s + min(0.0, earned_s - self._waited_s)
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await self._filled.wait()
        except TimeoutError:
            raise self._too_slow() from None
        self._waited_s += loop.time() - began_s
        self._filled.clear()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client disconnected.")
        chunk: bytes = message.get("body", b"")
        self.received_bytes += len(chunk)
        self.complete = not message.get("more_body", False)
        if self.received_bytes > self._limits.body_bytes:
            raise self._too_large(self._limits.body_bytes)
        if self.complete and self.declared_bytes not in (None, self.received_bytes):
            raise BadRequest("The body does not have the length that Content-Length announced.")
        return chunk

    def _check_declared(self, announced_bytes: int | None) -> None:
        if self.declared_bytes is not None and self.declared_bytes > self._limits.body_bytes:
            raise self._too_large(self._limits.body_bytes)
        if announced_bytes is not None and announced_bytes > self._budget.longest_bytes:
            raise self._too_large(self._budget.longest_bytes)

    @staticmethod
    def _too_large(most: int) -> BodyTooLarge:
        return BodyTooLarge(f"The request body may be {most} bytes ({most / MIB:g} MiB) long at most.")

    def _too_slow(self) -> BodyTimeout:
        message = f"The request body came too slowly: {self.received_bytes} bytes had arrived. Send it again."
        return BodyTimeout(message)


class _Pieces:
    """Chunks, joined a few at a time."""

    def __init__(self) -> None:
        self._joined: list[bytes] = []
        self._chunks: list[bytes] = []
        self._bytes = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        if self._bytes >= PIECE_BYTES or len(self._chunks) >= PIECE_CHUNKS:
            self._join()

    def all(self) -> list[bytes]:
        self._join()
        return self._joined

    def _join(self) -> None:
        if self._bytes:
            self._joined.append(self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks))
        self._chunks, self._bytes = [], 0
