"""Learns the daily and weekly pattern of a load, and its trend, by ridge regression on numpy. Pure.

The root of the load is a level, a trend, waves of a day and waves of a week, fitted with weights that halve
every ``HALF_LIFE_DAYS``. Waves that are not of a day are shrunk more, so that weekdays differ only where the
data say so; the trend is shrunk most. Steps that are far off are given less weight in a second and third
round (Huber), so that one bad day makes no pattern. What waves are too smooth for, such as work that begins
at nine sharp, is the mean deviation at each time of the day, and then of the week, shrunk as well.

How much of a deviation lasts, and how far loads scatter, is measured on the steps that were learnt from,
each beside the means of the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from gateway.scheduling.scaling.forecast import LAGS, STEP_S, Forecast, LoadSeries

DAY_S, WEEK_S = 86_400.0, 604_800.0
DAY_STEPS = int(DAY_S / STEP_S)
WEEK_STEPS = 7 * DAY_STEPS
DAILY_WAVES = 12
WEEKLY_WAVES = 42
"""The shortest are of two hours and of four."""

DAY_SHRINKS, WEEK_SHRINKS = 3.0, 2.0
"""Steps with no deviation that a mean of a time of the day, or of the week, is taken to have besides."""

HALF_LIFE_DAYS = 28.0
SCATTER_DAYS = 14
DAILY_PENALTY, WEEKLY_PENALTY, TREND_PENALTY = 0.002, 0.02, 0.1
ROUNDS, FAR = 3, 2.5
LEAST_DAYS = 7
"""Of known steps, before anything is learnt."""

Floats = NDArray[numpy.floating[Any]]


@dataclass(frozen=True, slots=True)
class HeldOutError:
    """How far forecasts were off on days that they had not been learnt from."""

    days: int
    error: float
    """The sum of all deviations by the sum of all loads, at the lead (WAPE)."""
    error_as_now: float
    """The same of the forecast that all stays as it is."""
    covered: float
    """The share of loads below the band's upper end."""


class PatternLearner:
    """Of one series; makes the forecasts of any number of days."""

    def __init__(self, series: LoadSeries, quantile: float) -> None:
        """``quantile`` of the loads shall be below the upper end of the band."""
        self.series = series
        self._quantile = quantile
        self._values: Floats = numpy.asarray(series.values, dtype=numpy.float64)
        self._roots: Floats = numpy.sqrt(numpy.maximum(self._values, 0.0))
        self._known = ~numpy.isnan(self._roots)
        steps = numpy.arange(len(self._values) + 2 * DAY_STEPS)
        self._middles: Floats = series.start_s + (steps + 0.5) * STEP_S
        self._waves = _waves(self._middles)

    def can_learn(self, until: int) -> bool:
        """Whether there is enough before the step ``until``."""
        return int(self._known[:until].sum()) >= LEAST_DAYS * DAY_STEPS

    def forecast(self, until: int, before: int = LAGS, after: int = DAY_STEPS + LAGS) -> Forecast:
        """What the steps before ``until`` say of those from ``before`` before it to ``after`` behind it."""
        known = numpy.flatnonzero(self._known[:until])
        weeks = (self._middles - self._middles[until - 1]) / WEEK_S
        features = numpy.column_stack((numpy.ones_like(weeks), weeks, self._waves))
        learnt, roots = features[known], self._roots[known]
        recent = numpy.exp2(weeks[known] * 7.0 / HALF_LIFE_DAYS)
        trusted = numpy.ones_like(recent)
        values: Floats = numpy.zeros(features.shape[1])
        for _ in range(ROUNDS):
            values = _ridge(learnt, roots, recent * trusted)
            off = roots - learnt @ values
            trusted = _trusted(off)
        pattern = features @ values
        numbers = numpy.round(self._middles / STEP_S - 0.5).astype(numpy.int64)
        beside = off  # without what each step itself has added to its means
        agreed = recent * _agreement(off, numbers[known])
        for period, shrinks in ((DAY_STEPS, DAY_SHRINKS), (WEEK_STEPS, WEEK_SHRINKS)):
            means, others = _means(off, agreed, numbers[known] % period, period, shrinks)
            off, beside = off - means[numbers[known] % period], beside - others
            pattern = pattern + means[numbers % period]
        deviations = numpy.full(until, numpy.nan)
        deviations[known] = beside
        carry, spread = _scatter(deviations[-SCATTER_DAYS * DAY_STEPS :], self._quantile)
        first = max(0, until - before)
        said = numpy.maximum(pattern[first : until + after], 0.0)
        start_s = self.series.start_s + first * STEP_S
        return Forecast(start_s, said.tolist(), carry, spread)

    def held_out(self, days: int, lead_s: float) -> tuple[HeldOutError, list[Forecast]]:
        """Forecasts of each of the last ``days``, learnt from what was before that day alone, and how far
        they were off ``lead_s`` ahead. The days must have enough before them (:meth:`can_learn`)."""
        lag = 1 + max(1, round(lead_s / STEP_S))
        end = len(self._values)
        found, wrong, wrong_as_now, whole, covered, count = [], 0.0, 0.0, 0.0, 0, 0
        for day in range(days):
            until = end - (days - day) * DAY_STEPS
            forecast = self.forecast(until)
            found.append(forecast)
            targets = numpy.arange(until, until + DAY_STEPS)
            latest = targets - lag
            off = self._roots[latest] - _at(forecast, latest, self.series.start_s)
            place = min(lag, len(forecast.carry) - 1)
            roots = _at(forecast, targets, self.series.start_s) + off * forecast.carry[place]
            expected = numpy.maximum(roots, 0.0) ** 2
            upper = numpy.maximum(roots + forecast.spread[place], 0.0) ** 2
            values, as_now = self._values[targets], self._values[latest]
            both = ~numpy.isnan(values) & ~numpy.isnan(as_now)
            wrong += float(numpy.abs(expected - values)[both].sum())
            wrong_as_now += float(numpy.abs(as_now - values)[both].sum())
            whole += float(values[both].sum())
            covered += int((values <= upper)[both].sum())
            count += int(both.sum())
        whole = max(whole, 1e-12)
        return HeldOutError(days, wrong / whole, wrong_as_now / whole, covered / max(1, count)), found


def without(series: LoadSeries, is_left_out: Callable[[float], bool]) -> LoadSeries:
    """The series without the steps of whose middle that is so: they are no pattern."""
    middles = (series.start_s + (number + 0.5) * STEP_S for number in range(len(series.values)))
    values = [
        float("nan") if is_left_out(middle) else each
        for each, middle in zip(series.values, middles, strict=True)
    ]
    return LoadSeries(series.start_s, values)


def _waves(middles: Floats) -> Floats:
    week = 2.0 * numpy.pi * (middles % WEEK_S) / WEEK_S
    numbers = sorted({*range(1, WEEKLY_WAVES + 1), *(7 * each for each in range(1, DAILY_WAVES + 1))})
    angles = numpy.outer(week, numpy.asarray(numbers, dtype=numpy.float64))
    found: Floats = numpy.concatenate((numpy.sin(angles), numpy.cos(angles)), axis=1)
    return found


def _penalties() -> Floats:
    numbers = sorted({*range(1, WEEKLY_WAVES + 1), *(7 * each for each in range(1, DAILY_WAVES + 1))})
    waves = [WEEKLY_PENALTY if each % 7 else DAILY_PENALTY for each in numbers]
    return numpy.asarray([0.0, TREND_PENALTY, *waves, *waves])


def _ridge(features: Floats, roots: Floats, weights: Floats) -> Floats:
    shares = numpy.sqrt(weights)
    weighted = features * shares[:, None]
    gram = weighted.T @ weighted  # numpy computes half of a product that is symmetric
    gram[numpy.diag_indices_from(gram)] += _penalties() * weights.sum() + 1e-9
    found: Floats = numpy.linalg.solve(gram, weighted.T @ (shares * roots))
    return found


def _trusted(off: Floats) -> Floats:
    """Less where it is further off than is usual."""
    far = numpy.abs(off)
    usual = FAR * 1.4826 * float(numpy.median(far)) + 1e-6
    found: Floats = numpy.minimum(1.0, usual / numpy.maximum(far, 1e-12))
    return found


def _agreement(off: Floats, numbers: NDArray[numpy.int64]) -> Floats:
    """How far each step is to be trusted beside the same time in the other weeks."""
    rows = numbers // WEEK_STEPS - numbers[0] // WEEK_STEPS
    grid = numpy.full((int(rows[-1]) + 1, WEEK_STEPS), numpy.nan)
    grid[rows, numbers % WEEK_STEPS] = off
    grid[0, numpy.isnan(grid).all(axis=0)] = 0.0
    return _trusted(off - numpy.nanmedian(grid, axis=0)[numbers % WEEK_STEPS])


def _means(
    off: Floats, weights: Floats, places: NDArray[numpy.int64], period: int, shrinks: float
) -> tuple[Floats, Floats]:
    """The mean of ``off`` at each place of the period, and, for each step, that of the others there."""
    whole = numpy.bincount(places, weights, period)
    sums = numpy.bincount(places, weights * off, period)
    others = (sums[places] - weights * off) / (whole[places] - weights + shrinks)
    found: Floats = sums / (whole + shrinks)
    return found, others


def _scatter(deviations: Floats, quantile: float) -> tuple[list[float], list[float]]:
    """By lag: the share of a deviation that is left, and how far above that the quantile is."""
    carry, spread = [1.0], [0.0]
    for lag in range(1, min(LAGS, len(deviations) - 1) + 1):
        before, after = deviations[:-lag], deviations[lag:]
        both = ~numpy.isnan(before) & ~numpy.isnan(after)
        if not both.any():
            carry.append(carry[-1])
            spread.append(spread[-1])
            continue
        before, after = before[both], after[both]
        share = float(before @ after) / max(float(before @ before), 1e-12)
        carry.append(min(1.0, max(0.0, share)))
        spread.append(max(0.0, float(numpy.quantile(after - carry[-1] * before, quantile))))
    return carry, spread


def _at(forecast: Forecast, steps: NDArray[numpy.int64], start_s: float) -> Floats:
    first = round((forecast.start_s - start_s) / STEP_S)
    roots: Sequence[float] = forecast.roots
    return numpy.asarray(roots, dtype=numpy.float64)[steps - first]
