"""How long this process did not run, as its event loop sees it: paused, without a core, or blocked by itself.

What others were to do within a time cannot have been noticed meanwhile. Pure; times in seconds, of one clock.
"""

from collections import deque

BEAT_S = 0.25
"""How often the loop says that it turns."""

LEAST_S = 0.5
"""Shorter ones are no stand-still."""

_KEPT = 16


class StandStills:
    """The latest of them."""

    def __init__(self, now: float) -> None:
        self._turned_s = now
        self._ended: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """When one was over, and how long it was."""

    def turn(self, now: float) -> None:
        """The loop turns; called every ``BEAT_S``."""
        late_s = self._late_s(now)
        if late_s:
            self._ended.append((now, late_s))
        self._turned_s = now

    def since(self, at_s: float, now: float) -> float:
        """For how long the process stood still between ``at_s`` and ``now``. What has just ended counts, too,
        before the loop says that it turns."""
        return sum(min(lasted_s, end_s - at_s) for end_s, lasted_s in self._ended if end_s > at_s) + max(
            0.0, min(self._late_s(now), now - at_s)
        )

    def _late_s(self, now: float) -> float:
        late_s = now - self._turned_s - BEAT_S
        return late_s if late_s >= LEAST_S else 0.0
