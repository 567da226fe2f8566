"""Which deployments are far slower than their peers (SCHEDULING §6).

Peers are deployments of the same model on the same kind of device: that a small GPU is slower than a large
one is what the scheduler's cost model is for, not a fault. Where nobody knows the kind, they may be of
several: there one must also be far slower than it usually is.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import TypeVar

from gateway.scheduling.health.pace import LEAST, AnswerPace, Measure

FACTOR = 3.0
"""Times the median of its peers: slower than that is an outlier."""

LEAST_PEERS = 3

Key = TypeVar("Key")


def outliers(paces: Mapping[Key, AnswerPace], *, alike: bool = True) -> list[Key]:
    """Those that are outliers among ``paces``, all peers of each other if they are ``alike``; the worst
    first."""
    worst: dict[Key, float] = {}
    for measure in Measure:
        means = {key: mean for key, pace in paces.items() if (mean := pace.mean(measure)) is not None}
        if len(means) <= LEAST_PEERS:
            continue
        ordered = sorted(means.values())
        least = max(FACTOR * ordered[(len(ordered) - 1) // 2 - 1], LEAST.get(measure, 0.0))
        for key, mean in means.items():
            if mean > least and (alike or mean > FACTOR * (paces[key].usual(measure) or mean)):
                ratio = mean / _median_without(ordered, mean)
                if ratio > FACTOR:
                    worst[key] = max(ratio, worst.get(key, 0.0))
    return sorted(worst, key=lambda key: -worst[key])


def _median_without(ordered: list[float], value: float) -> float:
    """The median of ``ordered``, which is sorted, without one occurrence of ``value``."""
    at = bisect_left(ordered, value)
    left = len(ordered) - 1
    low, high = ((left - 1) // 2, left // 2)
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2
