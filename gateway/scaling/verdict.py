"""What is said of one model: to operators, metrics, KEDA and hooks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.scaling.foresight import ForecastVerdict
from gateway.scaling.observation import SeenReplica
from gateway.scheduling.scaling.data import ClassFacts, ScalingOption

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """How much it would cost to end one replica: those with the least go first."""

    agent: str
    running: int
    remaining_s: float
    cost: int
    """For Kubernetes' pod-deletion-cost and the like: the lower, the sooner it goes."""


@dataclass(frozen=True, slots=True)
class ClassVerdict:
    """Of one class of device."""

    ready: int
    starting: int
    wanted: int
    needed: int
    """Needed now; ``wanted`` is steadier."""
    queued_gpu_s: float
    arriving_gpu_s: float
    request_gpu_s: float
    slots: int
    measured: bool
    first_token_s: float
    lead_s: float
    price_hour: float | None
    replicas: Sequence[ReplicaCost] = ()
    ends: Sequence[str] = ()
    """The agents that would be ended, where fewer are wanted than are ready: those with the least left."""
    forecast: ForecastVerdict | None = None
    """What is foreseen, and whether it may act; None: nobody looks ahead here."""


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """Of one model."""

    model: str
    why: str
    active: bool
    waiting: int
    in_flight: int
    classes: Mapping[str, ClassVerdict] = field(default_factory=dict)
    options: Sequence[ScalingOption] = ()

    @property
    def wanted(self) -> int:
        """Replicas of all classes."""
        return sum(each.wanted for each in self.classes.values())

    def as_json(self) -> Json:
        """For the admin API."""
        return asdict(self) | {"wanted": self.wanted}


def class_verdict(
    facts: ClassFacts,
    wanted: int,
    needed: int,
    queued_gpu_s: float,
    arriving_gpu_s: float,
    replicas: Sequence[SeenReplica],
    forecast: ForecastVerdict | None = None,
) -> ClassVerdict:
    """Of a class of which ``wanted`` are wanted and ``replicas`` are there."""
    costs = costs_of(replicas)
    surplus = max(0, facts.ready - wanted)
    return ClassVerdict(
        facts.ready,
        facts.starting,
        wanted,
        needed,
        round(queued_gpu_s, 3),
        round(arriving_gpu_s, 4),
        facts.request_s,
        facts.slots,
        facts.measured,
        round(facts.first_s, 3),
        round(facts.lead_s, 1),
        facts.price_hour,
        costs,
        [each.agent for each in costs[:surplus]],
        forecast,
    )


def costs_of(replicas: Sequence[SeenReplica]) -> list[ReplicaCost]:
    """Those that are ready, the one with the least remaining work first."""
    ready = [each for each in replicas if each.ready]
    ready.sort(key=lambda each: (each.remaining_s, each.in_flight, each.agent))
    return [
        ReplicaCost(each.agent, each.in_flight, round(each.remaining_s, 1), number)
        for number, each in enumerate(ready)
    ]
