"""A week with replicas that come and go, request by request, by each way to decide how many there are.

Requests wait in one queue, as they do in the gateway, for a slot of any replica that is ready. A slot is kept
as long as a request takes with all slots taken: the engine's batches are not simulated, which makes a lone
request slower than it is. What decides is the gateway's own code: the plan, its steadiness, and, for
forecasts, what makes, judges and looks them up. A replica takes its time from when it is wanted until it is
ready, and one that is not wanted any more ends what it has begun.
"""

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.scaling.foresight import Foresight, LearntForecast
from gateway.scaling.learning import learn
from gateway.scaling.learning_task import LearningTask
from gateway.scheduling.scaling.bursts import ending_at
from gateway.scheduling.scaling.data import ClassFacts, ModelLoad, ScalingRule
from gateway.scheduling.scaling.forecast import STEP_S, LoadSeries
from gateway.scheduling.scaling.pattern import DAY_STEPS, PatternLearner
from gateway.scheduling.scaling.plan import plan
from gateway.scheduling.scaling.stabilisation import LeadTime, WantedReplicas
from gateway.tools.simulate.week_load import DAY_S, MONDAY_S, WEEK_S, WEEKS_BEFORE, WeekTraffic

SPAN_S = 60.0
START_SPREAD = 0.2
POLICIES = ("fixed", "reactive", "predictive", "gated")
BEGIN_S = MONDAY_S + WEEKS_BEFORE * WEEK_S
_MODEL = "model"


@dataclass(frozen=True, slots=True)
class WeekSettings:
    """Beside the traffic."""

    facts: ClassFacts
    """What one replica does; ``lead_s`` is the mean time until it is ready."""
    rule: ScalingRule
    quantile: float = 0.9
    extra: float = 0.15
    backtest_days: int = 14
    interval_s: float = 10.0
    """Between two decisions."""


@dataclass(frozen=True, slots=True)
class WeekFigures:
    """What came of one policy."""

    policy: str
    requests: int
    kept: int
    """Had their first token in time."""
    refused: int
    replica_hours: float
    busy_hours: float
    """Of devices, with all slots taken."""
    most: int
    acted_days: int
    """On which a forecast acted."""
    error: float | None
    """Of the forecasts of the last day, on days that they had not learnt from."""

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "requests": self.requests,
            "slo_kept": self.kept / max(1, self.requests),
            "refused": self.refused,
            "gpu_hours": self.replica_hours,
            "used": self.busy_hours / max(self.replica_hours, 1e-9),
            "most_replicas": self.most,
            "forecast_acted_days": self.acted_days,
            "forecast_error": self.error,
        }


@dataclass(slots=True, eq=False)
class _Replica:
    running: int = 0
    ends: bool = False


@dataclass(slots=True)
class _Site:
    """The replicas and what waits for them."""

    slots: int
    ready: list[_Replica] = field(default_factory=list)
    ending: list[_Replica] = field(default_factory=list)
    starting: list[float] = field(default_factory=list)
    """When each is ready, in order."""
    waiting: deque[tuple[float, float, float]] = field(default_factory=deque)
    ends: list[tuple[float, int, _Replica]] = field(default_factory=list)
    number: int = 0

    @property
    def there(self) -> int:
        return len(self.ready) + len(self.ending) + len(self.starting)

    def free(self) -> _Replica | None:
        """The one with the fewest requests, if it has a slot."""
        found = min(self.ready, key=lambda each: each.running, default=None)
        return found if found is not None and found.running < self.slots else None

    def begin(self, replica: _Replica, work_s: float, now: float) -> None:
        replica.running += 1
        self.number += 1
        heapq.heappush(self.ends, (now + work_s * self.slots, self.number, replica))

    def scale(self, wanted: int, now: float, start_s: float) -> None:
        """Have so many, but for those that end; each new one takes ``start_s``."""
        for _ in range(wanted - len(self.ready) - len(self.starting)):
            heapq.heappush(self.starting, now + start_s)
        for _ in range(len(self.ready) + len(self.starting) - wanted):
            if self.starting:
                self.starting.remove(max(self.starting))
                heapq.heapify(self.starting)
            else:
                replica = min(self.ready, key=lambda each: each.running)
                self.ready.remove(replica)
                if replica.running:
                    replica.ends = True
                    self.ending.append(replica)


class WeekRun:
    """One policy; :meth:`run` is called once. Equal input gives equal figures."""

    def __init__(self, traffic: WeekTraffic, settings: WeekSettings, policy: str, seed: int) -> None:
        self._traffic, self._settings, self._policy = traffic, settings, policy
        self._chance = random.Random(f"{seed} starts")
        self._now = BEGIN_S
        self._site = _Site(settings.facts.slots)
        self._lead = LeadTime()
        self._foresight = Foresight(lambda: self._now)
        self._history, self._bursts = list(traffic.before.values), traffic.before.bursts
        self._came: deque[tuple[float, int]] = deque()
        self._count = self._requests = self._kept = self._refused = self._most = self._acted = 0
        self._hours = self._busy_s = 0.0
        first = plan(ModelLoad(self._fixed_per_s()), [settings.facts], settings.rule).wanted
        self._fixed = first[settings.facts.device]
        start = self._fixed if policy == "fixed" else self._enough_now()
        self._site.ready = [_Replica() for _ in range(start)]
        self._steady = WantedReplicas(start, BEGIN_S)

    def run(self) -> WeekFigures:
        """The whole week."""
        tick_s = BEGIN_S
        self._learn()
        for at_s, work_s, read_s in self._traffic:
            while tick_s <= at_s:
                self._pass(tick_s)
                self._tick(tick_s)
                tick_s += self._settings.interval_s
            self._pass(at_s)
            self._count += 1
            self._requests += 1
            self._busy_s += work_s
            self._site.waiting.append((at_s, work_s, read_s))
            self._serve(at_s)
        learnt = self._foresight.learnt.get((_MODEL, self._settings.facts.device))
        return WeekFigures(
            self._policy,
            self._requests,
            self._kept,
            self._refused + len(self._site.waiting),
            self._hours,
            self._busy_s / 3600.0,
            self._most,
            self._acted,
            None if learnt is None else learnt.error,
        )

    # --- Requests ---

    def _pass(self, now: float) -> None:
        """What ends or becomes ready until ``now``."""
        site = self._site
        while True:
            end_s = site.ends[0][0] if site.ends else math.inf
            ready_s = site.starting[0] if site.starting else math.inf
            next_s = min(end_s, ready_s)
            if next_s > now:
                break
            if ready_s <= end_s:
                heapq.heappop(site.starting)
                site.ready.append(_Replica())
            else:
                replica = heapq.heappop(site.ends)[2]
                replica.running -= 1
                if replica.ends and not replica.running:
                    site.ending.remove(replica)
            self._serve(next_s)

    def _serve(self, now: float) -> None:
        site, rule = self._site, self._settings.rule
        while site.waiting:
            at_s, work_s, read_s = site.waiting[0]
            if now - at_s > rule.most_wait_s:
                site.waiting.popleft()
                self._refused += 1
                continue
            replica = site.free()
            if replica is None:
                return
            site.waiting.popleft()
            site.begin(replica, work_s, now)
            self._kept += now - at_s + read_s <= rule.first_token_s

    # --- Decisions ---

    def _tick(self, now: float) -> None:
        self._now = now
        site, settings = self._site, self._settings
        if now > BEGIN_S and (now - BEGIN_S) % DAY_S < settings.interval_s:
            self._learn()
        self._hours += site.there * settings.interval_s / 3600.0
        self._most = max(self._most, site.there)
        self._came.append((now, self._count))
        self._count = 0
        while self._came[0][0] <= now - 2 * SPAN_S:
            self._came.popleft()
        if self._policy == "fixed":
            return
        last = sum(count for at_s, count in self._came if at_s > now - SPAN_S) / SPAN_S
        before = sum(count for at_s, count in self._came if at_s <= now - SPAN_S) / SPAN_S
        rising = max(0.0, last - before) / SPAN_S if now - BEGIN_S >= 2 * SPAN_S else 0.0
        running = sum(each.running for each in site.ready)
        load = ModelLoad(last, rising, len(site.waiting), 0, running)
        lead_s = self._lead.measured_s or settings.facts.lead_s
        facts = replace(settings.facts, ready=len(site.ready), starting=len(site.starting), lead_s=lead_s)
        piece = self._came[-1][1] / settings.interval_s
        self._foresight.note(_MODEL, facts, settings.rule, last * facts.request_s, piece * facts.request_s)
        if self._policy != "reactive":
            facts = replace(facts, forecast_per_s=self._foresight.foresee(_MODEL, facts).per_s)
        needed = plan(load, [facts], settings.rule).wanted[facts.device]
        wanted = self._steady.need(needed, settings.rule, lead_s, now)
        self._lead.note(wanted, len(site.ready), now)
        start_s = settings.facts.lead_s * math.exp(self._chance.gauss(0.0, START_SPREAD))
        site.scale(wanted, now, start_s)

    def _learn(self) -> None:
        """At the beginning of each day, from all that is known then."""
        if self._policy not in ("predictive", "gated"):
            return
        for each in self._foresight.history.take(self._now, writes=True):
            self._history.append(each.load)
            self._bursts += each.bursts
        device = self._settings.facts.device
        whole = int((self._now - MONDAY_S) // STEP_S)
        values = (self._history + [math.nan] * whole)[:whole]
        about, known = self._settings, self._foresight.learnt.get((_MODEL, device))
        acts = known is not None and known.state == "acting"
        series = LoadSeries(MONDAY_S, values)
        within = ending_at(MONDAY_S, self._bursts, series.end_s, about.backtest_days * DAY_STEPS)
        more = (about.quantile, about.extra, about.backtest_days, acts, within)
        task = LearningTask(series.start_s, values, about.facts, about.rule, *more)  # type: ignore[arg-type]
        if self._policy == "gated":
            learnt = LearntForecast.from_json(learn(task), self._now)
        else:
            learner = PatternLearner(series, about.quantile)
            error, _ = learner.held_out(about.backtest_days, about.facts.lead_s)
            learnt = LearntForecast("acting", "", self._now, learner.forecast(whole), error.error)
        self._acted += learnt.state == "acting"
        self._foresight.learnt[_MODEL, device] = learnt

    def _fixed_per_s(self) -> float:
        """The busiest hour of the weeks before: what somebody would have sized a fleet for."""
        values, hour = self._traffic.before.values, int(3600 / STEP_S)
        sums = [sum(values[start : start + hour]) / hour for start in range(0, len(values) - hour, hour)]
        return max(sums) / self._settings.facts.request_s

    def _enough_now(self) -> int:
        latest = self._traffic.before.values[-1] / self._settings.facts.request_s
        facts = self._settings.facts
        return plan(ModelLoad(latest), [facts], self._settings.rule).wanted[facts.device]
