"""Counts numbered messages, keeps them until they are acknowledged, and says when to acknowledge (§7.1).

Numbers are implicit: on each side the first numbered message of a session is number 1. On a new tunnel the
messages that the peer has not received are sent again in the same order (PROTOCOL §7.4).
"""

from collections import deque

from shared.protocol import limits
from shared.protocol.errors import ResumeRefused, UnexpectedFrame


class MessageLog:
    """The numbered messages that one side sent and received."""

    def __init__(self, ack_delay_s: float = limits.ACK_DELAY_S) -> None:
        """An ACK is held back for ``ack_delay_s`` seconds at most."""
        self.ack_delay_s = ack_delay_s
        self.sent = 0
        self.received = 0
        self.retained_bytes = 0
        self.replayed = 0
        """Messages that were sent again, on all tunnels."""
        self._retained: deque[bytes] = deque()
        """The newest messages sent, oldest first; the last one is number ``sent``."""
        self.replaying: deque[bytes] = deque()
        """Those of them that must still be sent again on the present tunnel, before anything new."""
        self._received_bytes = 0
        self._ack_from, self._ack_from_bytes = limits.ACK_MESSAGES, limits.ACK_BYTES
        """An ACK is due at once when so many messages or so many bytes have been received in all."""
        self.ack_at: float | None = None
        """When an ACK is due; None while everything is acknowledged."""

    def record_sent(self, messages: list[bytes]) -> None:
        self.sent += len(messages)
        self._retained += messages
        self.retained_bytes += sum(map(len, messages))

    def can_resume(self, peer_received: int) -> bool:
        """Whether everything that a peer lacks, which has received so many messages, is still kept."""
        return self.sent - len(self._retained) <= peer_received <= self.sent

    def resume(self, peer_received: int) -> None:
        """A new tunnel, on which both sides have said what they received. Raises :class:`ResumeRefused`."""
        if not self.can_resume(peer_received):
            kept_from = self.sent - len(self._retained)
            raise ResumeRefused(f"the peer has {peer_received} messages; {kept_from} to {self.sent} are kept")
        self.acknowledged(peer_received)
        self.replaying = deque(self._retained)
        self.acknowledge()

    def take_replay(self, budget_bytes: int) -> list[bytes]:
        """Messages to send again, oldest first, until the budget is used up or overrun by one."""
        messages: list[bytes] = []
        while self.replaying and budget_bytes > 0:
            messages.append(self.replaying.popleft())
            budget_bytes -= len(messages[-1])
        self.replayed += len(messages)
        return messages

    def acknowledged(self, count: int) -> bool:
        """Takes an ACK of the first ``count`` messages. False for one that is older or repeated: it changes
        nothing.

        Raises :class:`UnexpectedFrame` for messages that were never sent.
        """
        if count > self.sent:
            raise UnexpectedFrame(f"ACK of message {count}, {self.sent} were sent")
        further = count - (self.sent - len(self._retained))
        for _ in range(further):
            self.retained_bytes -= len(self._retained.popleft())
        return further > 0

    def record_received(self, size_bytes: int, now: float) -> bool:
        """Counts a message. True when an ACK is due at once."""
        self.received += 1
        self._received_bytes += size_bytes
        if self.ack_at is None:
            self.ack_at = now + self.ack_delay_s
        return self.received >= self._ack_from or self._received_bytes >= self._ack_from_bytes

    def acknowledge(self) -> int:
        """The count to send in an ACK now."""
        self._ack_from = self.received + limits.ACK_MESSAGES
        self._ack_from_bytes = self._received_bytes + limits.ACK_BYTES
        self.ack_at = None
        return self.received
