"""Requests that flow into the slots of replicas, and how many of them are late. Pure.

Requests are an amount here, not one by one: so much comes in a second, each keeps a slot for as long as it
takes with all slots taken, and what finds none waits. An amount ``n`` stands for a number that scatters about
it as one of independent arrivals does, with the variance ``n``: so some wait before all slots are taken. As
many slots as there are take up a gust before anything waits, which a queue that is known only by what its
servers do in a second does not show.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.scheduling.scaling.data import ClassFacts, ScalingRule

_ROOT_OF_2 = math.sqrt(2.0)
_FAR = 8.0
"""Standard deviations beyond which nothing is taken to be."""


@dataclass(frozen=True, slots=True)
class Flowed:
    """In one span of time, in requests."""

    came: float
    late: float
    """Of those that came: what has no slot in time for its first token."""
    refused: float
    """Waited for too long and was refused."""


class SlotFlow:
    """What runs and waits at replicas of one class."""

    def __init__(self, facts: ClassFacts, rule: ScalingRule) -> None:
        first_s = facts.first_s if facts.usual_first_s is None else facts.usual_first_s
        self._patience_s = max(0.0, rule.first_token_s - first_s)
        self._most_wait_s = rule.most_wait_s
        self._slots = facts.slots
        self._hold_s = facts.slots * facts.request_s
        self._there = 0.0
        """Requests that run or wait."""

    def running(self, replicas: int) -> float:
        """Requests that have a slot of so many replicas."""
        return min(self._there, float(replicas * self._slots))

    def waiting(self, replicas: int) -> float:
        """The others."""
        return self._there - self.running(replicas)

    def flow(self, per_s: float, replicas: int, span_s: float) -> Flowed:
        """``per_s`` come for ``span_s``, to so many replicas that are ready."""
        came, before, slots = per_s * span_s, self._there, float(replicas * self._slots)
        after = before
        if slots <= 0.0:
            self._there = min(before + came, per_s * self._most_wait_s)
            return Flowed(came, came, before + came - self._there)
        most = slots * (1.0 + self._most_wait_s / self._hold_s)
        in_time = slots * (1.0 + self._patience_s / self._hold_s)
        late = 0.0
        for lasts_s, until in self._path(per_s, slots, span_s):
            last = min(until, most)
            late += per_s * lasts_s * _share_above(before - in_time, last - in_time, (before + last) / 2.0)
            before, after = last, until
        self._there = before
        return Flowed(came, late, after - before)

    def _path(self, per_s: float, slots: float, span_s: float) -> Iterator[tuple[float, float]]:
        """How many requests there are after each part of the span, and how long that is: with free slots as
        many end as there are by the time they take, without as many as the slots do."""
        level = per_s * self._hold_s  # where it comes to rest while slots are free
        done_per_s, there = slots / self._hold_s, self._there
        if there > slots:
            passed_s = span_s
            if level < slots:
                passed_s = min(span_s, (there - slots) / (done_per_s - per_s))
            there += (per_s - done_per_s) * passed_s
            yield passed_s, there
            span_s -= passed_s
            if span_s <= 0.0:
                return
        after = level + (there - level) * math.exp(-span_s / self._hold_s)
        if after <= slots:
            yield span_s, after
            return
        passed_s = self._hold_s * math.log((level - there) / (level - slots)) if there < slots else 0.0
        passed_s = min(span_s, passed_s)
        if passed_s > 0.0:
            yield passed_s, slots
        yield span_s - passed_s, slots + (per_s - done_per_s) * (span_s - passed_s)


def _share_above(first: float, last: float, variance: float) -> float:
    """How much of the time what goes evenly from ``first`` to ``last``, and scatters about that, is above
    0."""
    deviation = math.sqrt(max(variance, 1e-9))
    low, high = first / deviation, last / deviation
    if max(low, high) < -_FAR:
        return 0.0
    if min(low, high) > _FAR:
        return 1.0
    if abs(high - low) < 1e-6:
        return 0.5 * math.erfc(-low / _ROOT_OF_2)
    return (_above(high) - _above(low)) / (high - low)


def _above(deviations: float) -> float:
    """The mean by which a normal variable with that mean and the deviation 1 is above 0, and 0 where it is
    below."""
    density = math.exp(-deviations * deviations / 2.0) / math.sqrt(2.0 * math.pi)
    return density + deviations * 0.5 * math.erfc(-deviations / _ROOT_OF_2)
