"""Plain HTTP on a port of its own: everybody is sent on to HTTPS, and nothing else is served."""

import asyncio
import re

BYTES = 8 * 1024
"""Of a request that are read."""
WAIT_S = 5.0
"""The longest it may take."""
CONNECTIONS = 256
"""At once; more are closed as they come."""

_LINE = re.compile(rb"(?P<method>[A-Z]{1,16}) (?P<target>/[\x21\x22\x24-\x7e]*) HTTP/1\.[01]\r\n")
_HOST = re.compile(
    rb"\r\nhost:[ \t]*(?P<name>[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?[ \t]*\r\n", re.I
)
_KEY = re.compile(rb"\r\n(authorization|x-api-key|api-key)[ \t]*:", re.I)


def answer_to(head: bytes, https_port: int) -> bytes:
    """The whole answer to the head of a request, up to and with its empty line."""
    line, host = _LINE.match(head), _HOST.search(head)
    if line is None or host is None or head.lower().count(b"\r\nhost:") != 1:
        return _answer(b"400 Bad Request", b"This port sends on to HTTPS, and this is no request.\n")
    if _KEY.search(head):
        said = b"This key came unencrypted, so others may have read it: make a new one, and use https.\n"
        return _answer(b"403 Forbidden", said)
    port = b"" if https_port == 443 else b":%d" % https_port
    where = b"https://%b%b%b" % (host["name"], port, line["target"])
    return _answer(b"308 Permanent Redirect", b"Use https.\n", b"location: %b\r\n" % where)


def _answer(status: bytes, said: bytes, fields: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %b\r\n%bcontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, fields, len(said)) + said


class Redirect(asyncio.Protocol):
    """One client's connection: one request, one answer."""

    def __init__(self, https_port: int, present: "set[Redirect]") -> None:
        self._https_port = https_port
        self._present = present
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if len(self._present) >= CONNECTIONS:
            transport.abort()
            return
        self._present.add(self)
        self._timer = asyncio.get_running_loop().call_later(WAIT_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if end or len(self._head) > BYTES:
            transport.write(answer_to(head + end, self._https_port))
            transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._present.discard(self)
        if self._timer is not None:
            self._timer.cancel()
