"""What one scrape finds of the fleet.

The registry fills it in, and :mod:`gateway.observability.gauges` shows it.
"""

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import fsum, sqrt
from typing import Protocol

from shared.protocol.messages import GpuState


class MessageCounts(Protocol):
    """Of :class:`shared.protocol.numbering.MessageLog`."""

    replayed: int
    retained_bytes: int


class CountedSession(Protocol):
    """Of :class:`shared.protocol.session.ProtocolSession`."""

    @property
    def log(self) -> MessageCounts: ...
    @property
    def credit_stalls(self) -> int: ...


@dataclass(slots=True)
class SessionTotals:
    """What sessions counted, present and past ones."""

    replayed: int = 0
    """Messages that were sent again on a new tunnel."""
    credit_stalls: int = 0
    """How often the body of a request waited for its agent's credit."""
    retained_bytes: int = 0
    """Kept now, until agents acknowledge them."""
    most_retained_bytes: int = 0
    """Of one session."""

    def add(self, session: CountedSession) -> None:
        """One session that is there."""
        kept_bytes = session.log.retained_bytes
        self.replayed += session.log.replayed
        self.credit_stalls += session.credit_stalls
        self.retained_bytes += kept_bytes
        self.most_retained_bytes = max(self.most_retained_bytes, kept_bytes)

    def add_ended(self, session: CountedSession) -> None:
        """One session that is over: it keeps nothing any more."""
        self.replayed += session.log.replayed
        self.credit_stalls += session.credit_stalls


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """Gauges of one connected agent."""

    name: str
    slots: int
    """Requests it takes at once now, over all its models."""
    in_flight: int
    round_trip_s: float | None
    """The round trip of its tunnel; None before it was measured."""


@dataclass(slots=True)
class FleetFigures:
    """Gauges of the fleet at one scrape, filled in by the registry."""

    agents: Tally[str] = field(default_factory=Tally)
    """Connected agents by state, in lower case."""
    each_agent: list[AgentFigures] = field(default_factory=list)
    deployments: Tally[tuple[str, str]] = field(default_factory=Tally)
    """Deployments by model and state."""
    slots: Tally[str] = field(default_factory=Tally)
    """Granted and usable, by model."""
    in_flight: Tally[str] = field(default_factory=Tally)
    """Slots in use, by model."""
    streams: int = 0
    gpus: list[tuple[str, GpuState]] = field(default_factory=list)
    """With the agent whose host has it, as that said last."""
    engine_running: Tally[str] = field(default_factory=Tally)
    """Requests that engines work on at once, by model: their batches."""
    engine_waiting: Tally[str] = field(default_factory=Tally)
    """Requests that wait inside engines, by model."""
    kv_use: dict[str, float] = field(default_factory=dict)
    """The share of its memory for context that the fullest engine of a model uses."""
    utilisations: dict[str, list[float]] = field(default_factory=dict)
    """The shares of their slots that a model's deployments use."""
    totals: SessionTotals = field(default_factory=SessionTotals)

    def use(self, model: str, share: float) -> None:
        """A deployment uses so much of its slots."""
        self.utilisations.setdefault(model, []).append(share)


def coefficient_of_variation(values: Iterable[float]) -> float:
    """The standard deviation of ``values`` as a share of their mean: 0 where all are the same, or none is
    above 0."""
    found = list(values)
    mean = fsum(found) / len(found) if found else 0.0
    if not mean > 0.0:
        return 0.0
    return sqrt(fsum((each - mean) ** 2 for each in found) / len(found)) / mean
