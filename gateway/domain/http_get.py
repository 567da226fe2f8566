"""One exchange over a connection of its own, within bounds of size."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult

import httptools

HEAD_BYTES = 32 * 1024
_READ_BYTES = 64 * 1024


class AnswerUnusable(Exception):
    """The answer is too long, or ended too early. The message says which, of ``it``."""


@dataclass(slots=True)
class HttpAnswer:
    """Takes what httptools finds. Raises AnswerUnusable when it is too much."""

    most_bytes: int
    """Of its body."""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    """By names in lower case; the first of each name counts."""
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    """False for one that ended with its connection."""
    _head_bytes: int = 0

    def on_message_begin(self) -> None:
        """What came before was an interim answer (RFC 9110, section 15.2)."""
        self.complete = False
        self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES:
            raise AnswerUnusable(f"its head is longer than {HEAD_BYTES} bytes")
        self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_body(self, data: bytes) -> None:
        if len(self.body) + len(data) > self.most_bytes:
            raise AnswerUnusable(f"it is longer than {self.most_bytes} bytes")
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def http_get(
    parts: SplitResult,
    target: str,
    tls: ssl.SSLContext | None,
    most_bytes: int,
    headers: Mapping[str, str] = {},
) -> HttpAnswer:
    """What the server at ``parts`` answers to a request for ``target``, path and query; redirects are not
    followed. ``headers`` are sent besides. Raises OSError, AnswerUnusable, httptools.HttpParserError."""
    port = parts.port or (443 if tls is not None else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
    answer = HttpAnswer(most_bytes)
    fields = {"host": parts.netloc, "accept": "application/json", "accept-encoding": "identity", **headers}
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    try:
        request = "\r\n".join([*lines, "connection: close", "", ""]).encode("ascii")
    except UnicodeEncodeError:
        writer.transport.abort()
        raise
    await exchange(reader, writer, request, answer)
    if not (answer.complete or answer.headers.keys().isdisjoint(("content-length", "transfer-encoding"))):
        raise AnswerUnusable("it ended too early")
    return answer


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, answer: HttpAnswer
) -> None:
    """Send ``request``, which says ``connection: close``, and read the ``answer`` until it is complete or the
    connection ends; its status is 0 where none came. The connection is closed then, whatever happens. Raises
    OSError, AnswerUnusable, httptools.HttpParserError."""
    read_bytes, parser = 0, httptools.HttpResponseParser(answer)
    try:
        writer.write(request)
        while not answer.complete and (data := await reader.read(_READ_BYTES)):
            read_bytes += len(data)
            if read_bytes > 2 * (answer.most_bytes + HEAD_BYTES):
                raise AnswerUnusable("it is too long")
            parser.feed_data(data)
            if answer.complete and parser.get_status_code() < 200:
                answer.complete = False  # an interim answer, and no more yet
    except httptools.HttpParserCallbackError as error:
        if isinstance(error.__context__, AnswerUnusable):
            raise error.__context__ from None
        raise
    finally:
        writer.transport.abort()  # a goodbye would have to be waited for
    answer.status = parser.get_status_code()
