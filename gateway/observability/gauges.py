"""Gauges that are read from their owners at each scrape, so that they cost nothing between."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.domain.slices import Stepwise, run_at_once

T = TypeVar("T")


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


@dataclass(slots=True)
class TunnelFigures:
    """What has gone through all tunnels since the start."""

    bytes_received: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    messages_sent: int = 0


@dataclass(frozen=True, slots=True)
class PredictionFigures:
    """How far the scheduler's latest predictions were off, for one model on one class of device."""

    model: str
    device: str
    """A class of :mod:`gateway.scheduling.learning.devices`, or ``other``."""
    of: str
    """``first_token`` or ``total``."""
    bias: float
    """Mean of ln(actual / predicted)."""
    off: Mapping[str, float]
    """For each quantile, the factor (1 or more) by which this share of predictions was off at most."""


@dataclass(frozen=True, slots=True)
class UnreadFigures:
    """What engines have answered and clients have not read."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    held_up: int = 0
    """Answers whose engines wait for their readers."""


Labelled = Mapping[tuple[str, ...], float]
"""Values by labels."""


class Family(NamedTuple):
    """One family of metrics as one scrape found it. No longer its owner's, so any thread may read it."""

    name: str
    """Without its prefix ``trunkline_``."""
    text: str
    labels: Sequence[str]
    values: Labelled
    counter: bool = False


def single(name: str, text: str, value: float, *, counter: bool = False) -> Family:
    """A family of one series, without labels."""
    return Family(name, text, (), {(): value}, counter)


class GaugeSources(Collector):
    """Gauges that are read from their owners at each scrape, so that they cost nothing between.

    The owners set the attributes below to what gives their figures. These are read on the event loop, which
    turns for others between so many steps, and made into families in any thread.
    """

    def __init__(self, models: Mapping[str, str], agents: Mapping[str, str]) -> None:
        """``models`` and ``agents`` have the labels under which each counts."""
        self._models = models
        self._agents = agents
        self.fleet: Callable[[], Stepwise[FleetFigures]] = lambda: _at_once(FleetFigures())
        self.queue_depths: Callable[[], Mapping[str, int]] = dict
        """Requests waiting, by model."""
        self.health: Callable[[], Stepwise[Mapping[tuple[str, str], int]]] = lambda: _at_once({})
        """Deployments by model and state of health."""
        self.tunnels: Callable[[], Stepwise[TunnelFigures]] = lambda: _at_once(TunnelFigures())
        self.predictions: Callable[[], Iterable[PredictionFigures]] = tuple
        self.version_skew: Callable[[], Stepwise[Mapping[str, int]]] = lambda: _at_once({})
        """How many versions beyond the first a model has, for models whose versions no alias
        distinguishes."""
        self.unread: Callable[[], UnreadFigures] = UnreadFigures

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's Collector. For use on the event loop, which it holds."""
        return families(run_at_once(self.read()))

    def read(self) -> Stepwise[list[Family]]:
        """Read every owner, on the event loop."""
        fleet = yield from self.fleet()
        agents: Labelled = {(state,): count for state, count in fleet.agents.items()}
        slots, in_flight, round_trips_s = yield from self._by_agent(fleet.each_agent)
        circuits = yield from self.health()
        skew = yield from self.version_skew()
        predictions = yield from self._predictions()
        tunnels = yield from self.tunnels()
        unread = self.unread()
        by_model = self._by_model
        deployments = self._by_model_and_state(fleet.deployments)
        health = self._by_model_and_state(circuits)
        waiting = by_model(self.queue_depths())
        skewed = "Versions more than one in which a model is served and which no alias tells apart."
        kept = "Bytes of answers kept in memory for clients that have not read them."
        return [
            Family("agents_connected", "Agents by state.", ["state"], agents),
            Family("agent_slots_granted", "Requests that an agent takes at once.", ["agent"], slots),
            Family("agent_requests_in_flight", "Slots of an agent in use.", ["agent"], in_flight),
            Family("agent_round_trip_seconds", "Round trip of an agent's tunnel.", ["agent"], round_trips_s),
            Family("deployments", "Deployments by what agents say of them.", ["model", "state"], deployments),
            Family("circuits", "Deployments by what is seen of their health.", ["model", "state"], health),
            Family("slots_granted", "Requests that agents take at once.", ["model"], by_model(fleet.slots)),
            Family("requests_in_flight", "Slots in use.", ["model"], by_model(fleet.in_flight)),
            Family("queue_requests", "Requests waiting for a slot.", ["model"], waiting),
            Family("version_skew", skewed, ["model"], by_model(skew)),
            single("streams_open", "Streams open in all sessions.", fleet.streams),
            single("unread_bytes", kept, unread.memory_bytes),
            single("unread_disk_bytes", "Bytes of a file that such answers take.", unread.disk_bytes),
            single("answers_held_up", "Answers whose engines wait for their readers.", unread.held_up),
            *_of_tunnels(tunnels),
            *predictions,
        ]

    def _predictions(self) -> Stepwise[list[Family]]:
        """Error and bias; of pairs that share their labels the one that is off the most."""
        off: dict[tuple[str, ...], float] = {}
        bias: dict[tuple[str, ...], float] = {}
        for each in self.predictions():
            labels = self._models[each.model], each.device, each.of
            for quantile, factor in each.off.items():
                off[*labels, quantile] = max(factor, off.get((*labels, quantile), 1.0))
            if abs(each.bias) >= abs(bias.get(labels, 0.0)):
                bias[labels] = each.bias
            yield
        names = ["model", "device", "of"]
        wrong_by = (
            "Factor by which the latest predictions of the scheduler were off, up or down, by quantile."
        )
        biased = "Mean of ln(actual / predicted) over the latest: 0.1 is 10 % slower than predicted."
        return [
            Family("prediction_error", wrong_by, [*names, "quantile"], off),
            Family("prediction_bias", biased, names, bias),
        ]

    def _by_agent(self, agents: Iterable[AgentFigures]) -> Stepwise[tuple[Labelled, Labelled, Labelled]]:
        """Slots, requests in flight and round trips. Agents beyond those with labels of their own are added
        up, of their round trips the longest."""
        slots, in_flight = Tally[tuple[str, ...]](), Tally[tuple[str, ...]]()
        round_trips_s: dict[tuple[str, ...], float] = {}
        for agent in agents:
            label = (self._agents[agent.name],)
            slots[label] += agent.slots
            in_flight[label] += agent.in_flight
            if agent.round_trip_s is not None:
                round_trips_s[label] = max(agent.round_trip_s, round_trips_s.get(label, 0.0))
            yield
        return slots, in_flight, round_trips_s

    def _by_model_and_state(self, values: Mapping[tuple[str, str], int]) -> Labelled:
        labelled = Tally[tuple[str, ...]]()
        for (model, state), count in values.items():
            labelled[self._models[model], state] += count
        return labelled

    def _by_model(self, values: Mapping[str, int]) -> Labelled:
        labelled = Tally[tuple[str, ...]]()
        for model, value in values.items():
            labelled[(self._models[model],)] += value
        return labelled


def _of_tunnels(tunnels: TunnelFigures) -> list[Family]:
    moved_bytes: Labelled = {("received",): tunnels.bytes_received, ("sent",): tunnels.bytes_sent}
    messages: Labelled = {("received",): tunnels.messages_received, ("sent",): tunnels.messages_sent}
    text = "WebSocket messages through all tunnels."
    return [
        Family("tunnel_bytes", "Bytes through all tunnels.", ["direction"], moved_bytes, counter=True),
        Family("tunnel_messages", text, ["direction"], messages, counter=True),
    ]


def families(found: Iterable[Family]) -> Iterator[Metric]:
    """What was found, as prometheus_client exposes it. In any thread."""
    for data in found:
        kind = CounterMetricFamily if data.counter else GaugeMetricFamily
        family = kind(f"trunkline_{data.name}", data.text, labels=data.labels)
        for labels, value in data.values.items():
            family.add_metric(list(labels), value)
        yield family


class FamilyCollector(Collector):
    """Families of an owner that are read at each scrape."""

    def __init__(self, registry: CollectorRegistry, read: Callable[[], Iterable[Family]]) -> None:
        self._read = read
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's Collector."""
        return families(self._read())


def _at_once(found: T) -> Stepwise[T]:
    """Finds that in no steps."""
    yield from ()
    return found
