"""Numbered messages: counted, kept until acknowledged, acknowledged in time (PROTOCOL §7.1).

Numbers are implicit: the first numbered message of a session is number 1, on each side. Replay on a new
tunnel needs nothing that is not here.
"""

from collections import deque

from shared import limits
from shared.errors import UnexpectedFrame


class MessageLog:
    """What one side sent and received, in messages that carry stream or state frames."""

    __slots__ = (
        "_ack_at",
        "_retained",
        "_unacked_bytes",
        "_unacked_messages",
        "received",
        "retained_bytes",
        "sent",
    )

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.retained_bytes = 0
        self._retained: deque[bytes] = deque()
        """The newest messages sent, oldest first; the last one is number ``sent``."""
        self._unacked_messages = 0
        self._unacked_bytes = 0
        self._ack_at: float | None = None

    @property
    def room_bytes(self) -> int:
        """Bytes that may be sent before the peer must acknowledge; may be negative by one message."""
        return limits.RETAINED_BYTES - self.retained_bytes

    @property
    def retained(self) -> tuple[bytes, ...]:
        """Messages not acknowledged, oldest first."""
        return tuple(self._retained)

    def record_sent(self, message: bytes) -> None:
        self.sent += 1
        self._retained.append(message)
        self.retained_bytes += len(message)

    def acknowledged(self, count: int) -> None:
        """Takes an ACK of the first ``count`` messages; an older one changes nothing.

        Raises :class:`UnexpectedFrame` for messages that were never sent.
        """
        if count > self.sent:
            raise UnexpectedFrame(f"ACK of message {count}, {self.sent} were sent")
        while self.sent - len(self._retained) < count:
            self.retained_bytes -= len(self._retained.popleft())

    def record_received(self, size_bytes: int, now: float) -> bool:
        """Counts a message. True when an ACK is due at once."""
        self.received += 1
        self._unacked_messages += 1
        self._unacked_bytes += size_bytes
        if self._ack_at is None:
            self._ack_at = now + limits.ACK_DELAY_S
        return self._unacked_messages >= limits.ACK_MESSAGES or self._unacked_bytes >= limits.ACK_BYTES

    def next_deadline(self) -> float | None:
        """When an ACK is due; None while everything is acknowledged."""
        return self._ack_at

    def acknowledge(self) -> int:
        """The count to send in an ACK now."""
        self._unacked_messages = self._unacked_bytes = 0
        self._ack_at = None
        return self.received
