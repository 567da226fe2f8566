"""What the gateway counts, as Prometheus reads it (SURFACE, ``/metrics``).

Labels are bounded: a model's name becomes a label only once an authenticated agent serves it, and only for
the first ``MODEL_LABELS`` of them; all others count under ``other``. Nothing a client writes reaches a label.
Nothing here runs per token: histograms are observed once a request, gauges are read when somebody looks.
States are spelled in lower case under the label ``state``; the label ``status`` is an HTTP status class.
"""

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from gateway.gauges import FleetFigures, PredictionFigures, Sources, TunnelFigures
from shared import routes
from shared.messages import Usage
from shared.version import program_version

# The time at which each series began would be one more series for every one.
disable_created_metrics()  # type: ignore[no-untyped-call]

MODEL_LABELS = 200
"""Models with labels of their own: some 90 time series each."""

AGENT_LABELS = 500
"""Agents with labels of their own: ten time series each. All others count under ``other``."""

OTHER = "other"

ROUTES = frozenset((*routes.ROUTES, "models"))

_TOKEN_GAPS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class _Registry(CollectorRegistry):
    """Knows which of its collectors count, and may be read in any thread, and which ask others."""

    def __init__(self) -> None:
        super().__init__()
        self.counting: list[Collector] = []
        self.asking: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        counts = isinstance(collector, Counter | Gauge | Histogram | Info)
        (self.counting if counts else self.asking).append(collector)


class _Reading(CollectorRegistry):
    """What is read at one scrape: families that were collected already, then collectors."""

    def __init__(self, families: Sequence[Metric], collectors: Sequence[Collector]) -> None:
        super().__init__()
        self._families = families
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        return chain(self._families, *(collector.collect() for collector in self._collectors))


class Metrics:
    """All metrics of one gateway, in a registry of their own."""

    CONTENT_TYPE = CONTENT_TYPE_LATEST
    """Of what :meth:`render` returns."""

    def __init__(self) -> None:
        self.registry = _Registry()
        self._models: set[str] = set()
        self._agents: set[str] = set()
        self._sources = Sources(self._label, self._agent_label)
        self.registry.register(self._sources)
        ProcessCollector(registry=self.registry)
        Info("trunkline_build", "The program that is running.", registry=self.registry).info(
            {"version": program_version(), "python": platform.python_version()}
        )

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def histogram(
            name: str, text: str, *labels: str, buckets: Sequence[float] = _LATENCIES_S
        ) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

        # Those of every request: their series are looked up in one step. Bounded, as labels are.
        self._requests = cache(
            counter(
                "trunkline_requests", "Client requests by status class.", "route", "model", "status"
            ).labels
        )
        self._duration = cache(
            histogram(
                "trunkline_request_seconds", "From a request's arrival to its last byte.", "route", "model"
            ).labels
        )
        self._queue = cache(
            histogram("trunkline_queue_seconds", "Time waited for a slot.", "model", "tier").labels
        )
        self._first_byte = cache(
            histogram(
                "trunkline_time_to_first_byte_seconds",
                "From a request's arrival to its response's head.",
                "model",
            ).labels
        )
        self._first_token = cache(
            histogram(
                "trunkline_time_to_first_token_seconds",
                "From the arrival of a request for a stream to the first bytes of its answer's body.",
                "model",
            ).labels
        )
        self._token_gap = cache(
            histogram(
                "trunkline_time_per_output_token_seconds",
                "Mean time between two tokens of a streamed answer, as it went out to its client.",
                "model",
                buckets=_TOKEN_GAPS_S,
            ).labels
        )
        self._agent_requests = cache(
            counter(
                "trunkline_agent_requests",
                "Requests whose answer came from this agent, by status class.",
                "agent",
                "status",
            ).labels
        )
        self._tokens = cache(
            counter("trunkline_tokens", "Tokens as engines counted them.", "model", "kind").labels
        )
        self._refused = counter(
            "trunkline_requests_refused", "Requests that were given no slot.", "model", "reason"
        )
        self._retries = counter(
            "trunkline_retries", "Requests given to a deployment again, by trouble.", "model", "reason"
        )
        self._unretried = counter(
            "trunkline_retry_budget_exhausted", "Retries that the retry budget did not allow.", "model"
        )
        self._failovers = counter(
            "trunkline_failovers",
            "Requests without an answer yet that were taken from a deployment to be given to another.",
            "model",
            "reason",
        )
        self._continuations = counter(
            "trunkline_continuations",
            "Answers begun by one deployment and gone on with by another, by how that went.",
            "model",
            "outcome",
        )
        self._hedges = counter(
            "trunkline_hedges", "Second copies of late requests: started, and won.", "model", "outcome"
        )
        self._preemptions = counter(
            "trunkline_preemptions", "Requests that gave their slot back for a realtime one.", "model", "tier"
        )
        self._loads = counter(
            "trunkline_model_loads", "Models that agents loaded, or failed to.", "model", "outcome"
        )
        self._load_s = histogram("trunkline_model_load_seconds", "How long loading a model took.", "model")
        self._unloads = counter("trunkline_model_unloads", "Models that agents unloaded.", "model")
        self._held = counter(
            "trunkline_requests_held", "Requests that had to wait until their model was loaded.", "model"
        )
        self._opened = counter(
            "trunkline_circuits_opened", "Circuits of deployments that opened.", "model", "reason"
        )
        self._ejected = counter(
            "trunkline_deployments_ejected", "Deployments set aside for being slow.", "model"
        )
        self._broken = counter(
            "trunkline_streams_broken", "Responses that broke after their head.", "model", "reason"
        )
        self._claims = counter(
            "trunkline_agent_claims_refused", "Models and labels agents claimed and may not have.", "reason"
        )
        self._tunnels = counter("trunkline_tunnels", "Tunnels by how their handshake went.", "outcome")
        self._blocked_s = counter(
            "trunkline_loop_blocked_seconds", "Time for which something blocked the event loop."
        )
        self._trouble = Gauge(
            "trunkline_machine_trouble",
            "What of the machine fails: 1 while it does.",
            ["trouble"],
            registry=self.registry,
        )

    async def render(self) -> bytes:
        """The exposition text for ``GET /metrics``. Gauges are read from their owners now, on the event loop,
        one family of series a turn. What is counted here is read in a thread, which makes the text, too: with
        many models it is megabytes."""
        families: list[Metric] = []
        for collector in self.registry.asking:
            for family in collector.collect():
                families.append(family)
                await asyncio.sleep(0)
        return await asyncio.to_thread(generate_latest, _Reading(families, self.registry.counting))

    # --- Once a request ---

    def request_finished(self, route: str, model: str, status: int, duration_s: float) -> None:
        """Count one client request, of whatever outcome.

        ``route`` is a deployment's route or ``models``; unknown routes and models count under ``other``.
        """
        route = route if route in ROUTES else OTHER
        model = self._label(model)
        self._requests(route, model, f"{status // 100}xx").inc()
        self._duration(route, model).observe(duration_s)

    def streamed(self, model: str, first_token_s: float, lasted_s: float, tokens: int | None) -> None:
        """A streamed answer is over. Its first bytes went out ``first_token_s`` after its request's arrival,
        its last ones ``lasted_s`` later; ``tokens`` is None where its engine counted none."""
        label = self._label(model)
        self._first_token(label).observe(first_token_s)
        if tokens is not None and tokens > 1:
            self._token_gap(label).observe(lasted_s / (tokens - 1))

    def answered_by(self, agent: str, status: int) -> None:
        """An answer of ``agent`` went out to a client."""
        self._agent_requests(self._agent_label(agent), f"{status // 100}xx").inc()

    def queued(self, model: str, tier: str, wait_s: float) -> None:
        """A request of ``tier`` got its slot after this long."""
        self._queue(self._label(model), tier).observe(wait_s)

    def first_byte(self, model: str, after_s: float) -> None:
        """A response's head came this long after its request."""
        self._first_byte(self._label(model)).observe(after_s)

    def refused(self, model: str, reason: str) -> None:
        """A request ended without a slot; ``reason`` is its error's code."""
        self._refused.labels(self._label(model), reason).inc()

    def retried(self, model: str, reason: str) -> None:
        """A request is given to a deployment again; ``reason`` names the trouble."""
        self._retries.labels(self._label(model), reason).inc()

    def retry_refused(self, model: str) -> None:
        """A request failed that might have been served elsewhere, had the retry budget not been used up."""
        self._unretried.labels(self._label(model)).inc()

    def failed_over(self, model: str, reason: str) -> None:
        """A request whose answer has not begun was taken from a deployment; ``reason`` names the trouble."""
        self._failovers.labels(self._label(model), reason).inc()

    def continued(self, model: str, outcome: str) -> None:
        """An answer was to go on elsewhere: ``wanted``, ``begun``, ``done`` or ``impossible``."""
        self._continuations.labels(self._label(model), outcome).inc()

    def hedged(self, model: str) -> None:
        """A second copy of a request was started."""
        self._hedges.labels(self._label(model), "started").inc()

    def hedge_won(self, model: str) -> None:
        """A second copy answered first."""
        self._hedges.labels(self._label(model), "won").inc()

    def preempted(self, model: str, tier: str) -> None:
        """A request of ``tier`` gave its slot back for a realtime one."""
        self._preemptions.labels(self._label(model), tier).inc()

    def loaded(self, model: str, seconds: float) -> None:
        """An agent has loaded a model, in so long."""
        self._loads.labels(self._label(model), "loaded").inc()
        self._load_s.labels(self._label(model)).observe(seconds)

    def load_failed(self, model: str) -> None:
        """An agent could not load a model."""
        self._loads.labels(self._label(model), "failed").inc()

    def unloaded(self, model: str) -> None:
        """An agent has unloaded a model, told or by itself."""
        self._unloads.labels(self._label(model)).inc()

    def held(self, model: str) -> None:
        """A request came that has to wait until its model is loaded."""
        self._held.labels(self._label(model)).inc()

    def circuit_opened(self, model: str, reason: str) -> None:
        """A deployment's circuit opened; ``reason`` names the trouble that did it."""
        self._opened.labels(self._label(model), reason).inc()

    def ejected(self, model: str) -> None:
        """A deployment was set aside because it is slow beside its peers."""
        self._ejected.labels(self._label(model)).inc()

    def broken(self, model: str, reason: str) -> None:
        """A response broke after its head; ``reason`` is the wire code's name."""
        self._broken.labels(self._label(model), reason).inc()

    def used(self, model: str, usage: Usage) -> None:
        """What the trailers of a finished response say."""
        label = self._label(model)
        self._tokens(label, "prompt").inc(usage.prompt_tokens)
        self._tokens(label, "completion").inc(usage.completion_tokens)
        self._tokens(label, "cached").inc(usage.cached_tokens)

    # --- Once an agent ---

    def claim_refused(self, reason: str) -> None:
        """An agent claimed a model it may not serve, for the first time in its session."""
        self._claims.labels(reason).inc()

    def tunnel(self, outcome: str) -> None:
        """A handshake ended: ``accepted``, or the name of the code it was rejected with."""
        self._tunnels.labels(outcome).inc()

    # --- When the machine fails ---

    def machine_trouble(self, trouble: str, present: bool) -> None:
        """``trouble`` (descriptors, memory, …) begins, or is over."""
        self._trouble.labels(trouble).set(present)

    def loop_blocked(self, seconds: float) -> None:
        """The event loop did not turn for this long."""
        self._blocked_s.inc(seconds)

    # --- Where gauges are read ---

    def watch_fleet(self, figures: Callable[[], FleetFigures]) -> None:
        """Read the fleet's gauges from here."""
        self._sources.fleet = figures

    def watch_queue(self, depths: Callable[[], Mapping[str, int]]) -> None:
        """Read requests waiting, by model, from here."""
        self._sources.depths = depths

    def watch_health(self, figures: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """Read the deployments by model and state of health from here."""
        self._sources.health = figures

    def watch_tunnels(self, figures: Callable[[], TunnelFigures]) -> None:
        """Read the tunnels' totals from here."""
        self._sources.tunnels = figures

    def watch_predictions(self, figures: Callable[[], Iterable[PredictionFigures]]) -> None:
        """Read how far predictions were off from here."""
        self._sources.predictions = figures

    def watch_unread(self, used_bytes: Callable[[], int]) -> None:
        """``used_bytes`` is asked for at each scrape."""
        self._sources.unread_bytes = used_bytes

    def watch_skew(self, figures: Callable[[], Mapping[str, int]]) -> None:
        """Read by how many a model's versions are more than one, where nothing tells them apart, from
        here."""
        self._sources.skew = figures

    def know_model(self, model: str) -> None:
        """An agent serves ``model`` and may: from now on it has a label, while there is room."""
        if len(self._models) < MODEL_LABELS:
            self._models.add(model)

    def _label(self, model: str) -> str:
        return model if model in self._models else OTHER

    def _agent_label(self, agent: str) -> str:
        """Names of agents come from identities that this gateway gave, so only their number is bounded."""
        if agent in self._agents:
            return agent
        if len(self._agents) >= AGENT_LABELS:
            return OTHER
        self._agents.add(agent)
        return agent
