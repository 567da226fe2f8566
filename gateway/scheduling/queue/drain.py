"""How fast those who wait for a model get slots. Pure data, ``now`` is an argument."""

import math

DRAIN_MEMORY_S = 30.0
"""Departures count e times less after this long: a rate follows a change of the fleet within a minute."""

PRIOR_WEIGHT_S = 2.0
"""Seconds of measured waiting that weigh as much as the guess."""

_FORGOTTEN = 0.01
"""What a departure counts after 138 s."""


class DrainRate:
    """Departures per second from one queue, an exponentially forgetting mean over the time it was not empty.

    Time in which nobody waited says nothing about how fast a queue would drain, so it does not count.
    """

    def __init__(self, now: float) -> None:
        self._departures = 0.0
        self._waited_s = 0.0
        self._updated_s = now
        self.backlogged = False
        """Whether requests wait that could not be given a slot; to be read only."""

    @property
    def measured(self) -> bool:
        """Whether one that had to wait departed in the last minutes."""
        return self._departures > _FORGOTTEN

    def set_backlogged(self, backlogged: bool, now: float) -> None:
        """Whether requests wait, from ``now`` on."""
        self._forget(now)
        self.backlogged = backlogged

    def departed(self, now: float) -> None:
        """One was taken out for a slot. Counts only if it had to wait."""
        if self.backlogged:
            self._forget(now)
            self._departures += 1.0

    def undo_departure(self, now: float) -> None:
        """One that departed was refused by an engine and waits again."""
        self._forget(now)
        self._departures = max(0.0, self._departures - 1.0)

    def per_s(self, now: float, guess_per_s: float) -> float:
        """Departures per second; ``guess_per_s`` is what to believe before anything was measured (≥ 0)."""
        self._forget(now)
        return (self._departures + guess_per_s * PRIOR_WEIGHT_S) / (self._waited_s + PRIOR_WEIGHT_S)

    def _forget(self, now: float) -> None:
        elapsed_s = now - self._updated_s
        if elapsed_s <= 0:
            return
        kept = math.exp(-elapsed_s / DRAIN_MEMORY_S)
        self._departures *= kept
        self._waited_s *= kept
        if self.backlogged:
            self._waited_s += DRAIN_MEMORY_S * (1.0 - kept)
        self._updated_s = now
