"""How many requests the engine holds at once, and how long to stay away when it is full. Pure."""

from collections.abc import Callable

from agent.backends.torch_engine.faults import QueueFull

_FIRST_GUESS_S = 1.0
_WEIGHT = 0.2
"""Of the newest request in the average time that one takes."""
_LONGEST_S = 120.0
"""SDKs ignore a longer Retry-After."""


class Admission:
    """Places for requests: one for each slot and one for each that may wait. A place is held until its answer
    was sent or given up, so that memory for answers is bounded by places too."""

    def __init__(self, slots: int, queue: int, clock: Callable[[], float]) -> None:
        self.slots = slots
        self.places = slots + queue
        self.taken = 0
        self.refused = 0
        self._clock = clock
        self._average_s = _FIRST_GUESS_S

    def enter(self) -> "Place":
        """Raises :class:`QueueFull` with an honest time to come back."""
        if self.taken >= self.places:
            self.refused += 1
            raise QueueFull(
                f"All {self.places} places of this engine are taken. Send the request again later.",
                retry_after_s=self.drain_s(),
            )
        self.taken += 1
        return Place(self, self._clock())

    def drain_s(self) -> float:
        """When a place should come free, in seconds from now: the average request's time, shared by the
        slots."""
        return min(_LONGEST_S, max(0.05, self._average_s / self.slots))

    def leave(self, entered: float) -> None:
        self.taken -= 1
        self._average_s += _WEIGHT * (self._clock() - entered - self._average_s)


class Place:
    """One request's permit. Released once, by leaving it or by ``release``."""

    def __init__(self, admission: Admission, entered: float) -> None:
        self._admission: Admission | None = admission
        self._entered = entered

    def release(self) -> None:
        if self._admission is not None:
            self._admission.leave(self._entered)
            self._admission = None

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
