"""Time as the gateway's callback code sees it: what it needs of an event loop, and nothing more."""

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
