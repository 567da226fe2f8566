"""Time as the gateway's callback code sees it: what it needs of an event loop, and a timer that is set anew
only when it would come too late.

Nearly every request is over long before any of its time limits, and setting and cancelling a timer of the
event loop takes a hundredth of all that is done for it. Timers of requests therefore share one:
:class:`TimerWheel`.
"""

from collections.abc import Callable
from math import ceil, floor, inf
from typing import Protocol

from shared.process.timers import Cancellable

STEPS_A_SECOND = 16
"""Times in one step of the wheel are met together, at its end: never early, and up to so much late."""

NEAR_S = 1.0
"""A time nearer than this is met as near as the event loop can; of one farther away a step is little."""


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


class TimerWheel:
    """One timer of the event loop for many timers: it is set for the first step in which one of them is due.

    Setting and cancelling one is an entry in a dictionary, however many there are.
    """

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self._steps: dict[int, dict[LazyTimer, None]] = {}
        """The timers of each step that has any."""
        self._set: Cancellable | None = None
        self._set_step = 0

    def enter(self, timer: "LazyTimer", due_s: float) -> int:
        """Have ``timer`` woken at the end of the step that ``due_s`` lies in. Returns the step."""
        step = ceil(due_s * STEPS_A_SECOND)
        timers = self._steps.get(step)
        if timers is not None:
            timers[timer] = None
        else:
            self._steps[step] = {timer: None}
            if self._set is None or step < self._set_step:
                self._set_for(step)
        return step

    def leave(self, timer: "LazyTimer", step: int) -> None:
        """``timer``, which entered ``step``, need not be woken. The event loop's timer stays: the next one to
        enter needs it."""
        timers = self._steps[step]
        del timers[timer]
        if not timers:
            del self._steps[step]

    def _set_for(self, step: int) -> None:
        if self._set is not None:
            self._set.cancel()
        self._set_step = step
        self._set = self.timers.call_at(step / STEPS_A_SECOND, self._on_time)

    def _on_time(self) -> None:
        """Wake the timers of this step, and of earlier ones if the loop stood still. Those behind one that
        raises are woken in another turn."""
        self._set = None
        now = self.timers.time()
        # Some loops count milliseconds, so they may call a little early.
        now_step = max(self._set_step, floor(now * STEPS_A_SECOND))
        try:
            for step in sorted(step for step in self._steps if step <= now_step):
                for timer in list(self._steps.get(step, ())):
                    if timer.step == step:  # none before has cancelled it
                        self._wake(timer, step, now)
        finally:
            first = min(self._steps, default=None)
            if first is not None and (self._set is None or first < self._set_step):
                self._set_for(first)

    def _wake(self, timer: "LazyTimer", step: int, now: float) -> None:
        timers = self._steps[step]
        del timers[timer]
        if not timers:
            del self._steps[step]
        timer.wake(now)


class LazyTimer:
    """Calls its owner's ``on_time`` at a set time, or up to a step of the wheel later where that is more than
    ``NEAR_S`` ahead. Setting it later costs nothing: it wakes early and waits again."""

    __slots__ = ("_due_s", "_near", "_owner", "_wakes_s", "_wheel", "step")

    def __init__(self, wheel: TimerWheel, owner: Timed, due_s: float, now: float) -> None:
        """Calls at ``due_s``, unless it is set to another time before."""
        self._wheel = wheel
        self._owner: Timed | None = owner
        """None once it is closed."""
        self._due_s = due_s
        self._near: Cancellable | None = None
        """The event loop's own timer, for a time that is near."""
        self.step: int | None = None
        """Of the wheel, in which it is; None: in none."""
        self._wakes_s = due_s
        """Infinite while it is not set."""
        if due_s - now >= NEAR_S:
            self.step = wheel.enter(self, due_s)
        else:
            self._near = wheel.timers.call_at(due_s, self._on_time)

    def set(self, when_s: float) -> None:
        """Call at ``when_s`` and at no other time."""
        self._due_s = when_s
        if when_s < self._wakes_s:
            self.cancel()
            self._wait(self._wheel.timers.time())

    def cancel(self) -> None:
        self._wakes_s = inf
        if self.step is not None:
            step, self.step = self.step, None
            self._wheel.leave(self, step)
        elif self._near is not None:
            self._near.cancel()
            self._near = None

    def close(self) -> None:
        """Cancel it for good, and forget its owner with all that it refers to."""
        self.cancel()
        self._owner = None

    def wake(self, now: float) -> None:
        """Its step is over. Called by the wheel, in which it is no more."""
        self.step, self._wakes_s = None, inf
        if now < self._due_s:
            self._wait(now)
        elif self._owner is not None:
            self._owner.on_time(now)

    def _wait(self, now: float) -> None:
        due_s = self._wakes_s = self._due_s
        if due_s - now >= NEAR_S:
            self.step = self._wheel.enter(self, due_s)
        else:
            self._near = self._wheel.timers.call_at(due_s, self._on_time)

    def _on_time(self) -> None:
        self._near = None
        self.wake(self._wheel.timers.time())
