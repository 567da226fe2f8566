"""Slow start: slots of a deployment that is new or recovered come into use little by little (SCHEDULING §6).

An engine that just started has cold caches, kernels to compile and weights to page in; all its slots at
once would make it slow for everybody on it. Envoy ramps the weight of a new endpoint in a straight line too
(its slow start mode, from 10 %); here it is a quarter, because a deployment often has only four slots.
"""

import math

from gateway.scheduling.base import NO_CAP

FIRST_SHARE = 0.25
STEPS = 30
"""A ramp is looked at that often at most."""


class Ramp:
    """Over ``slow_start_s`` seconds from :meth:`begin`; 0 is no slow start."""

    __slots__ = ("_begun_s", "_slow_start_s")

    def __init__(self, slow_start_s: float) -> None:
        self._slow_start_s = slow_start_s
        self._begun_s = float("-inf")

    def begin(self, now: float) -> None:
        self._begun_s = now

    def climbing(self, now: float) -> bool:
        return now - self._begun_s < self._slow_start_s

    def cap(self, slots: int, now: float) -> int:
        """How many of ``slots`` may be in use: a quarter at first, at least 1, all in the end."""
        if not self.climbing(now):
            return NO_CAP
        share = FIRST_SHARE + (1.0 - FIRST_SHARE) * (now - self._begun_s) / self._slow_start_s
        return max(1, math.floor(slots * share + 1e-9))

    def next_s(self, slots: int, now: float) -> float | None:
        """When to look again: when the cap will have grown. None when it will not."""
        if not self.climbing(now):
            return None
        end_s = self._begun_s + self._slow_start_s
        share = (self.cap(slots, now) + 1) / max(slots, 1)
        grown_s = self._begun_s + self._slow_start_s * (share - FIRST_SHARE) / (1.0 - FIRST_SHARE)
        return min(max(grown_s, now + self._slow_start_s / STEPS), end_s)
