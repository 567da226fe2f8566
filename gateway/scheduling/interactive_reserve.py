"""How many slots of a model jobs leave to requests that somebody waits for. Pure.

A request that finds no slot free waits until a job has given one back, which takes as long as the job's agent
needs to stop the engine. So while such requests come, as many slots stay free as are needed within that time
in all but one case of five hundred, if requests come independently of each other (a Poisson process) and as
often as lately. Jobs begin only where some more are free, so that they do not begin and give way in turns.

The number of such requests that run also rises and falls, within about the time that a request takes. After a
job has given way, one more job than are left begins only after a pause, the geometric mean of the time that a
request takes and the time between two of them. A job in the place of one that ended need not wait. A job that
could not give way again begins only where it leaves as many slots as such requests hardly ever exceed.
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

HELD_WEIGHT = 0.02
"""Weight of the latest request in the mean time for which requests have their slots."""

SHARE = 0.5
"""The share of a model's slots that is kept free at most, rounded down."""

LASTING_SHARE = 0.9
"""The share that jobs which cannot give way leave at most, rounded down: a batch is never kept from all."""


class _Arrivals:
    """Requests for one model, the older the less they count."""

    __slots__ = ("count", "first_s", "held_s", "last_s")

    def __init__(self, now: float) -> None:
        self.count, self.first_s, self.last_s = 0.0, now, now
        self.held_s: float | None = None
        """How long they have their slots, in the mean; None until one has ended."""

    def per_s(self, now: float) -> float:
        count = self.count * math.exp((self.last_s - now) / WINDOW_S)
        known_s = max(LEAST_S, now - self.first_s)
        return count / (WINDOW_S * -math.expm1(-known_s / WINDOW_S))


class InteractiveReserve:
    """Belongs to the event loop's thread. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._arrivals = RecentDict[str, _Arrivals](MODELS)
        self._levels = RecentDict[str, tuple[int, float]](MODELS)
        """How many jobs ran when their number last rose above the one before, or one gave way; and when."""
        self.freed_s = FREED_GUESS_S
        """How long a slot that is asked for takes to be free, in the mean."""

    def came(self, model: str, now: float) -> None:
        """A request that somebody waits for got a slot of ``model``."""
        arrivals = self._arrivals.get(model)
        if arrivals is None:
            arrivals = self._arrivals[model] = _Arrivals(now)
        arrivals.count = arrivals.count * math.exp((arrivals.last_s - now) / WINDOW_S) + 1.0
        arrivals.last_s = now

    def left(self, model: str, held_s: float) -> None:
        """Such a request had its slot for so long."""
        arrivals = self._arrivals.get(model)
        if arrivals is not None:
            before_s = held_s if arrivals.held_s is None else arrivals.held_s
            arrivals.held_s = before_s + HELD_WEIGHT * (held_s - before_s)

    def freed(self, took_s: float) -> None:
        """A slot was free so long after it was asked for."""
        self.freed_s += FREED_WEIGHT * (took_s - self.freed_s)

    def gave_way(self, model: str, jobs: int, now: float) -> None:
        """A job of ``model`` gave way, and so many are left."""
        self._levels[model] = jobs, now

    def began(self, model: str, jobs: int, now: float) -> None:
        """A job of ``model`` began, and so many run now."""
        level = self._levels.get(model)
        if level is not None and jobs > level[0]:
            self._levels[model] = jobs, now

    def more_jobs(self, model: str, jobs: int, slots: int, now: float) -> int:
        """How many jobs of ``model`` may begin beside ``jobs``, of ``slots`` at the most, so soon after one
        gave way."""
        level, arrivals = self._levels.get(model), self._arrivals.get(model)
        if level is None or arrivals is None or arrivals.held_s is None:
            return slots
        most, since_s = level
        return max(0, most + (now - since_s >= _pause_s(arrivals.per_s(now), arrivals.held_s)) - jobs)

    def kept_from_lasting(self, model: str, slots: int, now: float) -> int:
        """How many of ``slots`` are left by jobs that cannot give way: as many as requests that somebody
        waits for take at once in all but one case of five hundred, and those that are kept free."""
        arrivals, kept = self._arrivals.get(model), self.kept(model, slots, now)
        if arrivals is None or not kept:
            return 0
        return min(kept + _most(arrivals.per_s(now) * (arrivals.held_s or 0.0)), int(slots * LASTING_SHARE))

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


def _pause_s(per_s: float, held_s: float) -> float:
    """For so long the number of jobs does not rise again. Requests come ``per_s`` times a second, each for
    ``held_s``."""
    return math.sqrt(held_s / per_s) if per_s * held_s > 1.0 else held_s


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
