"""An agent's connection that is for another worker of this host is given to that one before any answer."""

import asyncio
from collections.abc import Callable, Iterable

from gateway.domain.surface import TUNNEL

TUNNEL_PATH = TUNNEL.encode("ascii")

PassOn = Callable[[str, int, bytes], bool]
"""Gives another process, by its name, a descriptor of a connection and what was read of it. Whether that one
has them now; else nothing has happened."""


def pass_tunnel_on(
    pass_on: PassOn,
    transport: asyncio.Transport,
    method: bytes,
    url: bytes,
    headers: Iterable[tuple[bytes, bytes]],
) -> bool:
    """Whether another worker goes on with this connection, whose request for a tunnel has come. The transport
    is closed then; the connection is not. TLS that was begun here must be ended here."""
    process = url.partition(b"?")[0].removeprefix(TUNNEL_PATH).removeprefix(b"/")
    if not process or transport.get_extra_info("sslcontext") is not None:
        return False
    if transport.get_write_buffer_size():  # of an answer before it
        return False
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method, url, lines)
    descriptor = transport.get_extra_info("socket").fileno()
    if not pass_on(process.decode("ascii", "replace"), descriptor, head):
        return False
    transport.abort()
    return True
