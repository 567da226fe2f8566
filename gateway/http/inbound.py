"""The one owner of a request's ASGI ``receive``: its body in bounded pieces, and when the client leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import BadRequest, BodyTimeout, BodyTooLarge, ClientGone, RequestError
from gateway.http.buffers import BufferBudget, Reservation

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MIB = 1024 * 1024

MANY_CHUNKS = 1024
"""So many are joined, so that a client that sends a few bytes at a time costs their memory and not ten times
that."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a client may send and how slowly."""

    body_bytes: int = 64 * MIB
    prefix_bytes: int = MIB
    """Read ahead of a body that is passed on as it comes."""
    grace_s: float = 30.0
    """Longest silence; and what a body that is read whole gets before its rate counts."""
    rate_bytes_per_s: int = 1024
    """Slowest average after the grace. A modem is faster; an attacker who holds buffers open is not."""


class Inbound:
    """A request's body and its end.

    Two phases. First the handler reads: :meth:`read`. Then :meth:`until_gone` runs beside the answer: it
    reads what is left one message ahead of :meth:`rest`, and otherwise waits for the client to leave. (While
    a body waits for its reader the socket is not read, so a client that leaves then is noticed when the
    reader takes more: nothing can be told from a socket nobody reads.)
    """

    def __init__(
        self, receive: Receive, declared_bytes: int | None, limits: BodyLimits, budget: BufferBudget
    ) -> None:
        self._receive = receive
        self._limits = limits
        self._reservation = Reservation(budget)
        self._slot = b""
        self._fault: RequestError | None = None
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self.declared_bytes = declared_bytes
        self.received_bytes = 0
        self.complete = False

    async def read(self, enough: Callable[[bytes], bool], hold_bytes: int | None = None) -> bytes:
        """The body up to the first chunk for which ``enough`` is true, or to its end (see ``complete``).

        ``hold_bytes`` is reserved in the budget at once; beyond it the reservation grows with the body.
        Raises BodyTooLarge, BodyTimeout, BuffersFull, ClientGone, and whatever ``enough`` raises.
        """
        self._check_declared()
        if hold_bytes is not None:
            self._reservation.hold(hold_bytes)
        limits, chunks, joined = self._limits, list[bytes](), list[bytes]()
        started_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(started_s + limits.grace_s) as patience:
                while not self.complete:
                    chunk = await self._next()
                    self._reservation.grow(self.received_bytes)
                    chunks.append(chunk)
                    if len(chunks) == MANY_CHUNKS:
                        joined.append(b"".join(chunks))
                        chunks.clear()
                    if enough(chunk) or self.complete:
                        break
                    earned_s = self.received_bytes / limits.rate_bytes_per_s
                    patience.reschedule(started_s + limits.grace_s + earned_s)
        except TimeoutError:
            raise self._too_slow() from None
        return chunks[0] if len(chunks) == 1 and not joined else b"".join(joined + chunks)

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
            if self._fault is None:
                await self._emptied.wait()
                self._emptied.clear()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def release(self) -> None:
        """Give the reserved memory back. The body must not be used any more."""
        self._reservation.release()

    async def _rest(self) -> AsyncIterator[bytes]:
        last = False
        while not last:
            try:
                async with asyncio.timeout(self._limits.grace_s):
                    await self._filled.wait()
            except TimeoutError:
                raise self._too_slow() from None
            self._filled.clear()
            if self._fault is not None:
                raise self._fault
            chunk, self._slot, last = self._slot, b"", self.complete
            self._emptied.set()
            if chunk:
                yield chunk

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client disconnected.")
        chunk: bytes = message.get("body", b"")
        self.received_bytes += len(chunk)
        self.complete = not message.get("more_body", False)
        if self.received_bytes > self._limits.body_bytes:
            raise self._too_large()
        if self.complete and self.declared_bytes not in (None, self.received_bytes):
            raise BadRequest("The body does not have the length that Content-Length announced.")
        return chunk

    def _check_declared(self) -> None:
        if self.declared_bytes is not None and self.declared_bytes > self._limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> BodyTooLarge:
        most = self._limits.body_bytes
        return BodyTooLarge(f"The request body may be {most} bytes ({most / MIB:g} MiB) long at most.")

    def _too_slow(self) -> BodyTimeout:
        message = f"The request body came too slowly: {self.received_bytes} bytes had arrived. Send it again."
        return BodyTimeout(message)
