"""Gauges that are read from their owners at each scrape, so that they cost nothing between."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

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
    """Of its tunnel, None before it was measured."""


@dataclass(slots=True)
class FleetFigures:
    """Gauges of the fleet at one moment, filled in by the registry."""

    agents: Tally[str] = field(default_factory=Tally)
    """Connected agents by state, in lower case."""
    each_agent: list["AgentFigures"] = field(default_factory=list)
    deployments: Tally[tuple[str, str]] = field(default_factory=Tally)
    """By model and state."""
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
    """By quantile, the factor (1 or more) that this share of predictions was off by at most."""


@dataclass(frozen=True, slots=True)
class UnreadFigures:
    """What engines have answered and clients have not read."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    held_up: int = 0
    """Answers whose engines wait for their readers."""


Labelled = Mapping[tuple[str, ...], float]
"""Values by labels."""


@dataclass(slots=True)
class Seen:
    """What one scrape has seen of the owners of gauges: with labels, and no longer theirs."""

    agents: Labelled
    agent_slots: Labelled
    agent_in_flight: Labelled
    round_trips_s: Labelled
    deployments: Labelled
    circuits: Labelled
    slots: Labelled
    in_flight: Labelled
    waiting: Labelled
    skew: Labelled
    prediction_error: Labelled
    prediction_bias: Labelled
    streams: int
    unread: UnreadFigures
    tunnels: TunnelFigures


class GaugeSources(Collector):
    """Gauges that are read from their owners at each scrape, so that they cost nothing between.

    Owners are looked at on the event loop, which turns for others between so many steps; what was seen of
    them is made into families in any thread.
    """

    def __init__(self, label: Callable[[str], str], agent_label: Callable[[str], str]) -> None:
        self._label = label
        self._agent_label = agent_label
        self.fleet: Callable[[], Stepwise[FleetFigures]] = lambda: _nothing(FleetFigures())
        self.depths: Callable[[], Mapping[str, int]] = dict
        self.health: Callable[[], Stepwise[Mapping[tuple[str, str], int]]] = lambda: _nothing({})
        self.tunnels: Callable[[], Stepwise[TunnelFigures]] = lambda: _nothing(TunnelFigures())
        self.predictions: Callable[[], Iterable[PredictionFigures]] = tuple
        self.skew: Callable[[], Stepwise[Mapping[str, int]]] = lambda: _nothing({})
        self.unread: Callable[[], UnreadFigures] = UnreadFigures

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's Collector. For use on the event loop, which it holds."""
        return families(run_at_once(self.look()))

    def look(self) -> Stepwise[Seen]:
        """Looks at every owner, on the event loop."""
        fleet = yield from self.fleet()
        slots, in_flight, round_trips_s = yield from self._by_agent(fleet.each_agent)
        circuits = yield from self.health()
        skew = yield from self.skew()
        error, bias = yield from self._predictions()
        tunnels = yield from self.tunnels()
        return Seen(
            agents={(state,): count for state, count in fleet.agents.items()},
            agent_slots=slots,
            agent_in_flight=in_flight,
            round_trips_s=round_trips_s,
            deployments=self._by_model_and_state(fleet.deployments),
            circuits=self._by_model_and_state(circuits),
            slots=self._by_model(fleet.slots),
            in_flight=self._by_model(fleet.in_flight),
            waiting=self._by_model(self.depths()),
            skew=self._by_model(skew),
            prediction_error=error,
            prediction_bias=bias,
            streams=fleet.streams,
            unread=self.unread(),
            tunnels=tunnels,
        )

    def _predictions(self) -> Stepwise[tuple[Labelled, Labelled]]:
        """Error and bias; of pairs that share their labels the one that is off the most."""
        off: dict[tuple[str, ...], float] = {}
        bias: dict[tuple[str, ...], float] = {}
        for each in self.predictions():
            labels = self._label(each.model), each.device, each.of
            for quantile, factor in each.off.items():
                off[*labels, quantile] = max(factor, off.get((*labels, quantile), 1.0))
            if abs(each.bias) >= abs(bias.get(labels, 0.0)):
                bias[labels] = each.bias
            yield
        return off, bias

    def _by_agent(self, agents: Iterable[AgentFigures]) -> Stepwise[tuple[Labelled, Labelled, Labelled]]:
        """Slots, requests in flight and round trips. Agents beyond those with labels of their own are added
        up, of their round trips the longest."""
        slots, in_flight = Tally[tuple[str, ...]](), Tally[tuple[str, ...]]()
        round_trips_s: dict[tuple[str, ...], float] = {}
        for agent in agents:
            label = (self._agent_label(agent.name),)
            slots[label] += agent.slots
            in_flight[label] += agent.in_flight
            if agent.round_trip_s is not None:
                round_trips_s[label] = max(agent.round_trip_s, round_trips_s.get(label, 0.0))
            yield
        return slots, in_flight, round_trips_s

    def _by_model_and_state(self, values: Mapping[tuple[str, str], int]) -> Labelled:
        labelled = Tally[tuple[str, ...]]()
        for (model, state), count in values.items():
            labelled[self._label(model), state] += count
        return labelled

    def _by_model(self, values: Mapping[str, int]) -> Labelled:
        labelled = Tally[tuple[str, ...]]()
        for model, value in values.items():
            labelled[(self._label(model),)] += value
        return labelled


def families(seen: Seen) -> Iterator[Metric]:
    """The families of all that was seen. In any thread."""
    gauges: tuple[tuple[str, str, list[str], Labelled], ...] = (
        ("agents_connected", "Agents by state.", ["state"], seen.agents),
        ("agent_slots_granted", "Requests that an agent takes at once.", ["agent"], seen.agent_slots),
        ("agent_requests_in_flight", "Slots of an agent in use.", ["agent"], seen.agent_in_flight),
        ("agent_round_trip_seconds", "Round trip of an agent's tunnel.", ["agent"], seen.round_trips_s),
        ("deployments", "Deployments by what agents say of them.", ["model", "state"], seen.deployments),
        ("circuits", "Deployments by what is seen of their health.", ["model", "state"], seen.circuits),
        ("slots_granted", "Requests that agents take at once.", ["model"], seen.slots),
        ("requests_in_flight", "Slots in use.", ["model"], seen.in_flight),
        ("queue_requests", "Requests waiting for a slot.", ["model"], seen.waiting),
        (
            "version_skew",
            "Versions more than one in which a model is served and which no alias tells apart.",
            ["model"],
            seen.skew,
        ),
        ("streams_open", "Streams open in all sessions.", [], {(): seen.streams}),
        (
            "unread_bytes",
            "Bytes of answers kept in memory for clients that have not read them.",
            [],
            {(): seen.unread.memory_bytes},
        ),
        ("unread_disk_bytes", "Bytes of a file that such answers take.", [], {(): seen.unread.disk_bytes}),
        ("answers_held_up", "Answers whose engines wait for their readers.", [], {(): seen.unread.held_up}),
    )
    for name, text, labels, values in gauges:
        yield _gauge(f"trunkline_{name}", text, labels, values)
    yield from _of_tunnels(seen.tunnels)
    yield from _of_predictions(seen.prediction_error, seen.prediction_bias)


def _of_tunnels(tunnels: TunnelFigures) -> Iterator[Metric]:
    yield _counter(
        "trunkline_tunnel_bytes",
        "Bytes through all tunnels.",
        {"received": tunnels.bytes_received, "sent": tunnels.bytes_sent},
    )
    yield _counter(
        "trunkline_tunnel_messages",
        "WebSocket messages through all tunnels.",
        {"received": tunnels.messages_received, "sent": tunnels.messages_sent},
    )


def _of_predictions(off: Labelled, bias: Labelled) -> Iterator[Metric]:
    names = ["model", "device", "of"]
    yield _gauge(
        "trunkline_prediction_error",
        "Factor by which the latest predictions of the scheduler were off, up or down, by quantile.",
        [*names, "quantile"],
        off,
    )
    yield _gauge(
        "trunkline_prediction_bias",
        "Mean of ln(actual / predicted) over the latest: 0.1 is 10 % slower than predicted.",
        names,
        bias,
    )


def _nothing(found: T) -> Stepwise[T]:
    """Finds that in no steps."""
    yield from ()
    return found


def _gauge(name: str, text: str, labels: list[str], values: Labelled) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


def _counter(name: str, text: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["direction"])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
