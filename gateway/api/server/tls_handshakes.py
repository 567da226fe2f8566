"""TLS handshakes that are under way: bounded in all and of each address, for they precede every other bound.

A server of asyncio or uvloop that is given a TLS context begins a handshake with everybody, and tells nobody
whose it is. So ours listens without, and does here what theirs does behind ``ssl=``.

What a handshake costs, a signature and an exchange of keys, the event loop pays for when the client's first
bytes are read. They wait for their turn, so that a crowd does not hold the loop.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from gateway.api.server.client_addresses import PerAddressLimiter
from gateway.runtime.descriptors import ConnectionVerdict, DescriptorBudget, room_for
from shared.tunnel.handshake_queue import HandshakeQueue, HandshakeQueueFull

HANDSHAKES = 256
"""Handshakes of one address at once; it may be a proxy with a whole fleet behind it."""

_LEAST_S = 0.01


@dataclass
class TlsHandshakeLimiter:
    """Limits the TLS handshakes of one server."""

    context: ssl.SSLContext
    places: PerAddressLimiter
    most: int
    """Handshakes at once, in all."""
    handshake_s: float
    """The longest each may take, without the time in which its first bytes wait for their turn."""
    descriptors: DescriptorBudget | None = None
    _handshakes: HandshakeQueue | None = field(default=None, init=False)
    _present: dict[asyncio.Transport, str] = field(default_factory=dict, init=False)

    def before(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """A factory for servers without TLS: what ``make`` makes gets its connection over TLS."""
        return lambda: _PendingHandshake(self, make)

    def enter(self, transport: asyncio.Transport) -> bool:
        """Count a connection; False, and it is to be closed, where there is no room for it."""
        if len(self._present) >= self.most:
            return False
        if room_for(transport, self.descriptors) is not ConnectionVerdict.ENOUGH:
            return False
        peer = transport.get_extra_info("peername")
        group = self.places.group(peer[0]) if peer else ""
        if not self.places.take(group):
            return False
        self._present[transport] = group
        return True

    def leave(self, transport: asyncio.Transport) -> None:
        """It is counted no more, whatever became of it."""
        self.places.leave(self._present.pop(transport))

    def request_turn(self, step: Callable[[], None]) -> None:
        """Raises HandshakeQueueFull."""
        if self._handshakes is None:
            self._handshakes = HandshakeQueue(asyncio.get_running_loop())
        self._handshakes.add(step)

    def secure(
        self, transport: asyncio.Transport, make: Callable[[], asyncio.Protocol], within_s: float
    ) -> Any:
        """Begin the handshake of one that was counted; what to give its bytes to. It leaves by itself."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        over.add_done_callback(lambda _: self._over(transport, over))
        try:
            secured = _protocol_of(loop)(
                loop, make(), self.context, over, server_side=True, ssl_handshake_timeout=within_s
            )
            transport.set_protocol(secured)
            secured.connection_made(transport)
        except BaseException:
            over.cancel()
            transport.abort()
            raise
        return secured

    def abort(self) -> None:
        """End all that are under way."""
        for transport in list(self._present):
            transport.abort()

    def _over(self, transport: asyncio.Transport, over: "asyncio.Future[None]") -> None:
        if not over.cancelled():
            over.exception()  # who fails to shake hands is nobody's concern
        self.leave(transport)


@dataclass(eq=False)
class _PendingHandshake(asyncio.Protocol):
    """One connection, until its handshake begins: when its first bytes are there, and have their turn."""

    limiter: TlsHandshakeLimiter
    make: Callable[[], asyncio.Protocol]
    _transport: asyncio.Transport | None = None
    """While it is counted and its handshake has not begun."""
    _timer: asyncio.TimerHandle | None = None
    _left_s: float = 0.0
    """Of its time, without that in which it waits for its turn."""
    _unread: bytearray = field(default_factory=bytearray)
    _ended: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self.limiter.enter(transport):
            transport.abort()
            return
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.limiter.handshake_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Nothing more is read before they have had their turn."""
        transport = self._transport
        if transport is None:
            return
        waits = bool(self._unread)
        self._unread += data
        if waits:
            return
        self._stop_timer()
        transport.pause_reading()
        try:
            self.limiter.request_turn(self._begin)
        except HandshakeQueueFull:
            transport.abort()

    def eof_received(self) -> bool:
        self._ended = bool(self._unread)
        return self._ended

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        transport, self._transport = self._transport, None
        if transport is not None:
            self.limiter.leave(transport)

    def _begin(self) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        secured = self.limiter.secure(transport, self.make, self._left_s)
        _feed(secured, bytes(self._unread))
        if self._ended:
            secured.eof_received()
            transport.close()
        elif not transport.is_closing():
            transport.resume_reading()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._left_s = max(_LEAST_S, self._timer.when() - asyncio.get_running_loop().time())
            self._timer.cancel()
            self._timer = None


def _feed(secured: Any, data: bytes) -> None:
    """Give ``data`` to a protocol that says itself where to put it (asyncio.BufferedProtocol)."""
    while data:
        room = secured.get_buffer(len(data))
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        secured.buffer_updated(taken)
        data = data[taken:]


def _protocol_of(loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    """What this loop itself puts between a socket and a protocol."""
    uvloop = any(base.__module__.startswith("uvloop") for base in type(loop).__mro__)
    found: Callable[..., Any] = import_module("uvloop.loop" if uvloop else "asyncio.sslproto").SSLProtocol
    return found
