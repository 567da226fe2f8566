"""How fast deployments answer, and which are far slower than their peers.

Kept are moving averages of the time to first byte and of the time per byte. Geometric means: a prompt a
hundred times as long as usual, of which each deployment gets one now and then, moves an average by half, not
tenfold. Streams and answers in one piece are kept apart; the latter have no first byte before they are done.

Peers are deployments of the same model on the same kind of device: that a small GPU is slower than a large
one is what the scheduler's cost model is for, not a fault. Where nobody knows the kind, they may be of
several: there one must also be far slower than it usually is.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import TypeVar

WEIGHT = 0.1
"""Weight of the latest answer, once there are ten: about the last twenty count."""

LEAST_SAMPLES = 10

USUAL_WEIGHT = 0.005
"""Weight of the latest answer in the usual speed: about the last four hundred count."""


class Measure(Enum):
    STREAM_FIRST_BYTE_S = auto()
    STREAM_S_PER_BYTE = auto()
    UNARY_S_PER_BYTE = auto()


LEAST: dict[Measure, float] = {Measure.STREAM_FIRST_BYTE_S: 0.1}
"""A deployment that is faster than this is no outlier."""


class _GeometricMean:
    """The geometric mean of all values at first, and of about the latest ``1 / weight`` later."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._count = 0
        self._log = 0.0

    def add(self, logarithms: Collection[float]) -> None:
        """Further values, given by their logarithms."""
        count, log, weight = self._count, self._log, self._weight
        self._count = count + len(logarithms)
        if count * weight >= 1.0:
            for each in logarithms:
                log += (each - log) * weight
        else:
            for number, each in enumerate(logarithms, count + 1):
                log += (each - log) * (1.0 / number if number * weight < 1.0 else weight)
        self._log = log

    def value(self) -> float | None:
        """None before there are enough samples."""
        return None if self._count < LEAST_SAMPLES else math.exp(self._log)


AT_ONCE = 32
"""So many answers at most are noted before they are counted into the averages; those who read have all
counted. The order stays."""

LEAST_VALUE = 1e-9


class AnswerPace:
    """One deployment's averages: of the latest answers, and in the long run."""

    def __init__(self) -> None:
        self._latest = _means(WEIGHT)
        self._usual = _means(USUAL_WEIGHT)
        self._first_bytes_s: list[float] = []
        self._streams_s: list[float] = []
        self._wholes_s: list[float] = []
        """Not counted yet: times to first bytes, and times per byte of streams and of answers in one
        piece."""

    @property
    def latest(self) -> "Mapping[Measure, _GeometricMean]":
        """Averages of the latest answers."""
        self._count()
        return self._latest

    @property
    def usual(self) -> "Mapping[Measure, _GeometricMean]":
        """Averages in the long run."""
        self._count()
        return self._usual

    def note(self, streaming: bool, first_byte_s: float, total_s: float, size_bytes: int) -> None:
        """An answer of ``size_bytes`` came whole; times from the opening of its stream."""
        if streaming:
            self._first_bytes_s.append(first_byte_s if first_byte_s > LEAST_VALUE else LEAST_VALUE)
            total_s -= first_byte_s
        noted = self._streams_s if streaming else self._wholes_s
        value = total_s / size_bytes if size_bytes > 1 else total_s
        noted.append(value if value > LEAST_VALUE else LEAST_VALUE)
        if len(noted) >= AT_ONCE:
            self._count()

    def clear(self) -> None:
        """Begin anew, but for what is usual."""
        self._count()
        self._latest = _means(WEIGHT)

    def _count(self) -> None:
        for measure, noted in (
            (Measure.STREAM_FIRST_BYTE_S, self._first_bytes_s),
            (Measure.STREAM_S_PER_BYTE, self._streams_s),
            (Measure.UNARY_S_PER_BYTE, self._wholes_s),
        ):
            if noted:
                logarithms = list(map(math.log, noted))
                self._latest[measure].add(logarithms)
                self._usual[measure].add(logarithms)
                noted.clear()


def _means(weight: float) -> dict[Measure, _GeometricMean]:
    return {measure: _GeometricMean(weight) for measure in Measure}


FACTOR = 3.0
"""Times the median of its peers: slower than that is an outlier."""

LEAST_PEERS = 3

Key = TypeVar("Key")


def outliers(paces: Mapping[Key, AnswerPace], *, alike: bool = True) -> list[Key]:
    """Those that are outliers among ``paces``, all peers of each other if they are ``alike``; the worst
    first."""
    worst: dict[Key, float] = {}
    for measure in Measure:
        latest = {key: pace.latest[measure].value() for key, pace in paces.items()}
        means = {key: mean for key, mean in latest.items() if mean is not None}
        if len(means) <= LEAST_PEERS:
            continue
        ordered = sorted(means.values())
        least = max(FACTOR * ordered[(len(ordered) - 1) // 2 - 1], LEAST.get(measure, 0.0))
        for key, mean in means.items():
            if mean > least and (alike or mean > FACTOR * (paces[key].usual[measure].value() or mean)):
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
