"""The gateway's ``Timers`` on a clock that moves only when the test says so."""

from collections import deque
from collections.abc import Callable

from tests.support.clock import ManualClock, Timer


class Loop(ManualClock):
    """A manual clock that is also the gateway's ``Timers``."""

    def __init__(self) -> None:
        super().__init__()
        self._soon: deque[Call] = deque()
        self._set: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        timer = super().call_at(when_s, callback)
        self._set.append(timer)
        return timer

    @property
    def pending(self) -> int:
        """Timers that are set, neither fired nor cancelled."""
        self._set = [timer for timer in self._set if timer._callback is not None]
        return len(self._set)

    def call_soon(self, callback: Callable[[], None]) -> "Call":
        call = Call(callback)
        self._soon.append(call)
        return call

    def turn(self) -> bool:
        """Run what was called for soon. False when there was nothing."""
        ran = bool(self._soon)
        for _ in range(len(self._soon)):
            self._soon.popleft().run()
        return ran


class Call:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        if self._callback is not None:
            self._callback()
