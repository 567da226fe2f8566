"""Byte credit: who may send how much, counted absolutely as in QUIC (PROTOCOL §6; RFC 9000 §4).

Offsets count body bytes since the stream (or the session) began. Nothing here does I/O.
"""

from dataclasses import dataclass

from shared.protocol import limits
from shared.protocol.errors import FlowControlViolated


class SendCredit:
    """What we have sent and how far the peer lets us go."""

    __slots__ = ("limit", "sent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sent = 0

    @property
    def available(self) -> int:
        """Bytes that may be sent now."""
        return self.limit - self.sent

    def spend(self, size_bytes: int) -> None:
        """Counts bytes as sent. Asserts that the credit allows them."""
        self.sent += size_bytes
        assert self.sent <= self.limit, (self.sent, self.limit)

    def advance(self, limit: int) -> int:
        """Takes a CREDIT and returns how many bytes more it allows; a repeated or older one changes nothing.

        Raises :class:`FlowControlViolated` for an offset no stream can have.
        """
        if limit > limits.CREDIT_MAX:
            raise FlowControlViolated(f"credit up to offset {limit}")
        if limit <= self.limit:
            return 0
        further_bytes = limit - self.limit
        self.limit = limit
        return further_bytes


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How one side grants credit, in bytes (PROTOCOL §6.3).

    ``session`` must hold ``streams`` floors and an eighth, in which session credit is on its way to the peer;
    what is left is shared.
    """

    floor: int
    initial: int
    maximum: int
    session: int
    streams: int

    def __post_init__(self) -> None:
        assert self.floor * self.streams <= self.shareable
        assert self.floor <= self.initial <= self.maximum

    @property
    def shareable(self) -> int:
        """Bytes that all windows together may take."""
        return self.session - self.session // 8


GATEWAY_WINDOWS = WindowSettings(
    floor=limits.STREAM_WINDOW_FLOOR_BYTES,
    initial=limits.STREAM_WINDOW_BYTES,
    maximum=limits.STREAM_WINDOW_MAX_BYTES,
    session=limits.SESSION_WINDOW_BYTES,
    streams=limits.OPEN_STREAMS,
)
"""What a gateway grants responses."""

AGENT_WINDOWS = WindowSettings(
    floor=limits.UPLOAD_WINDOW_FLOOR_BYTES,
    initial=limits.UPLOAD_WINDOW_BYTES,
    maximum=limits.STREAM_WINDOW_MAX_BYTES,
    session=limits.UPLOAD_SESSION_WINDOW_BYTES,
    streams=limits.OPEN_STREAMS,
)
"""What an agent grants request bodies."""


class WindowPool:
    """The part of a session's window above the floors, which windows borrow from and give back to."""

    __slots__ = ("free", "settings")

    def __init__(self, settings: WindowSettings) -> None:
        self.settings = settings
        self.free = settings.shareable - settings.floor * settings.streams

    def borrow(self, wanted: int) -> int:
        """Takes up to ``wanted`` bytes, but never more than half of what is free."""
        size_bytes = max(0, min(wanted, self.free // 2))
        self.free -= size_bytes
        return size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.free += size_bytes


class ReceiveCredit:
    """What we granted on one stream, what came and what its consumer has taken.

    Invariant: ``consumed <= received <= granted <= consumed + window``.
    """

    __slots__ = ("_granted_at", "consumed", "grant_at", "granted", "received", "window")

    def __init__(self, window: int, granted: int, now: float) -> None:
        self.window = window
        self.granted = granted
        self.grant_at = granted - window // 2
        """When so much was consumed half the window is used, and the next grant is due."""
        self.received = 0
        self.consumed = 0
        self._granted_at = now

    def receive(self, size_bytes: int) -> None:
        """Counts bytes from the peer. Raises :class:`FlowControlViolated` beyond what was granted."""
        self.received += size_bytes
        if self.received > self.granted:
            raise FlowControlViolated(f"offset {self.received} reached, {self.granted} granted")

    def consume(self, size_bytes: int) -> None:
        """Counts bytes as taken by their consumer; only those are granted again."""
        self.consumed += size_bytes
        assert self.consumed <= self.received, (self.consumed, self.received)

    def grant(self, pool: WindowPool, rtt_s: float | None, now: float) -> int | None:
        """The offset to grant next, or None while more than half a window is still open.

        A window that was used up within two round trips is what holds the sender back, so it doubles, as far
        as the pool and the maximum allow.
        """
        if self.consumed < self.grant_at:
            return None
        if rtt_s is not None and now - self._granted_at < 2 * rtt_s:
            wanted = min(self.window, pool.settings.maximum - self.window)
            self.window += pool.borrow(wanted)
        self._granted_at = now
        self.granted = self.consumed + self.window
        self.grant_at = self.granted - self.window // 2
        return self.granted


class SessionReceiveCredit:
    """Credit of the whole session. Because windows are reservations it never stops an innocent stream; it is
    what the peer is held to (PROTOCOL §6.3)."""

    __slots__ = ("consumed", "grant_at", "granted", "received", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.granted = window
        self.grant_at = window // 8
        """When so much was consumed the next grant is due: an eighth of the window after the last."""
        self.received = 0
        self.consumed = 0

    def receive(self, size_bytes: int) -> None:
        """Raises :class:`FlowControlViolated` beyond what was granted."""
        self.received += size_bytes
        if self.received > self.granted:
            raise FlowControlViolated(f"session offset {self.received} reached, {self.granted} granted")

    def consume(self, size_bytes: int) -> None:
        self.consumed += size_bytes
        assert self.consumed <= self.received, (self.consumed, self.received)

    def grant(self) -> int | None:
        """The offset to grant next, or None while too little was consumed."""
        if self.consumed < self.grant_at:
            return None
        self.granted = self.consumed + self.window
        self.grant_at = self.consumed + self.window // 8
        return self.granted
