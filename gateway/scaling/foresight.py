"""What is foreseen of each model and class, and whether it may act: what the autoscaler asks.

It holds what :mod:`gateway.scaling.forecaster` has read from the store and from the calendar; nothing here
waits for anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.scaling.history import MOST_SERIES, LoadHistory
from gateway.scheduling.recent import RecentDict
from gateway.scheduling.scaling.data import ClassFacts, ScalingRule
from gateway.scheduling.scaling.events import EventDemand, KnownEvent, demand_at
from gateway.scheduling.scaling.forecast import Forecast, Outlook

State = Literal["off", "learning", "shadow", "acting"]
STATES: tuple[State, ...] = ("off", "learning", "shadow", "acting")
MOST_BASES = 10_000


@dataclass(frozen=True, slots=True)
class ForecastVerdict:
    """What is foreseen of a model on a class, and what comes of it."""

    state: State
    why: str
    expected_gpu_s: float | None = None
    """Device-seconds that will be asked for in a second when a replica that is wanted now is ready."""
    upper_gpu_s: float | None = None
    """It will be no more than this as often as ``forecast_quantile`` says: what decides."""
    error: float | None = None
    """On days that it had not learnt from: the sum of all deviations by the sum of all loads."""
    error_as_now: float | None = None
    """The same of the forecast that all stays as it is."""
    covered: float | None = None
    """The share of those days' loads that were no more than foreseen at the upper end."""
    made_s: float | None = None
    """In seconds since 1970."""
    backtest: Mapping[str, Any] | None = None
    """See :class:`gateway.scheduling.scaling.backtest.BacktestVerdict`."""
    events: Sequence[str] = ()
    """Of the calendar, that count now."""


@dataclass(frozen=True, slots=True)
class LearntForecast:
    """Of one model on one class, as the store has it."""

    state: Literal["learning", "shadow", "acting"]
    why: str
    made_s: float
    forecast: Forecast | None = None
    error: float | None = None
    error_as_now: float | None = None
    covered: float | None = None
    backtest: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, said: Mapping[str, Any], made_s: float) -> "LearntForecast":
        """Raises KeyError, TypeError, ValueError."""
        state = said["state"]
        if state not in STATES[1:]:
            raise ValueError(f"no forecast is {state!r}")
        found = said.get("forecast")
        forecast = None if found is None else Forecast.from_json(found)
        names = ("error", "error_as_now", "covered", "backtest")
        return cls(state, str(said["why"]), made_s, forecast, **{name: said.get(name) for name in names})


@dataclass(frozen=True, slots=True)
class Foreseen:
    """For a decision."""

    per_s: float
    """Requests in a second; 0: nothing is foreseen, or may act."""
    of_class: int
    """Replicas that events want at least of this class."""
    together: int
    """The same of all classes together."""
    verdict: ForecastVerdict


@dataclass
class Foresight:
    """Belongs to the event loop's thread. ``wall`` is in seconds since 1970."""

    wall: Callable[[], float]
    history: LoadHistory = field(default_factory=LoadHistory)
    off: str | None = None
    """Why nothing is forecast; None: it is."""
    may_act: bool = True
    """Else it is only said what would be wanted."""
    learnt: dict[tuple[str, str], LearntForecast] = field(default_factory=dict)
    events: Sequence[KnownEvent] = ()
    known: dict[tuple[str, str], tuple[ClassFacts, ScalingRule]] = field(
        default_factory=lambda: RecentDict(MOST_SERIES)
    )
    """What the latest decision was made of; a back-test is made of it, too."""
    _bases: RecentDict[tuple[str, str, float], float] = field(default_factory=lambda: RecentDict(MOST_BASES))
    """What was asked for when events began to count."""

    def note(
        self,
        model: str,
        facts: ClassFacts,
        rule: ScalingRule,
        load_gpu_s: float,
        piece_gpu_s: float | None = None,
    ) -> None:
        """A decision was made, and so much was asked for; ``piece_gpu_s`` in the last seconds alone."""
        key = model, facts.device
        self.known[key] = facts, rule
        self.history.note(*key, load_gpu_s, self.wall(), piece_gpu_s)

    def foresee(self, model: str, facts: ClassFacts) -> Foreseen:
        """What counts for replicas of a class that are wanted now."""
        now, device = self.wall(), facts.device
        learnt = self.learnt.get((model, device))
        latest = self.history.latest(model, device)
        target_s = now + facts.lead_s
        event = demand_at(self.events, model, device, target_s)
        during = demand_at(self.events, model, device, now)
        counting = event if event.began_s is not None else during
        outlook = None
        if learnt is not None and learnt.forecast is not None:
            # while an event changes what comes, what comes now says nothing of the pattern
            outlook = learnt.forecast.ahead(now, facts.lead_s, None if during.factor != 1.0 else latest)
        state, why = self._state(learnt, outlook)
        per_gpu_s = 0.0
        if state == "acting" and outlook is not None:
            per_gpu_s = outlook.upper * counting.factor
        elif counting.factor != 1.0 and counting.began_s is not None:
            per_gpu_s = counting.factor * self._base(model, device, counting, outlook, latest)
        names = tuple(dict.fromkeys((*during.names, *event.names)))
        verdict = ForecastVerdict(
            state,
            why,
            None if outlook is None else round(outlook.expected * counting.factor, 4),
            None if outlook is None else round(outlook.upper * counting.factor, 4),
            None if learnt is None else learnt.error,
            None if learnt is None else learnt.error_as_now,
            None if learnt is None else learnt.covered,
            None if learnt is None else learnt.made_s,
            None if learnt is None else learnt.backtest,
            names,
        )
        of_class = max(event.of_class, during.of_class)
        together = max(event.together, during.together)
        return Foreseen(per_gpu_s / facts.request_s, of_class, together, verdict)

    def _state(self, learnt: LearntForecast | None, outlook: Outlook | None) -> tuple[State, str]:
        if self.off is not None:
            return "off", self.off
        if learnt is None:
            return "learning", "no forecast was made yet"
        if learnt.state == "learning":
            return "learning", learnt.why
        if outlook is None:
            return "shadow", "the forecast is of a time that is over"
        if not self.may_act:
            return "shadow", f"scaling.forecast is shadow; {learnt.why}"
        return learnt.state, learnt.why

    def _base(
        self,
        model: str,
        device: str,
        event: EventDemand,
        outlook: Outlook | None,
        latest: tuple[float, float] | None,
    ) -> float:
        """What is usual at an event: the pattern, or else what was asked for before it began to count."""
        if outlook is not None:
            return outlook.expected
        assert event.began_s is not None
        key = model, device, event.began_s
        if key not in self._bases:
            self._bases[key] = 0.0 if latest is None else latest[0]
        return self._bases[key]
