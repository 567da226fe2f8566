"""Byte credit and windows: how much each side may send, counted absolutely as in QUIC (PROTOCOL §6).

Offsets count body bytes since the stream or the session began (RFC 9000 §4). Nothing here does I/O.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from shared.protocol import limits
from shared.protocol.errors import FlowControlViolated
from shared.protocol.frames import TunnelRole
from shared.speedups import ReceivedBytes


@dataclass(slots=True)
class SendCredit:
    """How many bytes we have sent, and how many the peer lets us send."""

    limit: int
    sent: int = 0

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

    ``session`` holds ``streams`` floors, an eighth of slack for session credit that is on its way to the
    peer, and what all streams share.
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
    def left_bytes(self) -> int:
        """So much credit or more is left when it is granted again: a stream of which its consumer leaves less
        than this waiting is never held back by it."""
        return self.floor // 2

    @property
    def shareable(self) -> int:
        """Bytes that all windows together may take."""
        return self.session - self.session // 8

    def divided(self, sessions: int) -> "WindowSettings":
        """What one of so many sessions grants, so that all together hold what one would. It allows as many
        streams as three quarters of it have floors for; the rest is for those that are fast."""
        if sessions <= 1:
            return self
        session = self.session // sessions
        streams = (session - session // 8) * 3 // 4 // self.floor
        return replace(self, session=session, streams=max(1, min(self.streams, streams)))


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


OWN_WINDOWS = {TunnelRole.GATEWAY: GATEWAY_WINDOWS, TunnelRole.AGENT: AGENT_WINDOWS}


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """How much one side tells the other that it can hold (PROTOCOL §8.4, ``limits``)."""

    streams: int
    stream_window_bytes: int
    """How much of a body may be sent before any CREDIT; a gateway allows more in each OPEN."""
    session_window_bytes: int

    def to_mapping(self) -> dict[str, int]:
        """The member ``limits`` of HELLO and WELCOME."""
        return asdict(self)


def own_limits(windows: WindowSettings) -> PeerLimits:
    """The limits that a side with these windows announces."""
    return PeerLimits(windows.streams, windows.floor, windows.session)


def read_limits(role: TunnelRole, said: Mapping[str, int]) -> PeerLimits:
    """The limits that the peer of ``role`` announced. What it left out is what this version would announce.

    No peer is allowed more streams than we are ready to hold ourselves.
    """
    usual = own_limits(AGENT_WINDOWS if role is TunnelRole.GATEWAY else GATEWAY_WINDOWS)
    return PeerLimits(
        min(said.get("streams", usual.streams), limits.OPEN_STREAMS),
        min(said.get("stream_window_bytes", usual.stream_window_bytes), limits.CREDIT_MAX),
        min(said.get("session_window_bytes", usual.session_window_bytes), limits.CREDIT_MAX),
    )


STEP_MOST_BYTES = 16 * limits.KIB
"""Whoever takes bytes tells of so many, even if no grant is due: who reads slowly is to be seen soon."""

SLOW_ROUND_TRIPS = 32.0
SLOW_S = 0.25
"""Where as much as is granted at a time lasts for both, the rest of the window lasts for longer than a grant
needs to arrive, also if it is half as much. Less than :attr:`WindowSettings.left_bytes` it never is."""


class WindowPool:
    """The part of a session's window above the floors. Streams borrow from it and give back to it."""

    __slots__ = ("_first_parts", "free", "scarce", "settings")

    def __init__(self, settings: WindowSettings) -> None:
        self.settings = settings
        self.free = settings.shareable - settings.floor * settings.streams
        self.scarce = self.free // 2
        """With less, a new stream gets a part."""
        self._first_parts = max(1, settings.streams // 4)

    def borrow_first(self, wanted: int) -> int:
        """Takes up to ``wanted`` bytes for a new stream, of a pool in which there is little.

        It is a part of it: when all streams there may be have come and gone, each has as much as the others,
        and not the first tenth all of it. Less than the least that is worth a CREDIT is not taken.
        """
        part_bytes = min(wanted, self.free // self._first_parts)
        return self.borrow(part_bytes) if part_bytes >= limits.CREDIT_STEP_BYTES else 0

    def borrow(self, wanted: int) -> int:
        """Takes up to ``wanted`` bytes, but never more than half of what is free."""
        size_bytes = self.free // 2
        if wanted < size_bytes:
            size_bytes = wanted
        if size_bytes <= 0:
            return 0
        self.free -= size_bytes
        return size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.free += size_bytes


class _CountedBytes(ReceivedBytes):
    """What was granted to the peer, what came, and what its consumer has taken.

    Invariant: ``consumed <= received <= granted <= consumed + window``.
    """

    __slots__ = ("consumed", "grant_at", "window")
    # The native base has only what native code counts: Python reads and writes slots of its own faster.

    NAME = ""

    def __init__(self, window: int, first_step: int) -> None:
        """``first_step`` is how many bytes are consumed before credit is granted again."""
        self.window = window
        self.granted = window
        self.grant_at = first_step
        """The next grant is due when so many bytes were consumed."""
        self.received = 0
        self.consumed = 0

    def receive(self, size_bytes: int) -> None:
        """Counts bytes from the peer. Raises :class:`FlowControlViolated` beyond what was granted."""
        self.received += size_bytes
        if self.received > self.granted:
            raise FlowControlViolated(f"{self.NAME}offset {self.received} reached, {self.granted} granted")

    def consume(self, size_bytes: int) -> None:
        """Counts bytes as taken by their consumer; only those are granted again."""
        self.consumed += size_bytes
        assert self.consumed <= self.received, (self.consumed, self.received)


class ReceiveCredit(_CountedBytes):
    """The received bytes of one stream. Half a window is granted at a time; of a slow one up to three
    quarters, as long as ``left_bytes`` of the settings are left then."""

    __slots__ = ("_granted_at",)

    def __init__(self, window: int, now: float) -> None:
        # What the base class would do, without another call for every stream.
        self.window = self.granted = window
        self.grant_at = window - window // 2
        self.received = self.consumed = 0
        self._granted_at = now

    def grant(self, pool: WindowPool, rtt_s: float | None, now: float) -> int | None:
        """The offset to grant next, or None while that is not due.

        A window that was used up within two round trips holds the sender back, so it doubles, as far as the
        pool and the maximum allow.
        """
        if self.consumed < self.grant_at:
            return None
        slow = False
        if rtt_s is not None:
            elapsed_s = now - self._granted_at
            if elapsed_s < 2 * rtt_s:
                wanted = min(self.window, pool.settings.maximum - self.window)
                self.window += pool.borrow(wanted)
            else:
                slow = elapsed_s > SLOW_ROUND_TRIPS * rtt_s and elapsed_s > SLOW_S
        self._granted_at = now
        self.granted = self.consumed + self.window
        left_bytes = max(self.window // 4, pool.settings.left_bytes) if slow else self.window // 2
        self.grant_at = self.granted - left_bytes
        return self.granted

    @property
    def step_bytes(self) -> int:
        """How many bytes may be taken before :meth:`consume` hears of them: what a grant needs, or less. The
        sender never waits for it."""
        return min(max(self.grant_at - self.consumed, 1), STEP_MOST_BYTES)


class SessionReceiveCredit(_CountedBytes):
    """The received bytes of all streams. An eighth of the window is granted at a time.

    The windows of streams are reservations in this one, so it never stops a stream that keeps to its own; it
    bounds what a peer can send that does not (PROTOCOL §6.3).
    """

    __slots__ = ()

    NAME = "session "

    def __init__(self, window: int) -> None:
        super().__init__(window, window // 8)

    def grant(self) -> int | None:
        """The offset to grant next, or None while too little was consumed."""
        if self.consumed < self.grant_at:
            return None
        self.granted = self.consumed + self.window
        self.grant_at = self.consumed + self.window // 8
        return self.granted
