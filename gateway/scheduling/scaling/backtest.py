"""Would the forecast have done better than what is decided without it? The past weeks are replayed. Pure.

This is a model of capacity, not the simulator of single requests: the load that was measured flows, evenly
within a step, into the replicas that :func:`~gateway.scheduling.scaling.plan.plan` and
:class:`~gateway.scheduling.scaling.stabilisation.WantedReplicas` want, which are ready only after the lead
time. What does not fit waits and, in the end, is refused; beside that, the share that is late is that of
:func:`~gateway.scheduling.scaling.capacity.late_share`. So both ways are judged by the rules that decide.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gateway.scheduling.scaling.capacity import Fleet, late_share
from gateway.scheduling.scaling.data import ClassFacts, ModelLoad, ScalingRule
from gateway.scheduling.scaling.forecast import STEP_S, Forecast, LoadSeries
from gateway.scheduling.scaling.plan import plan
from gateway.scheduling.scaling.stabilisation import WantedReplicas

TICK_S = 60.0
GAIN = 0.1
"""A forecast that does not act yet must save this share of what is late."""

LITTLE = 0.0005
"""Where no more than this share is late there is nothing to gain."""


@dataclass(frozen=True, slots=True)
class ReplayedDays:
    """What became of the load."""

    late: float
    """The share that did not begin in time; what was refused is part of it."""
    replica_hours: float
    """Of replicas that were ready or starting."""


@dataclass(frozen=True, slots=True)
class BacktestVerdict:
    """Of a forecast beside what is decided without it."""

    days: int
    reactive: ReplayedDays
    forecast: ReplayedDays
    beats: bool
    why: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def backtest(
    series: LoadSeries,
    forecasts: Sequence[Forecast],
    facts: ClassFacts,
    rule: ScalingRule,
    extra: float,
    *,
    acts: bool,
) -> BacktestVerdict:
    """Replay the last days of ``series``, of each of which there is a forecast, with and without them.
    ``extra`` is the share of replica-hours that it may cost more; ``acts``: it acts now, and goes on unless
    it is worse."""
    reactive = replayed(series, forecasts, facts, rule, foresees=False)
    ahead = replayed(series, forecasts, facts, rule, foresees=True)
    return judged(len(forecasts), reactive, ahead, extra, acts=acts)


def judged(
    days: int, reactive: ReplayedDays, ahead: ReplayedDays, extra: float, *, acts: bool
) -> BacktestVerdict:
    """See :func:`backtest`."""
    gain = 0.0 if acts else GAIN
    more = ahead.replica_hours / reactive.replica_hours - 1.0 if reactive.replica_hours else 0.0
    figures = f"{ahead.late:.2%} late instead of {reactive.late:.2%}, {more:+.1%} replica-hours, {days} days"
    beats, why = False, "it costs too much more"
    if reactive.late <= LITTLE and not (acts and ahead.late <= reactive.late):
        why = "too little is late without it to gain anything"
    elif ahead.late > reactive.late * (1.0 - gain):
        why = "it saves too little of what is late"
    elif more <= extra + (0.05 if acts else 0.0):
        beats, why = True, "it beats what is decided without it"
    return BacktestVerdict(days, reactive, ahead, beats, f"{why}: {figures}")


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
    begin_s = series.end_s - len(forecasts) * 86_400.0
    site = _Site(facts, rule)
    ticks = int((series.end_s - begin_s) / TICK_S)
    for tick in range(ticks):
        now = begin_s + tick * TICK_S
        load = _load(series, now + TICK_S / 2)
        if math.isnan(load):
            continue  # nobody knows what came then
        upper = 0.0
        if foresees:
            forecast = forecasts[min(len(forecasts) - 1, int((now - begin_s) // 86_400.0))]
            middle_s = (math.floor(now / STEP_S) - 0.5) * STEP_S
            outlook = forecast.ahead(now, facts.lead_s, (series.at(middle_s), middle_s))
            upper = 0.0 if outlook is None else outlook.upper
        site.tick(now, load / facts.request_s, upper / facts.request_s)
    return site.days()


class _Site:
    """Replicas of one class, and what waits for them."""

    def __init__(self, facts: ClassFacts, rule: ScalingRule) -> None:
        self._facts, self._rule = facts, rule
        self._steady: WantedReplicas | None = None
        self._ready = 0
        self._starting: list[float] = []
        """When each is ready."""
        self._rates = (0.0, 0.0)
        """Of the last tick and the one before."""
        self._queue = self._came = self._late = self._hours = 0.0
        self._came_s = float("-inf")

    def tick(self, now: float, per_s: float, forecast_per_s: float) -> None:
        """``per_s`` come in the tick that begins at ``now``."""
        while self._starting and self._starting[0] <= now:
            self._starting.pop(0)
            self._ready += 1
        last, before = self._rates
        if self._steady is None:  # it begins with what is enough
            last = before = per_s
        idle_s = now - self._came_s if self._came_s > float("-inf") else 0.0
        load = ModelLoad(last, max(0.0, last - before) / TICK_S, math.floor(self._queue), idle_s=idle_s)
        known = replace(
            self._facts, ready=self._ready, starting=len(self._starting), forecast_per_s=forecast_per_s
        )
        needed = plan(load, [known], self._rule).wanted[known.device]
        if self._steady is None:
            self._steady, self._ready = WantedReplicas(needed, now), needed
        self._follow(self._steady.need(needed, self._rule, known.lead_s, now), now)
        self._flow(per_s)
        self._rates = (per_s, last)
        if per_s > 0:
            self._came_s = now
        self._hours += (self._ready + len(self._starting)) * TICK_S / 3600.0

    def days(self) -> ReplayedDays:
        return ReplayedDays(self._late / self._came if self._came else 0.0, self._hours)

    def _follow(self, wanted: int, now: float) -> None:
        present = self._ready + len(self._starting)
        self._starting += [now + self._facts.lead_s] * max(0, wanted - present)
        for _ in range(present - wanted):
            if self._starting:
                self._starting.pop()
            else:
                self._ready -= 1

    def _flow(self, per_s: float) -> None:
        can = self._ready * self._facts.per_s
        came = per_s * TICK_S
        waited, self._queue = self._queue, max(0.0, self._queue + came - can * TICK_S)
        most = can * self._rule.most_wait_s
        patience_s = max(0.0, self._rule.first_token_s - self._facts.first_s)
        self._came += came
        if can <= 0.0:
            late = came
        elif (waited + self._queue) / 2 / can > patience_s:
            late = came  # of those that come now all wait for too long
        else:
            late = came * late_share(Fleet([(self._facts, self._ready)]), min(per_s, can), patience_s)
        self._late += late
        self._queue = min(self._queue, most) if can > 0.0 else min(self._queue, came)


def _load(series: LoadSeries, at_s: float) -> float:
    """Between the middles of two steps."""
    place = (at_s - series.start_s) / STEP_S - 0.5
    low = math.floor(place)
    values = series.values
    first = values[max(0, low)]
    second = values[min(len(values) - 1, low + 1)]
    if math.isnan(first) or math.isnan(second):
        return series.at(at_s)
    return first + (place - low) * (second - first)
