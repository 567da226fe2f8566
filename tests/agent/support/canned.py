"""A server that answers every request with given bytes: for what no real HTTP library would write."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from agent.engines.backend import BackendBody, BackendRequest, ResponseReceiver
from shared.protocol.messages import Headers, RequestHead
from shared.protocol.progress import Progress


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


_TURNS, _LOOK_S = 500, 0.001


async def until(condition: Callable[[], object]) -> None:
    """Lets the event loop turn until ``condition`` holds; the test's own time limit ends a vain wait. After
    many turns it looks at times only, so that the processor is left to what is waited for."""
    turns = 0
    while not condition():  # what is waited for happens in another connection's protocol
        turns += 1
        await asyncio.sleep(0 if turns < _TURNS else _LOOK_S)


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


class Asks(Protocol):
    """A backend, as far as it takes requests."""

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest: ...


class Response:
    """A response that a test reads. Implements :class:`agent.engines.backend.ResponseReceiver`."""

    def __init__(self, *, tells_progress: bool = False) -> None:
        self.status = 0
        self.headers: Headers = ()
        self._error: Exception | None = None
        self._over = False
        self._moved = asyncio.Event()
        self._pieces: list[bytes] = []
        self._take: Callable[[bytes], bool] | None = None
        self.request: BackendRequest | None = None
        self.progress: list[Progress] = []
        self.tells_progress = tells_progress

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> None:
        self.status, self.headers = status, headers
        self._moved.set()

    def on_body(self, piece: bytes) -> bool:
        if self._take is not None:
            return self._take(piece)
        self._pieces.append(piece)
        return False

    def on_progress(self, progress: Progress) -> None:
        self.progress.append(progress)

    def on_over(self, error: Exception | None) -> None:
        self._error, self._over = error, True
        self._moved.set()

    async def begun(self) -> None:
        """Waits for the head. Raises the error that came instead."""
        await self._moved.wait()
        if not self.status and self._error is not None:
            raise self._error

    async def stream_to(self, take: Callable[[bytes], bool]) -> None:
        """Gives the body to ``take``, which says whether it wants more, until it is whole."""
        self._take = take
        wanted = True
        for piece in self._pieces:
            wanted = take(piece)
        if wanted and self.request is not None:
            self.request.resume()
        while not self._over:
            self._moved.clear()
            await self._moved.wait()
        if self._error is not None:
            raise self._error


@asynccontextmanager
async def asked(
    backend: Asks, head: RequestHead, body: BackendBody, *, tells_progress: bool = False
) -> AsyncIterator[Response]:
    """Sends a request; entering gives the response once its head has come, leaving lets go of it."""
    response = Response(tells_progress=tells_progress)
    request = response.request = backend.request(head, body, response)
    try:
        await response.begun()
        yield response
    finally:
        request.let_go()


async def read(response: Response) -> bytes:
    """All of an answer's body."""
    body = bytearray()
    await response.stream_to(lambda piece: added(body, piece))
    return bytes(body)


def added(body: bytearray, piece: bytes) -> bool:
    """Wants more."""
    body += piece
    return True
