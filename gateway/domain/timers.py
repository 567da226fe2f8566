"""Time as the gateway's callback code sees it: what it needs of an event loop, and a timer that is set anew
only when it would come too late."""

from collections.abc import Callable
from typing import Protocol

from shared.process.timers import Cancellable


class Timers(Protocol):
    """A monotonic clock in seconds and callbacks at its times. ``asyncio``'s event loop is one as it is."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[[], None], /) -> Cancellable:
        """Call back once the present turn of the loop is over."""
        ...

    def call_at(self, when_s: float, callback: Callable[[], None], /) -> Cancellable: ...


class Timed(Protocol):
    """Whom a timer tells that its time has come."""

    def on_time(self, now: float) -> None: ...


class LazyTimer:
    """Calls its owner's ``on_time`` at a set time. Setting it later costs nothing: it wakes early and waits
    again."""

    __slots__ = ("_due_s", "_owner", "_timer", "_timer_s", "_timers")

    def __init__(self, timers: Timers, owner: Timed, due_s: float) -> None:
        """Calls at ``due_s``, unless it is set to another time before."""
        self._timers = timers
        self._owner: Timed | None = owner
        """None once it is closed."""
        self._due_s = self._timer_s = due_s
        self._timer: Cancellable | None = timers.call_at(due_s, self._on_time)

    def set(self, when_s: float) -> None:
        """Call at ``when_s`` and at no other time."""
        self._due_s = when_s
        if self._timer is None or self._timer_s > when_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = when_s
            self._timer = self._timers.call_at(when_s, self._on_time)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Cancel it for good, and forget its owner with all that it refers to."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owner = None

    def _on_time(self) -> None:
        self._timer = None
        now = self._timers.time()
        if now < self._due_s:
            self.set(self._due_s)
        elif self._owner is not None:
            self._owner.on_time(now)
