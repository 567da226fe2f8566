"""How much a tunnel hands to its socket at once (PROTOCOL §2.4)."""

from shared.protocol import limits

QUICK_S = 0.001
"""A line is fast that takes what the room holds within this."""

QUICK_TIMES = 8
"""So often in a row, before the room grows: the kernel's own buffers take the first of it on any line."""


class WriteBuffer:
    """Little on a slow line, so that what becomes urgent waits for milliseconds only; more on a fast one,
    where a millisecond's worth is more, and each message costs the same whatever its size.

    From :data:`~shared.protocol.limits.SOCKET_BUFFER_BYTES` to :data:`~shared.protocol.limits.MESSAGE_BYTES`.
    """

    __slots__ = ("_full_s", "_quick", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = limits.SOCKET_BUFFER_BYTES
        self._full_s = 0.0
        self._quick = 0

    def filled(self, now: float) -> None:
        """The socket takes no more."""
        self._full_s = now

    def drained(self, now: float) -> bool:
        """The socket took it in the end. True when the room is another one now."""
        took_s = now - self._full_s
        if took_s <= QUICK_S:
            return self.taken()
        before, least_bytes = self.size_bytes, limits.SOCKET_BUFFER_BYTES
        self._quick = 0
        self.size_bytes = least_bytes if took_s > 4 * QUICK_S else max(before // 2, least_bytes)
        return self.size_bytes != before

    def taken(self) -> bool:
        """The socket took as much as there is room for at once. True when the room is another one now."""
        self._quick += 1
        if self._quick < QUICK_TIMES or self.size_bytes == limits.MESSAGE_BYTES:
            return False
        self._quick = 0
        self.size_bytes = min(2 * self.size_bytes, limits.MESSAGE_BYTES)
        return True
