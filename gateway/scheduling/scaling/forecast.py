"""What will be asked for in the next hours: a pattern that was learnt, and how far now is off it. Pure.

Loads are device-seconds that are asked for in a second. They are kept and forecast as means of steps of
``STEP_S``, and their square roots are what patterns are made of: these scatter alike at every level, and no
forecast is below zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STEP_S = 300.0
"""Times are seconds since 1970; steps begin at its multiples."""

LAGS = 36
"""So many steps a deviation is followed for."""


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """The load in steps that follow each other; NaN where it is not known."""

    start_s: float
    """The beginning of the first step: a multiple of ``STEP_S``."""
    values: Sequence[float]
    bursts: bytes = b""
    """How the load went within each of the last steps (:mod:`gateway.scheduling.scaling.bursts`), so far as
    that was kept."""

    @property
    def end_s(self) -> float:
        return self.start_s + len(self.values) * STEP_S

    @property
    def known(self) -> int:
        """Steps of which the load is known."""
        return sum(not math.isnan(each) for each in self.values)

    def at(self, at_s: float) -> float:
        """The load of the step that ``at_s`` is in; NaN: not known."""
        number = math.floor((at_s - self.start_s) / STEP_S)
        return self.values[number] if 0 <= number < len(self.values) else math.nan


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected at one time."""

    expected: float
    upper: float
    """It will be no more than this as often as the forecast's quantile says."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one load."""

    start_s: float
    roots: Sequence[float]
    """The square root of what the pattern says of each step from ``start_s``."""
    carry: Sequence[float]
    """The share of a deviation from the pattern that is left after so many steps; at least one."""
    spread: Sequence[float]
    """By how much the root may be above that, at the quantile; as long as ``carry``."""

    @property
    def end_s(self) -> float:
        return self.start_s + len(self.roots) * STEP_S

    def pattern(self, at_s: float) -> float | None:
        """The root that the pattern says of ``at_s``; None: it is not of that time."""
        place = (at_s - self.start_s) / STEP_S - 0.5
        if not -0.5 <= place <= len(self.roots) - 0.5:
            return None
        return _between(self.roots, place)

    def outlook(self, at_s: float, latest: tuple[float, float] | None) -> Outlook | None:
        """What is expected at ``at_s``. ``latest``: the load of the latest step that is over, and the middle
        of that step. None: ``at_s`` is not in the time that this is of."""
        root = self.pattern(at_s)
        if root is None:
            return None
        lag, off = float(len(self.carry) - 1), 0.0
        if latest is not None:
            load, middle_s = latest
            usual = self.pattern(middle_s)
            if usual is not None and not math.isnan(load):
                lag = max(0.0, (at_s - middle_s) / STEP_S)
                off = math.sqrt(max(0.0, load)) - usual
        root += off * _between(self.carry, lag)
        return Outlook(_square(root), _square(root + _between(self.spread, lag)))

    def ahead(self, now_s: float, lead_s: float, latest: tuple[float, float] | None) -> Outlook | None:
        """The most that is expected when what is begun at ``now_s`` is ready, ``lead_s`` later, and in the
        step after that. None as above."""
        first = self.outlook(now_s + lead_s, latest)
        second = self.outlook(now_s + lead_s + STEP_S, latest)
        if first is None or second is None:
            return first
        return Outlook(max(first.expected, second.expected), max(first.upper, second.upper))

    def as_json(self) -> dict[str, Any]:
        """As :meth:`from_json` reads it."""
        return {
            "start_s": self.start_s,
            "roots": [round(each, 6) for each in self.roots],
            "carry": [round(each, 4) for each in self.carry],
            "spread": [round(each, 6) for each in self.spread],
        }

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> "Forecast":
        """Raises KeyError, TypeError, ValueError."""
        lists = [[float(each) for each in said[name]] for name in ("roots", "carry", "spread")]
        roots, carry, spread = lists
        if not roots or not carry or len(carry) != len(spread):
            raise ValueError("a forecast without steps")
        return cls(float(said["start_s"]), roots, carry, spread)


def _between(values: Sequence[float], place: float) -> float:
    """Between two of them; the nearest where ``place`` is outside."""
    if place <= 0:
        return values[0]
    low = math.floor(place)
    if low >= len(values) - 1:
        return values[-1]
    return values[low] + (place - low) * (values[low + 1] - values[low])


def _square(root: float) -> float:
    return root * root if root > 0 else 0.0
