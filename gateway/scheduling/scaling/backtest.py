"""Would the forecast have done better than what is decided without it? The past days are replayed. Pure.

This is no simulator of single requests, but a model of amounts: :mod:`gateway.scheduling.scaling.replay`. Its
tests compare what it says of both ways with that simulator's figures.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.scheduling.scaling.data import ClassFacts, ScalingRule
from gateway.scheduling.scaling.forecast import Forecast, LoadSeries
from gateway.scheduling.scaling.replay import ReplayedDays, known_bursts, replayed

GAIN = 0.1
"""A forecast that does not act yet must save this share of what is late."""

LITTLE = 0.0005
"""Where no more than this share is late there is nothing to gain."""

MORE_WHILE_ACTING = 0.05
"""One that acts may cost this share of replica-hours more than is allowed to one that does not."""

ALMOST_ALL = 0.9
"""Of the load, of which it must be known how it went within a step, or else it is said."""


@dataclass(frozen=True, slots=True)
class BacktestVerdict:
    """Of a forecast beside what is decided without it."""

    days: int
    reactive: ReplayedDays
    forecast: ReplayedDays
    beats: bool
    why: str
    bursts_known: float = 1.0
    """The share of the load of which it is known how it went within a step; the rest is taken for even."""

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
    known = known_bursts(series, len(forecasts))
    return judged(len(forecasts), reactive, ahead, extra, acts=acts, bursts_known=known)


def judged(
    days: int,
    reactive: ReplayedDays,
    ahead: ReplayedDays,
    extra: float,
    *,
    acts: bool,
    bursts_known: float = 1.0,
) -> BacktestVerdict:
    """See :func:`backtest`."""
    more = ahead.replica_hours / reactive.replica_hours - 1.0 if reactive.replica_hours else 0.0
    saved = 1.0 - ahead.late / reactive.late if reactive.late else 0.0
    allowed = extra + (MORE_WHILE_ACTING if acts else 0.0)
    beats = False
    if reactive.late <= LITTLE and not (acts and ahead.late <= reactive.late):
        why = f"too little is late without it to gain anything, no more than {LITTLE:.2%}"
    elif acts and ahead.late > reactive.late:
        why = "more is late with it than without"
    elif not acts and saved < GAIN:
        why = f"it saves too little of what is late, {saved:.1%} of it where {GAIN:.0%} are asked for"
    elif more > allowed:
        why = f"it costs too much more, {more:+.1%} replica-hours where {allowed:+.0%} are allowed"
    else:
        beats, why = True, f"it saves {saved:.1%} of what is late for {more:+.1%} replica-hours"
    figures = (
        f"{ahead.late:.2%} would have been late with it and {reactive.late:.2%} without in the last {days} "
        f"days, at {ahead.replica_hours:.0f} and {reactive.replica_hours:.0f} replica-hours"
    )
    if bursts_known < ALMOST_ALL:
        figures += f" (bursts are known of {bursts_known:.0%} of that load, the rest is taken for even)"
    return BacktestVerdict(days, reactive, ahead, beats, f"{why}: {figures}", bursts_known)
