"""What came of requests, measured or simulated, and the same figures of both."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.tools.whatif.facts import ReplayFact

RANKS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
POINTS = 60
"""Of a series, about so many."""

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """A request keeps it whose first token came within ``first_s`` and the others within ``each_s`` of each
    other, on average. One that is answered in one piece has as long for all of them together."""

    first_s: float
    each_s: float

    def is_kept(self, first_s: float, total_s: float, tokens: int, *, whole: bool) -> bool:
        rest_s = self.each_s * max(0, tokens - 1)
        if whole:
            return total_s <= self.first_s + rest_s
        return first_s <= self.first_s and total_s - first_s <= rest_s


@dataclass(slots=True)
class Outcomes:
    """Of each request that was answered, in parallel lists; and counts of the others."""

    level: ServiceLevel
    at_s: list[float] = field(default_factory=list)
    """When it arrived, on the clock of what was recorded, from the beginning of that."""
    first_s: list[float] = field(default_factory=list)
    queued_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    good: int = 0
    refused: int = 0
    failed: int = 0
    cancelled: int = 0
    ended_s: float = 0.0
    """When the last one was over, on the clock on which they ran."""
    busy_s: float = 0.0
    """Seconds in which deployments had any request, summed up over them."""

    def answered(
        self, at_s: float, first_s: float, queued_s: float, total_s: float, tokens: int, *, whole: bool
    ) -> None:
        """One more."""
        self.at_s.append(at_s)
        self.first_s.append(total_s if whole else first_s)
        self.queued_s.append(queued_s)
        self.tokens.append(tokens)
        self.good += self.level.is_kept(first_s, total_s, tokens, whole=whole)

    def join(self, other: "Outcomes") -> None:
        """Take those of another model, too."""
        for name in ("at_s", "first_s", "queued_s", "tokens"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("good", "refused", "failed", "cancelled", "busy_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ended_s = max(self.ended_s, other.ended_s)


def measured(facts: Iterable[ReplayFact], begin_s: float, level: ServiceLevel) -> Outcomes:
    """What really came of requests."""
    found = Outcomes(level)
    for fact in facts:
        found.busy_s += fact.gpu_s
        found.ended_s = max(found.ended_s, fact.at_s + fact.total_s - begin_s)
        if fact.outcome == "answered":
            first_s = fact.total_s if fact.first_s is None else fact.first_s
            queued_s, tokens = fact.queued_s or 0.0, fact.tokens_out or 0
            at_s = fact.at_s - begin_s
            found.answered(at_s, first_s, queued_s, fact.total_s, tokens, whole=fact.whole)
        elif fact.outcome == "refused":
            found.refused += 1
        elif fact.outcome == "failed":
            found.failed += 1
        else:
            found.cancelled += 1
    return found


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What the deployments of a plan are and cost."""

    deployments: int
    slots: int
    per_hour: float | None
    """None: of some, nobody has said a price."""


def figures_of(outcomes: Outcomes, cost: FleetCost, span_s: float, replayed_s: float) -> dict[str, Any]:
    """``span_s`` is the time that was recorded, ``replayed_s`` that in which the requests came, which is
    shorter where they come faster."""
    count = len(outcomes.at_s)
    ended = count + outcomes.refused + outcomes.failed + outcomes.cancelled
    lasted_s = max(outcomes.ended_s, 1e-9)
    hours = cost.deployments * span_s / 3600
    return {
        "requests": ended,
        "answered": count,
        "refused": outcomes.refused,
        "failed": outcomes.failed,
        "cancelled": outcomes.cancelled,
        "first_token_s": percentiles(outcomes.first_s),
        "queued_s": percentiles(outcomes.queued_s),
        "output_tokens_per_s": sum(outcomes.tokens) / lasted_s if count else 0.0,
        "slo_kept": outcomes.good / (count + outcomes.refused) if count + outcomes.refused else None,
        "utilisation": min(1.0, outcomes.busy_s / (cost.deployments * replayed_s))
        if cost.deployments and replayed_s > 0
        else None,
        "deployments": cost.deployments,
        "slots": cost.slots,
        "gpu_hours": hours,
        "cost": None if cost.per_hour is None else cost.per_hour * span_s / 3600,
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """In seconds; None where there are no values."""
    if not values:
        return dict.fromkeys(RANKS)
    ordered = sorted(values)
    return {name: ordered[_rank(share, len(ordered))] for name, share in RANKS.items()}


def _rank(share: float, count: int) -> int:
    """Which of so many sorted values ``share`` of them do not exceed."""
    return min(count - 1, max(0, math.ceil(share * count) - 1))


def step_s(span_s: float) -> int:
    """The time between two points of a series."""
    return next((each for each in _STEPS_S if span_s / each <= POINTS), _STEPS_S[-1])


def series_of(
    outcomes: Outcomes, begin_s: float, span_s: float, scale: float = 1.0
) -> dict[str, list[float | None]]:
    """By when requests arrived from ``begin_s`` on, every :func:`step_s`: percentiles of the time to the
    first token and in the queue, and tokens a second, where requests came ``scale`` times as fast. None where
    no request came."""
    step = step_s(span_s)
    count = max(1, math.ceil(span_s / step))
    first: list[list[float]] = [[] for _ in range(count)]
    queued: list[list[float]] = [[] for _ in range(count)]
    tokens = [0] * count
    for at_s, first_s, queued_s, written in zip(
        outcomes.at_s, outcomes.first_s, outcomes.queued_s, outcomes.tokens, strict=True
    ):
        place = min(count - 1, max(0, int((at_s - begin_s) / step)))
        first[place].append(first_s)
        queued[place].append(queued_s)
        tokens[place] += written
    return {
        "first_token_p50_s": [percentiles(each)["p50"] for each in first],
        "first_token_p90_s": [percentiles(each)["p90"] for each in first],
        "queued_p90_s": [percentiles(each)["p90"] for each in queued],
        "output_tokens_per_s": [
            each * scale / step if there else None for each, there in zip(tokens, first, strict=True)
        ],
    }
