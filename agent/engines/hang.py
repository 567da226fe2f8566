"""When an engine hangs: its process lives, and nothing is answered. Pure, but for the loop that looks.

Two things show it. It answers no question any more (models, health, load) although it is asked again and
again. Or it answers questions while none of the requests that it has goes on: none is answered, and no answer
gets another byte.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

LOOK_S = 1.0
"""Between two looks at whether an engine hangs."""

STOOD_STILL_S = 5.0
"""After so long without a look this process itself stood still."""

QUESTIONS = 2
"""So many questions in a row have to go unanswered."""


@dataclass(frozen=True, slots=True)
class LifeSigns:
    """What is known of an engine at one moment."""

    heard_s: float = 0.0
    """When something of any answer came last; 0 if none ever did."""
    unanswered: int = 0
    """Questions in a row that got no answer, the last ones."""
    running: int = 0
    """Requests that it has; no WebSockets, on which it may be silent for long."""
    worked_s: float = 0.0
    """When something of the answer to a request came last."""


class HangDetector:
    """``silent_s``: without any answer for so long, though it was asked, an engine hangs. ``still_s``: for so
    long it may have requests, one or several, one after the other or at once, none of which goes on, while it
    answers questions; None: for ever.

    Times are those of one monotonic clock. To be made when the engine serves.
    """

    def __init__(self, silent_s: float, still_s: float | None, now: float) -> None:
        self._silent_s = silent_s
        self._still_s = still_s
        self._began_s = self._looked_s = now
        self._worked_s = 0.0
        self._stood_still_s = 0.0

    def look(self, now: float, signs: LifeSigns) -> str | None:
        """Why the engine hangs; None: it does not, or that is not certain.

        To be called every :data:`LOOK_S`. Where the calls have paused, this process stood still and heard
        nobody, so that the time begins anew.
        """
        since_s, self._looked_s = now - self._looked_s, now
        if since_s > STOOD_STILL_S:
            self._began_s, self._stood_still_s = now, 0.0
        elif signs.worked_s > self._worked_s:
            self._stood_still_s = 0.0
        elif signs.running:
            self._stood_still_s += since_s
        self._worked_s = signs.worked_s
        silence_s = now - max(signs.heard_s, self._began_s)
        if signs.unanswered >= QUESTIONS and silence_s >= self._silent_s:
            return f"the engine hangs: it has answered nothing for {round(silence_s)} s"
        if self._still_s is not None and self._stood_still_s >= self._still_s:
            return f"the engine hangs: none of its requests has gone on for {round(self._stood_still_s)} s"
        return None


async def until_hung(
    detector: HangDetector,
    signs: Callable[[], LifeSigns],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str:
    """Waits until the engine hangs, and says why it is thought to."""
    while True:
        await sleep(LOOK_S)
        if (reason := detector.look(clock(), signs())) is not None:
            return reason
