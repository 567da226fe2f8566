"""Callbacks that are called later, as code without an event loop of its own sees them."""

from collections.abc import Callable
from typing import Protocol


class Cancellable(Protocol):
    """A callback that can still be called off."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Cancellable]
"""Calls something after so many seconds."""
