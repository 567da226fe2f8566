"""What the gateway counts, as Prometheus reads it (SURFACE, ``/metrics``).

Labels are bounded: a model's name becomes a label only once an authenticated agent serves it, and only for
the first ``MODEL_LABELS`` of them; all others count under ``other``. Nothing a client writes reaches a label.
Nothing here runs per token: histograms are observed once a request, gauges are read when somebody looks.
States are spelled in lower case under the label ``state``; the label ``status`` is an HTTP status class.
"""

import asyncio
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from gateway.domain.slices import Stepwise, run_in_slices
from gateway.observability.counts import Counts
from gateway.observability.gauges import (
    FleetFigures,
    GaugeSources,
    PredictionFigures,
    Seen,
    TunnelFigures,
    UnreadFigures,
    families,
)
from shared.process.startup import program_version
from shared.protocol import routes
from shared.protocol.messages import Usage

# The time at which each series began would be one more series for every one.
disable_created_metrics()  # type: ignore[no-untyped-call]

MODEL_LABELS = 200
"""Models with labels of their own: some 90 time series each."""

AGENT_LABELS = 500
"""Agents with labels of their own: ten time series each. All others count under ``other``."""

OTHER = "other"

ROUTES = frozenset((*routes.ROUTES, "models"))


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
        self._sources = GaugeSources(self._label, self._agent_label)
        self.registry.register(self._sources)
        ProcessCollector(registry=self.registry)
        Info("trunkline_build", "The program that is running.", registry=self.registry).info(
            {"version": program_version(), "python": platform.python_version()}
        )
        self._counts = Counts(self.registry)

    async def render(self) -> bytes:
        """The exposition text for ``GET /metrics``. Gauges are read from their owners now, on the event loop,
        so many agents or deployments a turn. What is counted here is read in a thread, which makes the text,
        too: with many models it is megabytes."""
        seen = await run_in_slices(self._sources.look())
        asked: list[Metric] = []
        for collector in self.registry.asking:
            for family in () if collector is self._sources else collector.collect():
                asked.append(family)
                await asyncio.sleep(0)
        return await asyncio.to_thread(self._text, seen, asked)

    def _text(self, seen: Seen, asked: Sequence[Metric]) -> bytes:
        return generate_latest(_Reading((*families(seen), *asked), self.registry.counting))

    # --- Once a request ---

    def request_finished(self, route: str, model: str, status: int, duration_s: float) -> None:
        """Count one client request, of whatever outcome.

        ``route`` is a deployment's route or ``models``; unknown routes and models count under ``other``.
        """
        route = route if route in ROUTES else OTHER
        model = self._label(model)
        self._counts.requests(route, model, f"{status // 100}xx").inc()
        self._counts.request_s(route, model).observe(duration_s)

    def streamed(self, model: str, first_token_s: float, lasted_s: float, tokens: int | None) -> None:
        """A streamed answer is over. Its first bytes went out ``first_token_s`` after its request's arrival,
        its last ones ``lasted_s`` later; ``tokens`` is None where its engine counted none."""
        label = self._label(model)
        self._counts.first_token_s(label).observe(first_token_s)
        if tokens is not None and tokens > 1:
            self._counts.token_gap_s(label).observe(lasted_s / (tokens - 1))

    def answered_by(self, agent: str, status: int) -> None:
        """An answer of ``agent`` went out to a client."""
        self._counts.agent_requests(self._agent_label(agent), f"{status // 100}xx").inc()

    def queued(self, model: str, tier: str, wait_s: float) -> None:
        """A request of ``tier`` got its slot after this long."""
        self._counts.queue_s(self._label(model), tier).observe(wait_s)

    def first_byte(self, model: str, after_s: float) -> None:
        """A response's head came this long after its request."""
        self._counts.first_byte_s(self._label(model)).observe(after_s)

    def refused(self, model: str, reason: str) -> None:
        """A request ended without a slot; ``reason`` is its error's code."""
        self._counts.refused(self._label(model), reason).inc()

    def retried(self, model: str, reason: str) -> None:
        """A request is given to a deployment again; ``reason`` names the trouble."""
        self._counts.retries(self._label(model), reason).inc()

    def retry_refused(self, model: str) -> None:
        """A request failed that might have been served elsewhere, had the retry budget not been used up."""
        self._counts.unretried(self._label(model)).inc()

    def failed_over(self, model: str, reason: str) -> None:
        """A request whose answer has not begun was taken from a deployment; ``reason`` names the trouble."""
        self._counts.failovers(self._label(model), reason).inc()

    def continued(self, model: str, outcome: str) -> None:
        """An answer was to go on elsewhere: ``wanted``, ``begun``, ``done`` or ``impossible``."""
        self._counts.continuations(self._label(model), outcome).inc()

    def hedged(self, model: str) -> None:
        """A second copy of a request was started."""
        self._counts.hedges(self._label(model), "started").inc()

    def hedge_won(self, model: str) -> None:
        """A second copy answered first."""
        self._counts.hedges(self._label(model), "won").inc()

    def preempted(self, model: str, tier: str) -> None:
        """A request of ``tier`` gave its slot back for a realtime one."""
        self._counts.preemptions(self._label(model), tier).inc()

    def loaded(self, model: str, seconds: float) -> None:
        """An agent has loaded a model, in so long."""
        self._counts.loads(self._label(model), "loaded").inc()
        self._counts.load_s(self._label(model)).observe(seconds)

    def load_failed(self, model: str) -> None:
        """An agent could not load a model."""
        self._counts.loads(self._label(model), "failed").inc()

    def unloaded(self, model: str) -> None:
        """An agent has unloaded a model, told or by itself."""
        self._counts.unloads(self._label(model)).inc()

    def held(self, model: str) -> None:
        """A request came that has to wait until its model is loaded."""
        self._counts.held(self._label(model)).inc()

    def circuit_opened(self, model: str, reason: str) -> None:
        """A deployment's circuit opened; ``reason`` names the trouble that did it."""
        self._counts.opened(self._label(model), reason).inc()

    def ejected(self, model: str) -> None:
        """A deployment was set aside because it is slow beside its peers."""
        self._counts.ejected(self._label(model)).inc()

    def broken(self, model: str, reason: str) -> None:
        """A response broke after its head; ``reason`` is the wire code's name."""
        self._counts.broken(self._label(model), reason).inc()

    def used(self, model: str, usage: Usage) -> None:
        """What the trailers of a finished response say."""
        label = self._label(model)
        self._counts.tokens(label, "prompt").inc(usage.prompt_tokens)
        self._counts.tokens(label, "completion").inc(usage.completion_tokens)
        self._counts.tokens(label, "cached").inc(usage.cached_tokens)

    # --- Once an agent ---

    def claim_refused(self, reason: str) -> None:
        """An agent claimed a model it may not serve, for the first time in its session."""
        self._counts.claims(reason).inc()

    def tunnel(self, outcome: str) -> None:
        """A handshake ended: ``accepted``, or the name of the code it was rejected with."""
        self._counts.tunnels(outcome).inc()

    # --- When the machine fails ---

    def machine_trouble(self, trouble: str, present: bool) -> None:
        """``trouble`` (descriptors, memory, …) begins, or is over."""
        self._counts.trouble(trouble).set(present)

    def loop_blocked(self, seconds: float) -> None:
        """The event loop did not turn for this long."""
        self._counts.blocked_s().inc(seconds)

    # --- Where gauges are read ---

    def watch_fleet(self, figures: Callable[[], Stepwise[FleetFigures]]) -> None:
        """Read the fleet's gauges from here."""
        self._sources.fleet = figures

    def watch_queue(self, depths: Callable[[], Mapping[str, int]]) -> None:
        """Read requests waiting, by model, from here."""
        self._sources.depths = depths

    def watch_health(self, figures: Callable[[], Stepwise[Mapping[tuple[str, str], int]]]) -> None:
        """Read the deployments by model and state of health from here."""
        self._sources.health = figures

    def watch_tunnels(self, figures: Callable[[], Stepwise[TunnelFigures]]) -> None:
        """Read the tunnels' totals from here."""
        self._sources.tunnels = figures

    def watch_predictions(self, figures: Callable[[], Iterable[PredictionFigures]]) -> None:
        """Read how far predictions were off from here."""
        self._sources.predictions = figures

    def watch_unread(self, figures: Callable[[], UnreadFigures]) -> None:
        """Read what is kept of answers that clients have not read from here."""
        self._sources.unread = figures

    def watch_skew(self, figures: Callable[[], Stepwise[Mapping[str, int]]]) -> None:
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
