"""The smallest fleet that is good enough: ``--what-if 'ttft_p99<1,latency_p95<20'``.

The fleet keeps its composition: of ``2*h100,4*l4`` are tried ``1*h100,2*l4`` and its multiples. More devices
are taken to be never worse, so the number is doubled until it is enough and then searched by halves.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gateway.bench.histogram import Histogram
from gateway.simulate.errors import BadSpec
from gateway.simulate.fleet import devices, scaled, written
from gateway.simulate.policies import Choice
from gateway.simulate.simulation import Plan, simulate
from gateway.simulate.tally import Figures

MAX_TRIED_DEVICES = 4096
_TERM = re.compile(
    r"\s*(?:(ttft|latency|tpot|queued)_p(\d{1,2}(?:\.\d+)?)|(good|rejected))\s*([<>])\s*(\d+(?:\.\d+)?)\s*"
)
_HELP = "such as ttft_p99<1, latency_p95<20, tpot_p50<0.05, queued_p99<2 (seconds), good>0.99, rejected<0.01"


@dataclass(frozen=True, slots=True)
class Goal:
    """One condition. ``rank`` is a share of the requests for durations, None for shares themselves."""

    text: str
    what: str
    rank: float | None
    better: Callable[[float, float], bool]
    bound: float

    def met(self, figures: Figures) -> bool:
        return self.better(self.value(figures), self.bound)

    def value(self, figures: Figures) -> float:
        tally = figures.tally
        if self.rank is None:
            count: int = getattr(tally, self.what)
            return count / max(1, tally.requests)
        histogram: Histogram = getattr(tally, self.what)
        return histogram.percentile_s(self.rank) if histogram.count else 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The smallest fleet that was good enough and its figures; without one the largest that was tried."""

    meets: bool
    plan: Plan
    figures: Figures
    tried: tuple[tuple[str, bool], ...]

    def as_json(self, goals: tuple[Goal, ...]) -> dict[str, Any]:
        return {
            "meets": self.meets,
            "fleet": written(self.plan.fleet),
            "devices": devices(self.plan.fleet),
            "goals": {goal.text: goal.value(self.figures) for goal in goals},
            "tried": dict(self.tried),
        }


def goals_of(text: str) -> tuple[Goal, ...]:
    """Conditions joined by commas. None may be refused unless ``rejected`` says how many. Raises BadSpec."""
    goals = [_goal(part) for part in text.split(",")]
    if all(goal.what != "rejected" for goal in goals):
        goals.append(Goal("rejected<=0", "rejected", None, operator.le, 0.0))
    return tuple(goals)


def smallest(plan: Plan, choice: Choice, goals: tuple[Goal, ...]) -> Answer:
    """Raises BadSpec and BadTrace."""
    unit = devices(scaled(plan.fleet, 1))
    tried: dict[int, tuple[Plan, Figures, bool]] = {}

    def enough(times: int) -> bool:
        if times not in tried:
            one = replace(plan, fleet=scaled(plan.fleet, times))
            figures = simulate(one, choice)
            tried[times] = one, figures, all(goal.met(figures) for goal in goals)
        return tried[times][2]

    low, high = 0, 1
    while not enough(high) and 2 * high * unit <= MAX_TRIED_DEVICES:
        low, high = high, 2 * high
    while enough(high) and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    found, figures, meets = tried[high]
    return Answer(
        meets, found, figures, tuple((written(tried[at][0].fleet), tried[at][2]) for at in sorted(tried))
    )


def _goal(part: str) -> Goal:
    match = _TERM.fullmatch(part)
    if match is None:
        raise BadSpec("--what-if", f"{part.strip()!r} is no condition {_HELP}")
    better = operator.lt if match[4] == "<" else operator.gt
    rank = None if match[2] is None else float(match[2]) / 100
    return Goal(part.strip(), match[1] or match[3], rank, better, float(match[5]))
