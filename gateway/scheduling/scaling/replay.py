"""The past days once more, with and without a forecast: what would have been late, and what it would have
cost. Pure.

The load that was measured comes in pieces of ten seconds, with the bursts it had, to the replicas that
:func:`~gateway.scheduling.scaling.plan.plan` and
:class:`~gateway.scheduling.scaling.stabilisation.WantedReplicas` want, which are ready only after the lead
time. What becomes of it there is :class:`~gateway.scheduling.scaling.flow.SlotFlow`'s. So both ways are
judged by the rules that decide. What is left out: that lengths of requests differ, that replicas take now
more time to start and now less, and that one which is not wanted any more ends what it has begun.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.scheduling.scaling.arrivals import SPAN_S
from gateway.scheduling.scaling.bursts import PIECE_S, PIECES, shares
from gateway.scheduling.scaling.data import ClassFacts, ModelLoad, ScalingRule
from gateway.scheduling.scaling.flow import SlotFlow
from gateway.scheduling.scaling.forecast import STEP_S, Forecast, LoadSeries
from gateway.scheduling.scaling.plan import expected_per_s, plan
from gateway.scheduling.scaling.stabilisation import WantedReplicas

DAY_S = 86_400.0
LOOK_S = 60.0
"""What is foreseen is looked up so often."""

FINENESS = 0.02
"""Loads are rounded to this share before it is decided on them, so that like decisions are made once."""

MOST_REMEMBERED = 20_000
"""Decisions."""

_SPAN_PIECES = int(SPAN_S / PIECE_S)


@dataclass(frozen=True, slots=True)
class ReplayedDays:
    """What became of the load."""

    late: float
    """The share that did not begin in time; what was refused is part of it."""
    replica_hours: float
    """Of replicas that were ready or starting."""


def replayed(
    series: LoadSeries,
    forecasts: Sequence[Forecast],
    facts: ClassFacts,
    rule: ScalingRule,
    *,
    foresees: bool,
) -> ReplayedDays:
    """The days of ``forecasts``, each of which begins at its own day and the last of which ends with the
    series."""
    begin_s = series.end_s - len(forecasts) * DAY_S
    site = _Site(facts, rule)
    upper, looked_s = 0.0, -math.inf
    for now, load in _pieces(series, begin_s):
        if foresees and now - looked_s >= LOOK_S:
            forecast = forecasts[min(len(forecasts) - 1, int((now - begin_s) // DAY_S))]
            middle_s = (math.floor(now / STEP_S) - 0.5) * STEP_S
            outlook = forecast.ahead(now, facts.lead_s, (series.at(middle_s), middle_s))
            upper, looked_s = 0.0 if outlook is None else outlook.upper, now
        site.pass_piece(now, load / facts.request_s, upper / facts.request_s)
    return site.days()


def known_bursts(series: LoadSeries, days: int) -> float:
    """The share of the load of the last ``days`` of which it is known how it went within a step."""
    steps = min(len(series.values), int(days * DAY_S / STEP_S))
    whole = known = 0.0
    for number in range(len(series.values) - steps, len(series.values)):
        load = series.values[number]
        if not math.isnan(load):
            whole += load
            known += load if _shares(series, number) is not None else 0.0
    return known / whole if whole else 0.0


def _shares(series: LoadSeries, number: int) -> Sequence[float] | None:
    first = len(series.values) - len(series.bursts) // PIECES
    place = (number - first) * PIECES
    return shares(series.bursts[place : place + PIECES]) if place >= 0 else None


def _pieces(series: LoadSeries, begin_s: float) -> Iterator[tuple[float, float]]:
    """When each piece begins whose load is known, and that load."""
    values = series.values
    for number in range(round((begin_s - series.start_s) / STEP_S), len(values)):
        if math.isnan(values[number]):
            continue  # nobody knows what came then
        start_s, within = series.start_s + number * STEP_S, _shares(series, number)
        for piece in range(PIECES):
            at_s = start_s + piece * PIECE_S
            if within is None:
                yield at_s, _even(series, number, (piece + 0.5) / PIECES)
            else:
                yield at_s, values[number] * within[piece]


def _even(series: LoadSeries, number: int, place: float) -> float:
    """Between the middles of two steps; ``place`` is from 0 to 1 in the step."""
    values, beside = series.values, number + (1 if place >= 0.5 else -1)
    other = values[min(len(values) - 1, max(0, beside))]
    if math.isnan(other):
        return values[number]
    return values[number] + abs(place - 0.5) * (other - values[number])


class _Site:
    """Replicas of one class, and what runs and waits there."""

    def __init__(self, facts: ClassFacts, rule: ScalingRule) -> None:
        self._facts, self._rule = facts, rule
        self._flow = SlotFlow(facts, rule)
        self._steady: WantedReplicas | None = None
        self._ready = 0
        self._starting: list[float] = []
        """When each is ready."""
        self._rates: deque[float] = deque(maxlen=2 * _SPAN_PIECES)
        self._came = self._late = self._hours = 0.0
        self._came_s = -math.inf
        self._decided: dict[tuple[float, ...], int] = {}

    def pass_piece(self, now: float, per_s: float, forecast_per_s: float) -> None:
        """``per_s`` come in the piece that begins at ``now``."""
        while self._starting and self._starting[0] <= now:
            self._starting.pop(0)
            self._ready += 1
        if not self._rates:  # it begins with what is enough
            self._rates.extend([per_s] * (2 * _SPAN_PIECES))
        needed = self._needed(now, forecast_per_s)
        if self._steady is None:
            self._steady, self._ready = WantedReplicas(needed, now), needed
        self._follow(self._steady.need(needed, self._rule, self._facts.lead_s, now), now)
        flowed = self._flow.flow(per_s, self._ready, PIECE_S)
        self._came += flowed.came
        self._late += flowed.late
        self._rates.append(per_s)
        if per_s > 0:
            self._came_s = now
        self._hours += (self._ready + len(self._starting)) * PIECE_S / 3600.0

    def days(self) -> ReplayedDays:
        return ReplayedDays(self._late / self._came if self._came else 0.0, self._hours)

    def _needed(self, now: float, forecast_per_s: float) -> int:
        """As the plan says; what differs by less than ``FINENESS`` is asked once."""
        rates = list(self._rates)
        last, before = sum(rates[_SPAN_PIECES:]) / _SPAN_PIECES, sum(rates[:_SPAN_PIECES]) / _SPAN_PIECES
        filled = math.ceil(self._flow.running(self._ready) / self._facts.slots - 1e-9)
        waiting = _rounded(self._flow.waiting(self._ready))
        present = self._ready + len(self._starting)
        last, rising = _rounded(last), _rounded(max(0.0, last - before) / SPAN_S)
        ahead = _rounded(forecast_per_s)
        if ahead and last > 0.0 and ahead <= expected_per_s(ModelLoad(last, rising), self._facts.lead_s):
            ahead = 0.0  # no more than is asked for anyway
        idle_s = now - self._came_s if self._came_s > -math.inf else 0.0
        is_idle = float(idle_s >= self._rule.idle_s)
        key = (last, rising, waiting, filled, present, ahead, is_idle)
        found = self._decided.get(key)
        if found is None:
            if len(self._decided) >= MOST_REMEMBERED:
                self._decided.clear()
            load = ModelLoad(
                last, rising, math.floor(waiting), 0, filled * self._facts.slots, is_idle * idle_s
            )
            known = replace(self._facts, ready=present, starting=0, forecast_per_s=ahead)
            found = self._decided[key] = plan(load, [known], self._rule).wanted[known.device]
        return found

    def _follow(self, wanted: int, now: float) -> None:
        present = self._ready + len(self._starting)
        self._starting += [now + self._facts.lead_s] * max(0, wanted - present)
        for _ in range(present - wanted):
            if self._starting:
                self._starting.pop()
            else:
                self._ready -= 1


def _rounded(value: float) -> float:
    """To the next of the values that lie ``FINENESS`` apart."""
    if value <= 0.0:
        return 0.0
    return math.exp(round(math.log(value) / FINENESS) * FINENESS)
