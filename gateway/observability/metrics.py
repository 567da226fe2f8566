"""What the gateway counts, as Prometheus reads it.

Labels are bounded: a model's name becomes a label only once an authenticated agent serves it, and only for
the first ``MODEL_LABELS`` of them; all others count under ``other``. Nothing a client writes reaches a label.
Nothing here runs per token: histograms are observed once a request, gauges are read when somebody looks.
States are spelled in lower case under the label ``state``; the label ``status`` is an HTTP status class.
"""

import asyncio
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from gateway.domain.slices import run_in_slices
from gateway.observability.gauges import Family, GaugeSources, families
from gateway.observability.metric_table import (
    OTHER,
    BoundedLabels,
    Count,
    Distribution,
    MetricTable,
    OpenLabels,
    RecordedCounter,
    RecordedHistogram,
    counter,
    gauge,
    histogram,
)
from shared.process.startup import program_version
from shared.protocol import routes
from shared.protocol.batch_sizes import BatchSizes
from shared.protocol.limits import BATCH_SIZES
from shared.protocol.messages import Usage

# The time at which each series began would be one more series for every one.
disable_created_metrics()  # type: ignore[no-untyped-call]

MODEL_LABELS = 200
"""Models with labels of their own: some 150 time series each that is used on one route and in one tier, and
60 more for each further pair of these."""

AGENT_LABELS = 500
"""Agents with labels of their own: ten time series each, and five for each of their GPUs. All others count
under ``other``, without their GPUs."""

TENANT_LABELS = 200
"""Tenants with budgets that have labels of their own: two time series each."""

NO_TIER = "none"
"""The tier of requests that were refused before they were classified."""

_TOKEN_GAPS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)

_STATUS_CLASSES = tuple(f"{hundreds}xx" for hundreds in range(10))

ROUTES = frozenset((*routes.ROUTES, "models"))


class _Registry(CollectorRegistry):
    """Tells collectors that may be read in any thread from those that ask objects of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.in_thread: list[Collector] = []
        self.on_loop: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        counts = isinstance(collector, RecordedCounter | RecordedHistogram | Counter | Gauge | Info)
        (self.in_thread if counts else self.on_loop).append(collector)


@dataclass
class _Scrape(Collector):
    """What one scrape reads: families that were collected already, then collectors."""

    families: Sequence[Metric]
    collectors: Sequence[Collector]

    def collect(self) -> Iterator[Metric]:
        return chain(self.families, *(collector.collect() for collector in self.collectors))


class Metrics(MetricTable):
    """All metrics of one gateway, in a registry of their own. Owners of gauges set what is read in
    ``gauges``."""

    CONTENT_TYPE = CONTENT_TYPE_LATEST
    """The content type of what :meth:`render` returns."""

    exemplars = False
    """Histograms name traces, so that there is an exposition that shows them (:meth:`render_exemplars`)."""

    requests = counter(
        "trunkline_requests", "Client requests by status class.", "model", "route", "tier", "status"
    )
    request_s = histogram(
        "trunkline_request_seconds", "From a request's arrival to its last byte.", "model", "route", "tier"
    )
    queued = histogram("trunkline_queue_seconds", "Time waited for a slot.", "model", "tier")
    """Once a request got its slot, with the seconds it waited."""
    first_byte = histogram(
        "trunkline_time_to_first_byte_seconds", "From a request's arrival to its response's head.", "model"
    )
    """Once a response's head came."""
    first_token_s = histogram(
        "trunkline_time_to_first_token_seconds",
        "From the arrival of a request for a stream to the first bytes of its answer's body.",
        "model",
        "tier",
    )
    token_gap_s = histogram(
        "trunkline_time_per_output_token_seconds",
        "Mean time between two tokens of a streamed answer, as it went out to its client.",
        "model",
        buckets=_TOKEN_GAPS_S,
    )
    agent_requests = counter(
        "trunkline_agent_requests",
        "Requests whose answer came from this agent, by status class.",
        "agent",
        "status",
    )
    tokens = counter("trunkline_tokens", "Tokens as engines counted them.", "model", "kind")
    refused = counter("trunkline_requests_refused", "Requests that were given no slot.", "model", "reason")
    """``reason`` is the error's code."""
    retried = counter(
        "trunkline_retries", "Requests given to a deployment again, by trouble.", "model", "reason"
    )
    retry_refused = counter(
        "trunkline_retry_budget_exhausted", "Retries that the retry budget did not allow.", "model"
    )
    failed_over = counter(
        "trunkline_failovers",
        "Requests without an answer yet that were taken from a deployment to be given to another.",
        "model",
        "reason",
    )
    continued = counter(
        "trunkline_continuations",
        "Answers begun by one deployment and gone on with by another, by how that went.",
        "model",
        "outcome",
    )
    """``wanted``, ``begun``, ``done`` or ``impossible``."""
    hedges = counter(
        "trunkline_hedges", "Second copies of late requests: started, and won.", "model", "outcome"
    )
    preempted = counter(
        "trunkline_preemptions", "Requests that gave their slot back for a realtime one.", "model", "tier"
    )
    progress_told = counter(
        "trunkline_progress_reports", "Reports of engines on how far requests have come.", "model"
    )
    progress_delivery_s = histogram(
        "trunkline_progress_delivery_seconds",
        "From the arrival of such a report to its writing to a client that asked for it.",
        "model",
        buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 5),
    )
    loads = counter("trunkline_model_loads", "Models that agents loaded, or failed to.", "model", "outcome")
    load_s = histogram("trunkline_model_load_seconds", "How long loading a model took.", "model")
    batch_size = histogram(
        "trunkline_engine_batch_size",
        "Requests, texts or items that an engine computed at once, as it says.",
        "model",
        buckets=BATCH_SIZES,
    )
    tenant_class_s = histogram(
        "trunkline_tenant_class_request_seconds",
        "From the arrival of a request of a class of tenants to its last byte.",
        "tenant_class",
        "tier",
        "status",
    )
    """Only where the settings name classes."""
    unloaded = counter("trunkline_model_unloads", "Models that agents unloaded.", "model")
    held = counter(
        "trunkline_requests_held", "Requests that had to wait until their model was loaded.", "model"
    )
    circuit_opened = counter(
        "trunkline_circuits_opened", "Circuits of deployments that opened.", "model", "reason"
    )
    ejected = counter("trunkline_deployments_ejected", "Deployments set aside for being slow.", "model")
    broken = counter("trunkline_streams_broken", "Responses that broke after their head.", "model", "reason")
    """``reason`` is the wire code's name."""
    claim_refused = counter(
        "trunkline_agent_claims_refused", "Models and labels agents claimed and may not have.", "reason"
    )
    """Once for each model in a session."""
    tunnel = counter("trunkline_tunnels", "Tunnels by how their handshake went.", "outcome")
    """``accepted``, ``resumed``, or the name of the code that the handshake was rejected with."""
    webhook_attempts = counter(
        "trunkline_webhook_attempts",
        "Attempts to deliver events of webhooks, by what came of them.",
        "outcome",
    )
    """``delivered``, ``retried`` (another attempt follows), ``failed`` (none does), ``gone``."""
    webhook_s = histogram(
        "trunkline_webhook_seconds",
        "From the lookup of a webhook's host to its answer.",
        "outcome",
    )
    """With an outcome as above."""
    loop_blocked = counter(
        "trunkline_loop_blocked_seconds", "Time for which something blocked the event loop."
    )
    """For so many seconds."""
    machine_trouble = gauge(
        "trunkline_machine_trouble", "What of the machine fails: 1 while it does.", "trouble"
    )
    """Descriptors, memory, …: begins (True) or is over."""

    def __init__(self) -> None:
        self.registry = _Registry()
        models, agents = BoundedLabels(MODEL_LABELS), OpenLabels(AGENT_LABELS)
        tenants = OpenLabels(TENANT_LABELS)
        self._models, self._agents = models, agents
        self._finished: dict[tuple[str, str, str, str], tuple[Count, Distribution]] = {}
        self._answered: dict[tuple[str, str], Count] = {}
        self._used: dict[str, tuple[Count, Count, Count]] = {}
        """What is added to for every request, by the labels under which it counts."""
        self.know_model = models.add
        """An agent serves this model and may: from now on it has a label, while there is room."""
        self.tenant_class: Callable[[str], str] | None = None
        """The class of each tenant; None: requests are not counted by classes."""
        self.gauges = GaugeSources(models, agents, tenants)
        self.registry.register(self.gauges)
        ProcessCollector(registry=self.registry)
        Info("trunkline_build", "The program that is running.", registry=self.registry).info(
            {"version": program_version(), "python": platform.python_version()}
        )
        super().__init__(self.registry, {"model": models, "agent": agents})

    async def render(self) -> bytes:
        """The exposition text for ``GET /metrics``. Gauges are read from their owners now, on the event loop,
        so many agents or deployments a turn. What is counted here is read in a thread, which makes the text,
        too: with many models it is megabytes."""
        return await self._render(generate_latest)

    async def render_exemplars(self) -> bytes:
        """The same in the format of OpenMetrics, whose histograms name traces."""
        return await self._render(generate_openmetrics)

    async def _render(self, generate: Callable[..., bytes]) -> bytes:
        figures = await run_in_slices(self.gauges.read())
        collected: list[Metric] = []
        for collector in self.registry.on_loop:
            for family in () if collector is self.gauges else collector.collect():
                collected.append(family)
                await asyncio.sleep(0)
        return await asyncio.to_thread(self._text, generate, figures, collected)

    def _text(
        self, generate: Callable[..., bytes], figures: Sequence[Family], collected: Sequence[Metric]
    ) -> bytes:
        return generate(_Scrape((*families(figures), *collected), self.registry.in_thread))

    def request_finished(
        self,
        route: str,
        model: str,
        status: int,
        duration_s: float,
        tier: str = NO_TIER,
        tenant: str | None = None,
        agent: str | None = None,
    ) -> None:
        """Count one client request, of whatever outcome.

        ``route`` is a deployment's route or ``models``; unknown routes and models count under ``other``.
        ``tenant`` is None before it is known, ``agent`` where none answered.
        """
        outcome = _STATUS_CLASSES[status // 100]
        route = route if route in ROUTES else OTHER
        if tenant is not None and self.tenant_class is not None:
            self.tenant_class_s(self.tenant_class(tenant), str(tier), outcome, duration_s)
        labels = self._models[model], route, str(tier), outcome
        count, durations = self._finished.get(labels) or self._new_finished(labels)
        count.value += 1
        durations.observe(duration_s)
        if agent is not None:
            answer = self._agents[agent], outcome
            (self._answered.get(answer) or self._new_answered(answer)).value += 1

    def _new_finished(self, labels: tuple[str, str, str, str]) -> tuple[Count, Distribution]:
        count = self.counters["trunkline_requests"].series(*labels)
        durations = self.histograms["trunkline_request_seconds"].series(*labels[:-1])
        series = self._finished[labels] = count, durations
        return series

    def _new_answered(self, labels: tuple[str, str]) -> Count:
        count = self._answered[labels] = self.counters["trunkline_agent_requests"].series(*labels)
        return count

    def streamed(
        self, model: str, first_token_s: float, lasted_s: float, tokens: int | None, tier: str
    ) -> None:
        """A streamed answer is over. Its first bytes went out ``first_token_s`` after its request's arrival,
        its last ones ``lasted_s`` later; ``tokens`` is None where its engine counted none."""
        self.first_token_s(model, tier, first_token_s)
        if tokens is not None and tokens > 1:
            self.token_gap_s(model, lasted_s / (tokens - 1))

    def loaded(self, model: str, seconds: float) -> None:
        """An agent has loaded a model, in so long."""
        self.loads(model, "loaded")
        self.load_s(model, seconds)

    def computed(self, model: str, batches: BatchSizes | None) -> None:
        """So many batches more of a model; None: its engine says nothing of them."""
        if batches is not None and batches.items:
            sizes = self.histograms["trunkline_engine_batch_size"]
            sizes.add((model,), batches.counts, batches.items)

    def used(self, model: str, usage: Usage) -> None:
        """What the trailers of a finished response say."""
        label = self._models[model]
        prompt, completion, cached = self._used.get(label) or self._new_used(label)
        prompt.value += usage.prompt_tokens
        completion.value += usage.completion_tokens
        cached.value += usage.cached_tokens

    def _new_used(self, label: str) -> tuple[Count, Count, Count]:
        tokens = self.counters["trunkline_tokens"]
        kinds = tokens.series(label, "prompt"), tokens.series(label, "completion")
        series = self._used[label] = *kinds, tokens.series(label, "cached")
        return series
