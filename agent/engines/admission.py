"""How many requests an engine that computes here has at once, and when there is room for another."""

from collections.abc import Callable
from contextlib import ExitStack

from shared.process.request_errors import QueueFull

_FIRST_GUESS_S = 1.0
_WEIGHT = 0.2
"""Weight of the newest request in the mean time of a request."""
_LONGEST_S = 120.0
"""SDKs ignore a longer Retry-After."""


class EngineAdmission:
    """Places for requests: one for each slot and one for each that may wait. A place is held until its answer
    was sent or given up, so that memory for answers is bounded by places too."""

    def __init__(self, slots: int, queue: int, clock: Callable[[], float]) -> None:
        self.slots = slots
        self.places = slots + queue
        self.taken = 0
        self._clock = clock
        self._average_s = _FIRST_GUESS_S

    def enter(self) -> ExitStack:
        """A place, which is given back when the stack is closed.

        Raises :class:`QueueFull` with an honest time to come back.
        """
        if self.taken >= self.places:
            raise QueueFull(
                f"All {self.places} places of this engine are taken. Send the request again later.",
                retry_after_s=self.drain_s(),
            )
        self.taken += 1
        permit = ExitStack()
        permit.callback(self._leave, self._clock())
        return permit

    def resize(self, slots: int, places: int) -> None:
        """So many from now on; those that are in stay."""
        self.slots, self.places = slots, places

    def drain_s(self) -> float:
        """When a place should come free, in seconds from now: the average request's time, shared by the
        slots."""
        return min(_LONGEST_S, max(0.05, self._average_s / self.slots))

    def _leave(self, entered: float) -> None:
        self.taken -= 1
        self._average_s += _WEIGHT * (self._clock() - entered - self._average_s)
