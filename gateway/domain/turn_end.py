"""What is done at the end of a turn of the event loop, for all that happened in it together."""

import asyncio
from collections.abc import Callable

from shared.process.timers import Cancellable

ROUNDS = 4
"""What is left for the turn's end may leave more for it, so many times over. The rest waits for another
turn."""


class TurnEnd:
    """Calls steps once the present turn of the loop is over. Belongs to the event loop's thread.

    An event loop first reads what has come, then runs the tasks that this has started or woken. What one of
    them has called with ``call_soon`` comes a turn later: before that the loop asks the system for input once
    more, mostly in vain. Therefore whoever read something calls :meth:`input_read`. Steps are then taken
    behind the tasks of this turn, also of what others read in it, without another look for input.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: list[Callable[[], None]] = []
        self._taking = self._take_steps
        """Bound once: it is handed to the loop with all that comes."""
        self._coming: Cancellable | None = None
        """The call that takes the steps."""

    def input_read(self) -> None:
        """Input was read, and the tasks that it concerns are started or woken."""
        if self._coming is not None:
            self._coming.cancel()
        self._coming = self._loop.call_soon(self._taking)

    def call(self, step: Callable[[], None]) -> None:
        """Have ``step`` called at the end of this turn, or of the next one if it is ending. What it raises
        goes to the loop's exception handler."""
        self._steps.append(step)
        if self._coming is None:
            self._coming = self._loop.call_soon(self._taking)

    def _take_steps(self) -> None:
        try:
            for _ in range(ROUNDS if self._steps else 0):
                steps, self._steps = self._steps, []
                for step in steps:
                    try:
                        step()
                    except Exception as error:
                        self._report(error)
                if not self._steps:
                    break
        finally:
            self._coming = self._loop.call_soon(self._taking) if self._steps else None

    def _report(self, error: Exception) -> None:
        context = {"message": "a step at the end of a turn failed", "exception": error}
        self._loop.call_exception_handler(context)
