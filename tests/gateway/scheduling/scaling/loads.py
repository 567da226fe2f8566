"""Loads of weeks, made up."""

import math
import random
from collections.abc import Callable

from gateway.scheduling.scaling.forecast import STEP_S, LoadSeries

MONDAY_S = 1_700_438_400.0
"""2023-11-20 00:00 UTC."""


def weeks(load: Callable[[float, int], float], days: int = 28, noise: float = 0.0) -> LoadSeries:
    """``load`` of the hour of the day and of the number of the day, the first of which is a Monday."""
    chance = random.Random(7)
    values = []
    for number in range(round(days * 86_400 / STEP_S)):
        middle_s = (number + 0.5) * STEP_S
        value = load(middle_s % 86_400 / 3600, int(middle_s // 86_400))
        values.append(value * math.exp(chance.gauss(0.0, noise)))
    return LoadSeries(MONDAY_S, values)


def office(hour: float, day: int) -> float:
    """Much on weekdays from 9 to 17, little at night and at weekends."""
    return 8.0 if day % 7 < 5 and 9 <= hour < 17 else 1.0
