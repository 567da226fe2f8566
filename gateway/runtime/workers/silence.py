"""Which workers have hung: each says every second that its event loop runs. Pure; times in seconds.

Time counts only while the supervisor looks. Where it could not, because the machine was suspended, or was too
busy to run it, the workers could not say anything either.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

BEAT_S = 1.0
"""Between two signs of life of a worker."""

SILENCE_S = 15.0
"""A worker that says nothing for so long is killed, unless the settings say otherwise."""

START_S = 120.0
"""A worker that does not come to serve within this time is killed, unless the settings say otherwise."""

FIRST_START_TIMES = 5
"""The first worker of all has so many times as long, because it brings the store's tables up to date."""

LOOK_S = 1.0
"""Between two looks of the supervisor at most."""

STEP_S = 2.0
"""Between two looks no more time than this counts, however much passed."""

COVERED_PART = 1 / 5
"""Of the silence after which a worker is killed: from then on others accept its connections as well."""

Worker = TypeVar("Worker", bound=Hashable)


class SilenceWatch(Generic[Worker]):
    """How long each worker has said nothing. One that never said anything is not watched: it is of a version
    that does not, or is being started."""

    def __init__(self, limit_s: float, now: float) -> None:
        """``limit_s``: 0 for no limit."""
        self._limit_s = limit_s
        self._looked_s = now
        self._counted_s = 0.0
        """What counts of the time until the latest look."""
        self._heard_s: dict[Worker, float] = {}

    @property
    def watches(self) -> bool:
        """Whether there is a worker that may be found to be silent."""
        return bool(self._heard_s)

    def look(self, now: float) -> None:
        """Time has passed until ``now``. What workers had said before it has been heard or is heard next."""
        self._counted_s += min(max(0.0, now - self._looked_s), STEP_S)
        self._looked_s = now

    def heard(self, worker: Worker) -> None:
        """It has just given a sign of life."""
        if self._limit_s:
            self._heard_s[worker] = self._counted_s

    def forget(self, worker: Worker) -> None:
        """It has ended, or was told to, and may be silent from now on. Idempotent."""
        self._heard_s.pop(worker, None)

    def silent_s(self, worker: Worker) -> float:
        """For how long it has been silent, as far as time counts; 0 for one that is not watched."""
        heard_s = self._heard_s.get(worker)
        return 0.0 if heard_s is None else self._counted_s - heard_s

    def is_late(self, worker: Worker) -> bool:
        """It may have hung: others are to accept its connections as well."""
        return self.silent_s(worker) > max(STEP_S, self._limit_s * COVERED_PART)

    def hung(self) -> list[Worker]:
        """Those that have been silent for longer than the limit."""
        return [each for each in self._heard_s if self.silent_s(each) > self._limit_s]
