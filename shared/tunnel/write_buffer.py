"""Decides how many bytes a tunnel hands to its socket at once (PROTOCOL §2.4)."""

import asyncio
import contextlib
import socket

from shared.protocol import limits

QUICK_S = 0.001
"""A line is fast when it takes a full buffer within this time."""

QUICK_TIMES = 8
"""How often in a row that must happen before the buffer grows: on any line the kernel's own buffers take the
first bytes at once."""


class WriteBuffer:
    """The size of a tunnel's write buffer.

    It is small on a slow line, so that an urgent frame waits for milliseconds only. It is larger on a fast
    one, because a message costs the same whatever its size.

    The bounds are ``SOCKET_BUFFER_BYTES`` and ``MESSAGE_BYTES`` of :mod:`shared.protocol.limits`.
    """

    def __init__(self) -> None:
        self.size_bytes = limits.SOCKET_BUFFER_BYTES
        self._full_s = 0.0
        self._quick = 0

    def filled(self, now: float) -> None:
        """Notes that the socket takes no more."""
        self._full_s = now

    def drained(self, now: float) -> bool:
        """Notes that the socket took what waited. True when the size has changed."""
        took_s = now - self._full_s
        if took_s <= QUICK_S:
            return self.taken()
        before, least_bytes = self.size_bytes, limits.SOCKET_BUFFER_BYTES
        self._quick = 0
        self.size_bytes = least_bytes if took_s > 4 * QUICK_S else max(before // 2, least_bytes)
        return self.size_bytes != before

    def taken(self) -> bool:
        """Notes that the socket took a full buffer at once. True when the size has changed."""
        self._quick += 1
        if self._quick < QUICK_TIMES or self.size_bytes == limits.MESSAGE_BYTES:
            return False
        self._quick = 0
        self.size_bytes = min(2 * self.size_bytes, limits.MESSAGE_BYTES)
        return True

    def set_on(self, transport: asyncio.Transport) -> None:
        """Has the transport and the kernel hold no more than this unsent."""
        transport.set_write_buffer_limits(high=self.size_bytes)
        set_socket_option(transport, "TCP_NOTSENT_LOWAT", self.size_bytes)


def set_socket_option(transport: asyncio.Transport, name: str, value: int) -> None:
    """Does nothing where the platform has no such option, or there is no socket."""
    raw = transport.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError, AttributeError):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
