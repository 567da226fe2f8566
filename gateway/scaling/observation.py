"""What one process sees of each model that matters for scaling, and what all of them see together.

It goes from process to process as JSON. Agents are connected to every process, which lends each some of
their slots; requests are counted where they came.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gateway.dispatch.dispatcher import Dispatcher
from gateway.domain.request import Tier
from gateway.domain.slices import Stepwise
from gateway.fleet.availability import ModelRecord
from gateway.fleet.deployment import Deployment
from gateway.scheduling.learning.devices import device_class
from shared.protocol.messages import DeploymentStatus

UNNAMED = "unknown"
"""The class of devices that agents do not name."""

Json = dict[str, Any]


@dataclass(slots=True)
class SeenReplica:
    """One agent that serves a model, or is about to."""

    agent: str
    device: str
    slots: int
    ready: bool
    in_flight: int = 0
    remaining_s: float = 0.0
    """Until what runs there is over, summed over all that runs."""
    pace: float = 1.0
    """How long work takes there against what is known of its class."""
    rtt_s: float = 0.0


@dataclass(slots=True)
class SeenModel:
    """What is asked of one model, and who serves it."""

    per_s: float = 0.0
    rising_per_s2: float = 0.0
    idle_s: float = math.inf
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    high_input_tokens: float = 0.0
    high_output_tokens: float = 0.0
    known: int = 0
    waiting: int = 0
    batch_waiting: int = 0
    hold_s: float | None = None
    replicas: dict[str, SeenReplica] = field(default_factory=dict)
    """By agent."""
    piece_per_s: float | None = None
    """Requests in a second in the latest ten seconds that are over; None: a process of an earlier version
    does not say it."""

    @property
    def in_flight(self) -> int:
        """Requests that run."""
        return sum(each.in_flight for each in self.replicas.values())


def observe(dispatcher: Dispatcher, now: float) -> Stepwise[dict[str, SeenModel]]:
    """What this process sees, of models that anybody serves or asked for lately."""
    found: dict[str, SeenModel] = {}
    counts, depths = dispatcher.arrivals, dispatcher.room.depths()
    asked = frozenset(counts.models())
    for model, record in list(dispatcher.registry.index.models.items()):
        yield
        if not record.serving and model not in asked and model not in depths:
            continue
        arrivals, tiers = counts.of(model, now), dispatcher.room.tiers(model)
        batch = tiers.get(Tier.BATCH.value, 0)
        found[model] = SeenModel(
            arrivals.per_s,
            arrivals.rising_per_s2,
            now - arrivals.latest_s,
            arrivals.input_tokens,
            arrivals.output_tokens,
            arrivals.high_input_tokens,
            arrivals.high_output_tokens,
            arrivals.known,
            sum(tiers.values()) - batch,
            batch,
            record.hold_s,
            _replicas(record, now),
            arrivals.piece_per_s,
        )
    return found


def _replicas(record: ModelRecord, now: float) -> dict[str, SeenReplica]:
    """The agents of deployments that serve the model, or are being loaded."""
    found: dict[str, SeenReplica] = {}
    for each in record.serving.values():
        if each.leaving or each.closing:
            continue
        seen = _seen(each, now)
        known = found.get(each.agent)
        if known is None:
            found[each.agent] = seen
        else:
            known.slots += seen.slots
            known.ready = known.ready or seen.ready
            known.in_flight += seen.in_flight
            known.remaining_s += seen.remaining_s
    return found


def _seen(deployment: Deployment, now: float) -> SeenReplica:
    load = deployment.load
    return SeenReplica(
        deployment.agent,
        device_class(deployment.device) or UNNAMED,
        max(deployment.slots, deployment.promised_slots),
        deployment.status is DeploymentStatus.LOADED,
        deployment.in_flight,
        load.remaining_s(now),
        math.sqrt(load.reading_pace * load.writing_pace),
        deployment.rtt_s,
    )


def to_json(seen: Mapping[str, SeenModel]) -> Json:
    """For another process."""
    return {"models": {model: asdict(each) for model, each in seen.items()}}


def from_json(answer: Json) -> dict[str, SeenModel]:
    """What another process said. Raises KeyError, TypeError, ValueError."""
    names = {each.name for each in fields(SeenModel)}
    found: dict[str, SeenModel] = {}
    for model, said in answer["models"].items():
        told = {name: value for name, value in said.items() if name in names}
        told["replicas"] = {name: SeenReplica(**each) for name, each in said["replicas"].items()}
        told["idle_s"] = math.inf if told["idle_s"] is None else float(told["idle_s"])
        found[str(model)] = SeenModel(**told)
    return found


def merge(seen: Sequence[Mapping[str, SeenModel]]) -> dict[str, SeenModel]:
    """What several processes see together; the first is this one, whose figures of agents count."""
    names = dict.fromkeys(model for each in seen for model in each)
    return {model: _merged([each[model] for each in seen if model in each]) for model in names}


def _merged(seen: Sequence[SeenModel]) -> SeenModel:
    if len(seen) == 1:
        return seen[0]
    holds = [each.hold_s for each in seen if each.hold_s is not None]
    return SeenModel(
        math.fsum(each.per_s for each in seen),
        math.fsum(each.rising_per_s2 for each in seen),
        min(each.idle_s for each in seen),
        _mean((each.input_tokens, each.known) for each in seen),
        _mean((each.output_tokens, each.known) for each in seen),
        max(each.high_input_tokens for each in seen),
        max(each.high_output_tokens for each in seen),
        sum(each.known for each in seen),
        sum(each.waiting for each in seen),
        sum(each.batch_waiting for each in seen),
        sum(holds) / len(holds) if holds else None,
        _merged_replicas(each.replicas for each in seen),
        math.fsum(each.per_s if each.piece_per_s is None else each.piece_per_s for each in seen),
    )


def _mean(values: Iterable[tuple[float, int]]) -> float:
    known = [(value, weight) for value, weight in values if weight]
    total = sum(weight for _, weight in known)
    return math.fsum(value * weight for value, weight in known) / total if total else 0.0


def _merged_replicas(seen: Iterable[Mapping[str, SeenReplica]]) -> dict[str, SeenReplica]:
    found: dict[str, SeenReplica] = {}
    for replicas in seen:
        for name, each in replicas.items():
            known = found.get(name)
            if known is None:
                found[name] = SeenReplica(**asdict(each))
            else:
                known.slots = max(known.slots, each.slots)
                known.ready = known.ready or each.ready
                known.in_flight += each.in_flight
                known.remaining_s += each.remaining_s
    return found
