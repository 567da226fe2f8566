"""How many slots of a model jobs leave to requests that somebody waits for. Pure.

A request that finds no slot free waits until a job has given one back, which takes as long as the job's agent
needs to stop the engine. So while such requests come, as many slots stay free as are needed within that time
in all but one case of five hundred, if requests come independently of each other (a Poisson process) and as
often as lately. Jobs begin only where some more are free, so that they do not begin and give way in turns.
"""

import math

from gateway.scheduling.recent import RecentDict

WINDOW_S = 60.0
"""Time constant over which it is measured how often requests come."""

LEAST_S = 0.5
"""Requests are counted for so long at least before they are taken to come as often again."""

MISSED = 0.002
"""The share of requests that may find no slot."""

FREED_GUESS_S = 0.05
"""How long a slot that is asked for takes to be free, until some have been."""

FREED_WEIGHT = 0.1
"""Weight of the latest slot in the mean of that."""

MODELS = 4096
"""For so many models it is remembered how often requests come; the oldest is forgotten first."""

SHARE = 0.5
"""The share of a model's slots that is kept free at most, rounded down."""


class _Arrivals:
    """Requests for one model, the older the less they count."""

    __slots__ = ("count", "first_s", "last_s")

    def __init__(self, now: float) -> None:
        self.count, self.first_s, self.last_s = 0.0, now, now

    def per_s(self, now: float) -> float:
        count = self.count * math.exp((self.last_s - now) / WINDOW_S)
        known_s = max(LEAST_S, now - self.first_s)
        return count / (WINDOW_S * -math.expm1(-known_s / WINDOW_S))


class InteractiveReserve:
    """Belongs to the event loop's thread. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._arrivals = RecentDict[str, _Arrivals](MODELS)
        self.freed_s = FREED_GUESS_S
        """How long a slot that is asked for takes to be free, in the mean."""

    def came(self, model: str, now: float) -> None:
        """A request that somebody waits for got a slot of ``model``."""
        arrivals = self._arrivals.get(model)
        if arrivals is None:
            arrivals = self._arrivals[model] = _Arrivals(now)
        arrivals.count = arrivals.count * math.exp((arrivals.last_s - now) / WINDOW_S) + 1.0
        arrivals.last_s = now

    def freed(self, took_s: float) -> None:
        """A slot was free so long after it was asked for."""
        self.freed_s += FREED_WEIGHT * (took_s - self.freed_s)

    def kept(self, model: str, slots: int, now: float) -> int:
        """How many of ``slots`` are to be free at any time."""
        arrivals = self._arrivals.get(model)
        if arrivals is None:
            return 0
        return min(_most(arrivals.per_s(now) * self.freed_s), int(slots * SHARE))

    def kept_from_new(self, model: str, slots: int, running: int, now: float) -> int:
        """How many of ``slots`` are to be free after a job has begun, where ``running`` requests that
        somebody waits for have slots: their number rises and falls by about its root."""
        kept = self.kept(model, slots, now)
        return min(kept + math.ceil(math.sqrt(running)), int(slots * SHARE)) if kept else 0


def _most(mean: float) -> int:
    """The least number that a Poisson distribution of this mean exceeds with a probability of ``MISSED`` at
    most."""
    if mean > 100.0:
        return math.ceil(mean + 3.0 * math.sqrt(mean))
    number, each = 0, math.exp(-mean)
    left = 1.0 - each
    while left > MISSED:
        number += 1
        each *= mean / number
        left -= each
    return number
