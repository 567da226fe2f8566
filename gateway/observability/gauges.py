"""Gauges that are read from their owners at each scrape, so that they cost nothing between."""

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.domain.slices import Stepwise, run_at_once
from gateway.observability.fleet_figures import AgentFigures, FleetFigures, coefficient_of_variation
from shared.protocol import limits

T = TypeVar("T")


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
    """By share, such as 0.9: the factor (1 or more) by which this share of predictions was off at most."""


@dataclass(frozen=True, slots=True)
class SpentFigures:
    """What requests for one model took since the start."""

    gpu_s: float = 0.0
    cost: float = 0.0
    """In the unit of the prices that were set."""


@dataclass(frozen=True, slots=True)
class BudgetFigures:
    """How far a tenant's budget of one period is used up."""

    tenant: str
    period: str
    """``day`` or ``month``."""
    used: float
    """Of the budgets of this period the one that is used the most, as a share; above 1 it is overdrawn."""


@dataclass(frozen=True, slots=True)
class UnreadFigures:
    """What engines have answered and clients have not read."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    held_up: int = 0
    """Answers whose engines wait for their readers."""


class CertificateDates(Protocol):
    """Of :class:`shared.identity.AgentCertificate`. Unix times."""

    @property
    def name(self) -> str: ...
    @property
    def not_before_s(self) -> int: ...
    @property
    def not_after_s(self) -> int: ...


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

    def __init__(
        self, models: Mapping[str, str], agents: Mapping[str, str], tenants: Mapping[str, str]
    ) -> None:
        """``models``, ``agents`` and ``tenants`` have the labels under which each counts."""
        self._models = models
        self._agents = agents
        self._tenants = tenants
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
        self.answer_stalls: Callable[[], int] = lambda: 0
        """How often an engine began to wait because its client did not read."""
        self.spent: Callable[[], Mapping[str, SpentFigures]] = dict
        """By model."""
        self.budgets: Callable[[], Iterable[BudgetFigures]] = tuple
        self.agent_certificates: Callable[[], Iterable[CertificateDates]] = tuple
        """Of the agents that are connected."""
        self.certificate_ends_s: Callable[[], float | None] = lambda: None
        """Unix time of the end of the certificate that clients see; None: TLS is not ended here."""

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's Collector. For use on the event loop, which it holds."""
        return families(run_at_once(self.read()))

    def read(self) -> Stepwise[list[Family]]:
        """Read every owner, on the event loop."""
        fleet = yield from self.fleet()
        by_state = {"ready": 0, **fleet.agents}
        agents: Labelled = {(state,): count for state, count in by_state.items()}
        slots, in_flight, round_trips_s = yield from self._by_agent(fleet.each_agent)
        circuits = yield from self.health()
        skew = yield from self.version_skew()
        predictions = yield from self._predictions()
        tunnels = yield from self.tunnels()
        certificates = yield from self._certificates()
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
            *certificates,
            *self._of_engines(fleet),
            *self._of_gpus(fleet),
            *_of_sessions(fleet, self.answer_stalls()),
            *self._of_spending(),
        ]

    def _of_engines(self, fleet: FleetFigures) -> list[Family]:
        by_model = self._by_model
        kv_use: dict[tuple[str, ...], float] = {}
        for model, share in fleet.kv_use.items():
            label = (self._models[model],)
            kv_use[label] = max(share, kv_use.get(label, 0.0))
        uneven: dict[tuple[str, ...], float] = {
            (self._models[model],): coefficient_of_variation(shares)
            for model, shares in fleet.utilisations.items()
            if len(shares) > 1 and self._models[model] == model
        }
        varies = "Standard deviation of the shares of slots that deployments use, as a share of their mean."
        context = "Share of its memory for context that the fullest engine of a model uses."
        runs = "Requests that engines say they work on at once."
        waits = "Requests that engines say wait inside them."
        return [
            Family("engine_requests_running", runs, ["model"], by_model(fleet.engine_running)),
            Family("engine_requests_waiting", waits, ["model"], by_model(fleet.engine_waiting)),
            Family("engine_kv_cache_usage_ratio", context, ["model"], kv_use),
            Family("slot_utilisation_variation_ratio", varies, ["model"], uneven),
        ]

    def _of_gpus(self, fleet: FleetFigures) -> list[Family]:
        """Of the agents with labels of their own: nothing is said by figures of many hosts in one."""
        series: dict[str, dict[tuple[str, ...], float]] = {name: {} for name, _ in _GPU_FAMILIES}
        for agent, gpu in fleet.gpus:
            if self._agents[agent] != agent:
                continue
            read = (
                gpu.utilisation,
                gpu.memory_used_bytes,
                gpu.memory_total_bytes,
                gpu.temperature_c,
                gpu.power_w,
            )
            for (name, _), value in zip(_GPU_FAMILIES, read, strict=True):
                if value is not None:
                    series[name][agent, str(gpu.index)] = value
        return [Family(name, text, ["agent", "gpu"], series[name]) for name, text in _GPU_FAMILIES]

    def _of_spending(self) -> list[Family]:
        gpu_s, cost = Tally[tuple[str, ...]](), Tally[tuple[str, ...]]()
        for model, spent in self.spent().items():
            gpu_s[(self._models[model],)] += spent.gpu_s  # type: ignore[assignment]
            cost[(self._models[model],)] += spent.cost  # type: ignore[assignment]
        budgets: dict[tuple[str, ...], float] = {}
        for each in self.budgets():
            label = self._tenants[each.tenant], each.period
            budgets[label] = max(each.used, budgets.get(label, 0.0))
        ends_s = self.certificate_ends_s()
        ends: Labelled = {} if ends_s is None else {(): ends_s}
        took = "GPU-seconds that requests took."
        costs = "What requests cost, in the unit of the prices that are set."
        used = (
            "How far the budgets of a tenant are used up, of those of a period the one that is used the most."
        )
        until = "When the certificate of the gateway's TLS ends, as Unix time."
        return [
            Family("gpu_seconds", took, ["model"], gpu_s, counter=True),
            Family("cost", costs, ["model"], cost, counter=True),
            Family("budget_used_ratio", used, ["tenant", "period"], budgets),
            Family("tls_certificate_end_timestamp_seconds", until, [], ends),
        ]

    def _predictions(self) -> Stepwise[list[Family]]:
        """Error and bias; of pairs that share their labels the one that is off the most."""
        off: dict[tuple[str, ...], float] = {}
        bias: dict[tuple[str, ...], float] = {}
        for each in self.predictions():
            labels = self._models[each.model], each.device, each.of
            for share, factor in each.off.items():
                off[*labels, share] = max(factor, off.get((*labels, share), 1.0))
            if abs(each.bias) >= abs(bias.get(labels, 0.0)):
                bias[labels] = each.bias
            yield
        names = ["model", "device", "of"]
        wrong_by = (
            "Factor by which this share of the scheduler's latest predictions was off at most, up or down."
        )
        biased = "Mean of ln(actual / predicted) over the latest: 0.1 is 10 % slower than predicted."
        return [
            Family("prediction_error", wrong_by, [*names, "share"], off),
            Family("prediction_bias", biased, names, bias),
        ]

    def _certificates(self) -> Stepwise[list[Family]]:
        """Of agents that share a label the one whose certificate ends first."""
        begin: dict[tuple[str, ...], float] = {}
        end: dict[tuple[str, ...], float] = {}
        for each in self.agent_certificates():
            label = (self._agents[each.name],)
            if each.not_after_s < end.get(label, math.inf):
                begin[label], end[label] = each.not_before_s, each.not_after_s
            yield
        begins = "When the certificate of a connected agent began, as Unix time."
        ends = "When the certificate of a connected agent ends, as Unix time."
        return [
            Family("agent_certificate_start_timestamp_seconds", begins, ["agent"], begin),
            Family("agent_certificate_end_timestamp_seconds", ends, ["agent"], end),
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


_GPU_FAMILIES = (
    ("gpu_utilisation_ratio", "Share of the last second or so in which a GPU computed."),
    ("gpu_memory_used_bytes", "Memory of a GPU in use."),
    ("gpu_memory_bytes", "Memory of a GPU."),
    ("gpu_temperature_celsius", "Temperature of a GPU."),
    ("gpu_power_watts", "What a GPU draws."),
)
"""The families of GPUs, in the order in which their values are read."""


def _of_sessions(fleet: FleetFigures, answer_stalls: int) -> list[Family]:
    totals = fleet.totals
    fullest = totals.most_retained_bytes / limits.RETAINED_BYTES
    again = "Messages that were sent again on a new tunnel after the old one was lost."
    kept = "Bytes of messages kept until agents acknowledge them."
    stalls = "Bodies that waited for credit: of requests at the gateway, of answers at their engines."
    stalled: Labelled = {("request",): totals.credit_stalls, ("answer",): answer_stalls}
    return [
        single("messages_replayed", again, totals.replayed, counter=True),
        single("replay_bytes", kept, totals.retained_bytes),
        single("replay_fullest_ratio", "Share of its room for them that the fullest session uses.", fullest),
        Family("credit_stalls", stalls, ["body"], stalled, counter=True),
    ]


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
