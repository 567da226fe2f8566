"""One timer of the event loop for the deadlines of many tunnels (PROTOCOL §7).

Every tunnel has a deadline seconds ahead, for an ACK or a PING. A thousand timers of their own would wake the
process a thousand times; those of one step of the wheel wake it once.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import ceil, floor
from typing import Protocol

STEP_S = 1 / 16
"""Deadlines within so much time are met together, at its end. It is little beside the delay of an ACK (1 s)
and beside the time after which a peer counts as silent (3 s)."""

TURN_DEADLINES = 32
"""So many are met in one turn of the event loop: a millisecond where each sends something."""


class DeadlineTimer(Protocol):
    """A deadline that can still be cancelled."""

    def cancel(self) -> None: ...


class _WheelTimer:
    """One deadline. It belongs to its wheel until it was met or cancelled."""

    __slots__ = ("_callback", "_step", "_wheel")

    def __init__(self, wheel: "DeadlineWheel", step: int, callback: Callable[[], None]) -> None:
        self._wheel = wheel
        self._step = step
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forgets it. Harmless when it was met or cancelled."""
        if self._callback is not None:
            self._callback = None
            self._wheel._forget(self._step, self)

    def meet(self) -> None:
        """Calls back, unless it was cancelled. Called by the wheel."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class DeadlineWheel:
    """Calls back at the end of the step that a deadline lies in. All calls belong to the event loop's thread.

    Setting and cancelling take the same time however many deadlines there are.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: dict[int, dict[_WheelTimer, None]] = {}
        """The deadlines of each step that has any."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_step = 0

    def call_in(self, left_s: float, callback: Callable[[], None]) -> tuple[DeadlineTimer, float]:
        """Has ``callback`` called in ``left_s`` seconds, or up to ``STEP_S`` later. Returns its timer, and by
        how much it is later. A deadline nearer than a step is met as near to its time as the loop can."""
        if left_s < STEP_S:
            return self._loop.call_later(max(0.0, left_s), callback), 0.0
        at_s = self._loop.time() + left_s
        step = ceil(at_s / STEP_S)
        timer = _WheelTimer(self, step, callback)
        timers = self._steps.get(step)
        if timers is None:
            self._steps[step] = {timer: None}
            if self._timer is None or step < self._timer_step:
                self._wake_at(step)
        else:
            timers[timer] = None
        return timer, step * STEP_S - at_s

    def _forget(self, step: int, timer: _WheelTimer) -> None:
        timers = self._steps.get(step)
        if timers is None:
            return  # its step is being met
        timers.pop(timer, None)
        if not timers:
            del self._steps[step]
            if not self._steps and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _wake_at(self, step: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_step = step
        self._timer = self._loop.call_at(step * STEP_S, self._meet_due)

    def _meet_due(self) -> None:
        """Meets the deadlines of this step, and of earlier ones if the loop stood still."""
        self._timer = None
        # Some loops count milliseconds, so they may call a little early.
        now_step = max(self._timer_step, floor(self._loop.time() / STEP_S))
        steps = sorted(step for step in self._steps if step <= now_step)
        due = [timer for step in steps for timer in self._steps.pop(step)]
        if self._steps:
            self._wake_at(min(self._steps))
        self._meet(deque(due))

    def _meet(self, due: deque[_WheelTimer]) -> None:
        """Meets so many in this turn of the loop, and the others in further ones."""
        for _ in range(min(len(due), TURN_DEADLINES)):
            try:
                due.popleft().meet()
            except Exception as error:
                context = {"message": "a tunnel failed at its deadline", "exception": error}
                self._loop.call_exception_handler(context)
        if due:
            self._loop.call_soon(self._meet, due)
