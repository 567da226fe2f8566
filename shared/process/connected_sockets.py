"""A transport over a socket that is connected already."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def transport_over(
    connected: socket.socket, protocol: Callable[[], P], tls: ssl.SSLContext | None, host: str
) -> tuple[asyncio.Transport, P]:
    """As ``loop.create_connection`` does it; with ``tls`` as a client of ``host``. Raises OSError.

    Where that fails or is cancelled the socket is closed: by its transport once it has one, which may not
    have begun to. Closed under its transport, it would leave that its number, which the next connection gets.
    """
    taken = False

    def begin() -> P:
        nonlocal taken
        taken = True
        return protocol()

    try:
        return await asyncio.get_running_loop().create_connection(
            begin, sock=connected, ssl=tls, server_hostname=None if tls is None else host
        )
    except BaseException:
        if not taken:
            connected.close()
        raise
