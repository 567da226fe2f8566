"""The memory that request bodies may take, all requests of the gateway together."""

from collections.abc import Callable

from gateway.errors import BuffersFull

RESERVE_STEP_BYTES = 64 * 1024
"""A body of unknown length reserves this much at a time."""


class BufferBudget:
    """Counts the bytes of request bodies that are held; being full is :class:`BuffersFull`, said at once.

    A body reserves its declared length before the first byte is read (or steps of 64 KiB as it grows) and
    keeps the reservation until its exchange is over, because a retry may need the bytes again. Waiting for
    room instead of refusing could lock: many half-read bodies, each waiting for the others. What the server
    itself holds of a body that nobody has asked for yet (64 KiB, and one read of the socket) comes on top.
    """

    def __init__(self, limit_bytes: int, check: Callable[[int], None] = lambda size_bytes: None) -> None:
        """``check`` is asked before a body is to be ``size_bytes`` long, and raises if it may not be."""
        self.limit_bytes = limit_bytes
        self.check = check
        self.used_bytes = 0

    def reserve(self, size_bytes: int) -> None:
        """Raises :class:`BuffersFull` and reserves nothing when there is no room."""
        if self.used_bytes + size_bytes > self.limit_bytes:
            raise BuffersFull(
                "The gateway's memory for request bodies is in use; send the request again shortly."
            )
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        assert 0 <= size_bytes <= self.used_bytes
        self.used_bytes -= size_bytes


class Reservation:
    """One body's share of the budget. Grows with the body, given back once."""

    def __init__(self, budget: BufferBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """Make sure that ``size_bytes`` in all are reserved. Raises :class:`BuffersFull`, and whatever the
        budget's check raises."""
        if size_bytes > self._held_bytes:
            self._budget.check(size_bytes)
            more = size_bytes - self._held_bytes
            self._budget.reserve(more)
            self._held_bytes = size_bytes

    def grow(self, size_bytes: int) -> None:
        """Like :meth:`hold`, rounded up to the next step."""
        if size_bytes > self._held_bytes:
            self.hold(-(-size_bytes // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES)

    def release(self) -> None:
        self._budget.release(self._held_bytes)
        self._held_bytes = 0
