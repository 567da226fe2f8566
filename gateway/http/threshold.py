"""TLS handshakes that are under way: bounded in all and of each address, for they precede every other bound.

A server of asyncio or uvloop that is given a TLS context begins a handshake with everybody, and tells nobody
whose it is. So ours listens without, and does here what theirs does behind ``ssl=``.
"""

import asyncio
import ssl
from collections.abc import Callable
from importlib import import_module
from typing import Any

from gateway.descriptors import Descriptors, Room
from gateway.http.places import Places

HANDSHAKES = 256
"""Of one address, which may be a proxy with a whole fleet behind it."""


class Threshold:
    """Of one server."""

    def __init__(
        self,
        context: ssl.SSLContext,
        places: Places,
        most: int,
        handshake_s: float,
        descriptors: Descriptors | None = None,
    ) -> None:
        """``most`` handshakes at once in all, each of ``handshake_s`` at the longest."""
        self._context = context
        self._places = places
        self._most = most
        self._handshake_s = handshake_s
        self._descriptors = descriptors
        self._present: dict[asyncio.Transport, str] = {}

    def before(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """A factory for servers without TLS: what ``make`` makes gets its connection over TLS."""
        return lambda: _Stranger(self, make)

    def greet(self, transport: asyncio.Transport, make: Callable[[], asyncio.Protocol]) -> None:
        """Begin a handshake, or close the connection at once."""
        if not self._enter(transport):
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        over.add_done_callback(lambda _: self._leave(transport, over))
        try:
            secured = _protocol_of(loop)(
                loop, make(), self._context, over, server_side=True, ssl_handshake_timeout=self._handshake_s
            )
            transport.set_protocol(secured)
            secured.connection_made(transport)
        except BaseException:
            over.cancel()
            transport.abort()
            raise

    def abort(self) -> None:
        """End all that are under way."""
        for transport in list(self._present):
            transport.abort()

    def _enter(self, transport: asyncio.Transport) -> bool:
        if len(self._present) >= self._most or not self._has_descriptors(transport):
            return False
        peer = transport.get_extra_info("peername")
        group = self._places.group(peer[0]) if peer else ""
        if not self._places.take(group):
            return False
        self._present[transport] = group
        return True

    def _has_descriptors(self, transport: asyncio.Transport) -> bool:
        raw = transport.get_extra_info("socket")
        if raw is None or self._descriptors is None:
            return True
        return self._descriptors.room_for(raw.fileno()) is Room.ENOUGH

    def _leave(self, transport: asyncio.Transport, over: "asyncio.Future[None]") -> None:
        if not over.cancelled():
            over.exception()  # who fails to shake hands is nobody's concern
        self._places.leave(self._present.pop(transport))


class _Stranger(asyncio.Protocol):
    """One connection, until its handshake begins."""

    def __init__(self, threshold: Threshold, make: Callable[[], asyncio.Protocol]) -> None:
        self._threshold = threshold
        self._make = make

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._threshold.greet(transport, self._make)


def _protocol_of(loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """What this loop itself puts between a socket and a protocol."""
    uvloop = any(base.__module__.startswith("uvloop") for base in type(loop).__mro__)
    found: Callable[..., Any] = import_module("uvloop.loop" if uvloop else "asyncio.sslproto").SSLProtocol
    return found
