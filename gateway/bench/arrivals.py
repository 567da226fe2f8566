"""When requests are meant to start, in seconds after the first."""

import itertools
import random
from collections.abc import Iterator
from enum import StrEnum


class Arrivals(StrEnum):
    """How the requests of an open loop follow each other."""

    POISSON = "poisson"
    """Independently of each other, as many users do."""
    CONSTANT = "constant"
    """At equal distances."""


def starts_s(kind: Arrivals, rate: float, seed: int) -> Iterator[float]:
    """Endlessly, ``rate`` a second; the same seed gives the same times."""
    if kind is Arrivals.CONSTANT:
        return (number / rate for number in itertools.count())
    chance = random.Random(seed)
    return itertools.accumulate(iter(lambda: chance.expovariate(rate), None), initial=0.0)
