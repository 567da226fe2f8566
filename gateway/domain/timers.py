"""Time as the gateway's callback code sees it: what it needs of an event loop, and a timer that is set anew
only when it would come too late."""

from collections.abc import Callable
from typing import Protocol


class Cancellable(Protocol):
    """A callback that can still be called off."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """A monotonic clock in seconds and callbacks at its times. ``asyncio``'s event loop is one as it is."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[[], None], /) -> Cancellable:
        """Call back once the present turn of the loop is over."""
        ...

    def call_at(self, when_s: float, callback: Callable[[], None], /) -> Cancellable: ...


class LazyTimer:
    """Calls ``ring(now)`` when it is due. Setting it later costs nothing: it wakes early and sleeps again."""

    __slots__ = ("_due_s", "_ring", "_timer", "_timer_s", "_timers")

    def __init__(self, timers: Timers, ring: Callable[[float], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._due_s = 0.0
        self._timer_s = 0.0
        self._timer: Cancellable | None = None

    def due(self, when_s: float) -> None:
        """Ring at ``when_s`` and at no other time."""
        self._due_s = when_s
        if self._timer is None or self._timer_s > when_s:
            self.off()
            self._timer_s = when_s
            self._timer = self._timers.call_at(when_s, self._on_time)

    def off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """It never rings again, and forgets whom it would have told."""
        self.off()
        self._ring = _nobody

    def _on_time(self) -> None:
        self._timer = None
        now = self._timers.time()
        if now < self._due_s:
            self.due(self._due_s)
        else:
            self._ring(now)


def _nobody(now: float) -> None:
    """Was to be told."""
