"""Gauges that are read from their owners at each scrape, so that they cost nothing between."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


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
    """A class of :mod:`gateway.scheduling.devices`, or ``other``."""
    of: str
    """``first_token`` or ``total``."""
    bias: float
    """Mean of ln(actual / predicted)."""
    off: Mapping[str, float]
    """By quantile, the factor (1 or more) that this share of predictions was off by at most."""


class Sources(Collector):
    """Gauges that are read from their owners at each scrape, so that they cost nothing between."""

    def __init__(self, label: Callable[[str], str], agent_label: Callable[[str], str]) -> None:
        self._label = label
        self._agent_label = agent_label
        self.fleet: Callable[[], FleetFigures] = FleetFigures
        self.depths: Callable[[], Mapping[str, int]] = dict
        self.health: Callable[[], Mapping[tuple[str, str], int]] = dict
        self.tunnels: Callable[[], TunnelFigures] = TunnelFigures
        self.predictions: Callable[[], Iterable[PredictionFigures]] = tuple
        self.skew: Callable[[], Mapping[str, int]] = dict
        self.unread_bytes: Callable[[], int] = int

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """See prometheus_client's Collector."""
        fleet = self.fleet()
        yield _gauge("trunkline_agents_connected", "Agents by state.", ["state"], _keyed(fleet.agents))
        yield from self._by_agent(fleet.each_agent)
        yield self._by_model_and_state(
            "trunkline_deployments", "Deployments by what agents say of them.", fleet.deployments
        )
        yield self._by_model_and_state(
            "trunkline_circuits", "Deployments by what is seen of their health.", self.health()
        )
        yield self._by_model("trunkline_slots_granted", "Requests that agents take at once.", fleet.slots)
        yield self._by_model("trunkline_requests_in_flight", "Slots in use.", fleet.in_flight)
        yield self._by_model("trunkline_queue_requests", "Requests waiting for a slot.", self.depths())
        yield self._by_model(
            "trunkline_version_skew",
            "Versions more than one in which a model is served and which no alias tells apart.",
            self.skew(),
        )
        yield _gauge("trunkline_streams_open", "Streams open in all sessions.", [], {(): fleet.streams})
        yield _gauge(
            "trunkline_unread_bytes",
            "Bytes of answers kept for clients that have not read them.",
            [],
            {(): self.unread_bytes()},
        )
        tunnels = self.tunnels()
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

        yield from self._predictions()

    def _predictions(self) -> Iterator[GaugeMetricFamily]:
        """Of pairs that share their labels the one that is off the most."""
        off: dict[tuple[str, ...], float] = {}
        bias: dict[tuple[str, ...], float] = {}
        for each in self.predictions():
            labels = self._label(each.model), each.device, each.of
            for quantile, factor in each.off.items():
                off[*labels, quantile] = max(factor, off.get((*labels, quantile), 1.0))
            if abs(each.bias) >= abs(bias.get(labels, 0.0)):
                bias[labels] = each.bias
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

    def _by_agent(self, agents: Iterable[AgentFigures]) -> Iterator[GaugeMetricFamily]:
        """Agents beyond those with labels of their own are added up, of their round trips the longest."""
        slots, in_flight = Tally[tuple[str, ...]](), Tally[tuple[str, ...]]()
        round_trips: dict[tuple[str, ...], float] = {}
        for agent in agents:
            label = (self._agent_label(agent.name),)
            slots[label] += agent.slots
            in_flight[label] += agent.in_flight
            if agent.round_trip_s is not None:
                round_trips[label] = max(agent.round_trip_s, round_trips.get(label, 0.0))
        names = ["agent"]
        yield _gauge("trunkline_agent_slots_granted", "Requests that an agent takes at once.", names, slots)
        yield _gauge("trunkline_agent_requests_in_flight", "Slots of an agent in use.", names, in_flight)
        yield _gauge(
            "trunkline_agent_round_trip_seconds", "Round trip of an agent's tunnel.", names, round_trips
        )

    def _by_model_and_state(
        self, name: str, text: str, values: Mapping[tuple[str, str], int]
    ) -> GaugeMetricFamily:
        labelled = Tally[tuple[str, ...]]()
        for (model, state), count in values.items():
            labelled[self._label(model), state] += count
        return _gauge(name, text, ["model", "state"], labelled)

    def _by_model(self, name: str, text: str, values: Mapping[str, int]) -> GaugeMetricFamily:
        labelled = Tally[tuple[str, ...]]()
        for model, value in values.items():
            labelled[(self._label(model),)] += value
        return _gauge(name, text, ["model"], labelled)


def _keyed(values: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(key,): value for key, value in values.items()}


def _gauge(
    name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


def _counter(name: str, text: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["direction"])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
