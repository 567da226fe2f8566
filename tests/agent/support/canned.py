"""A server that answers every request with given bytes: for what no real HTTP library would write."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agent.engines.backend import BackendResponse


@dataclass(slots=True)
class Canned:
    url: str = ""
    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    close: bool = False
    """Close after answering."""
    deaf: bool = False
    """Never read."""
    received: bytearray = field(default_factory=bytearray)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client's connection ended."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.deaf:
                await asyncio.Event().wait()
            head = await reader.readuntil(b"\r\n\r\n")
            self.received += head
            writer.write(self.answer)
            if self.close:
                await writer.drain()
                return
            while piece := await reader.read(65536):
                self.received += piece
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.gone.set()
            writer.close()


@asynccontextmanager
async def canned(
    answer: bytes | None = None, *, close: bool = False, deaf: bool = False, port: int = 0
) -> AsyncIterator[Canned]:
    """A :class:`Canned` server on ``port`` of loopback, by default a free one."""
    script = Canned(close=close, deaf=deaf)
    if answer is not None:
        script.answer = answer
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(script._serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield script
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def until(condition: Callable[[], object]) -> None:
    """Lets the event loop turn until ``condition`` holds; the test's own time limit ends a vain wait."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens in another connection's protocol
        await asyncio.sleep(0)


class Body:
    """A request's body of ``pieces``, one each time it is asked.

    Implements :class:`agent.engines.backend.BackendBody`.
    """

    def __init__(self, pieces: Iterable[bytes] = ()) -> None:
        self._pieces = iter(pieces)
        self._next = next(self._pieces, None)
        self.given_bytes = 0
        self.taken_bytes = 0

    @property
    def ended(self) -> bool:
        return self._next is None

    def take(self) -> bytes:
        piece, self._next = self._next or b"", next(self._pieces, None)
        self.given_bytes += len(piece)
        return piece

    def taken(self, size_bytes: int) -> None:
        self.taken_bytes += size_bytes

    async def more(self) -> None: ...


def once(body: bytes, piece_bytes: int = 65536) -> Body:
    """``body`` as a request's body, in pieces."""
    return Body(body[start : start + piece_bytes] for start in range(0, len(body), piece_bytes))


async def read(response: BackendResponse) -> bytes:
    """All of an answer's body."""
    body = bytearray()
    await response.pour(lambda piece: added(body, piece))
    return bytes(body)


def added(body: bytearray, piece: bytes) -> bool:
    """Wants more."""
    body += piece
    return True
