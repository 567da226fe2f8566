"""Whether so many replicas are enough. Pure.

The replicas of a model are taken for one queue with as many servers as they have slots. The chance that a
request must wait at all is that of Halfin and Whitt ("Heavy-traffic limits for queues with many exponential
servers", 1981), which takes the same time for ten thousand slots as for one; who must wait does so for an
exponential time with the mean 1 / (what replicas can do - what is asked for).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.scheduling.scaling.data import ClassFacts, ScalingRule

LATE_SHARE = 0.01
"""The share of requests that may be later than the rule says: p99."""

_LARGE = 30.0
"""Standard deviations beyond which the chance to wait is taken for 0."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many replicas of each class."""

    parts: Sequence[tuple[ClassFacts, int]]

    @property
    def slots(self) -> int:
        return sum(each.slots * count for each, count in self.parts)

    @property
    def per_s(self) -> float:
        """Requests that it does in a second."""
        return math.fsum(each.per_s * count for each, count in self.parts)

    @property
    def first_s(self) -> float:
        """Until the first token of a long request that does not wait, on the slowest class there is."""
        return max((each.first_s for each, count in self.parts if count), default=0.0)


def wait_chance(slots: int, utilisation: float) -> float:
    """How probable it is that a request must wait at ``slots`` servers that are used by this share."""
    if utilisation <= 0.0:
        return 0.0
    if utilisation >= 1.0 or slots < 1:
        return 1.0
    beta = (1.0 - utilisation) * math.sqrt(slots / utilisation)
    if beta > _LARGE:
        return 0.0
    density = math.exp(-beta * beta / 2.0) / math.sqrt(2.0 * math.pi)
    below = 0.5 * (1.0 + math.erf(beta / math.sqrt(2.0)))
    return 1.0 / (1.0 + beta * below / density)


def late_share(fleet: Fleet, arriving_per_s: float, patience_s: float) -> float:
    """The share of requests that wait for longer than ``patience_s`` (>= 0)."""
    return _late_share(fleet.slots, fleet.per_s, arriving_per_s, patience_s)


def _late_share(slots: int, per_s: float, arriving_per_s: float, patience_s: float) -> float:
    if arriving_per_s <= 0.0:
        return 0.0 if slots else 1.0
    if per_s <= arriving_per_s:
        return 1.0
    chance = wait_chance(slots, arriving_per_s / per_s)
    return chance * math.exp(-(per_s - arriving_per_s) * patience_s)


def can_meet(facts: ClassFacts, rule: ScalingRule) -> str:
    """Why no number of replicas of this class meets the rule; empty: some number does."""
    if facts.first_s >= rule.first_token_s:
        return (
            f"a long prompt takes {facts.first_s:.2g} s to read there, and the first token shall be there "
            f"after {rule.first_token_s:g} s"
        )
    if rule.latency_s is not None and facts.total_s > rule.latency_s:
        return f"a long answer takes {facts.total_s:.2g} s there, more than {rule.latency_s:g} s"
    return ""


def is_enough(fleet: Fleet, rule: ScalingRule, arriving_per_s: float, drained_per_s: float) -> bool:
    """Whether ``fleet`` keeps the rule when ``arriving_per_s`` come and ``drained_per_s`` of a queue are to
    be worked off besides. A class that cannot meet the rule is judged by how much it does alone."""
    per_s = fleet.per_s
    if arriving_per_s > per_s * rule.utilisation or arriving_per_s + drained_per_s > per_s:
        return False
    patience_s = rule.first_token_s - fleet.first_s
    return patience_s <= 0.0 or _late_share(fleet.slots, per_s, arriving_per_s, patience_s) <= LATE_SHARE
