"""The table of metrics that the gateway counts itself; what it reads from their owners is in ``gauges``.

Each is an attribute of :class:`Counts`. Of the class it is the definition; of an instance, what gives the
series of the values of its labels, looked up in one step. Bounded, as labels are.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_TOKEN_GAPS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

Kind = TypeVar("Kind", Counter, Gauge, Histogram)


class Defined(Generic[Kind]):
    """One metric. ``labels`` are their names, in the order in which their values are given."""

    def __init__(
        self, kind: type[Kind], name: str, text: str, *labels: str, buckets: Sequence[float] = _LATENCIES_S
    ) -> None:
        self._kind: type[Kind] = kind
        self._name = name
        self._text = text
        self._labels = labels
        self._options: dict[str, Any] = {"buckets": buckets} if kind is Histogram else {}

    def __get__(self, instance: object, owner: type) -> Callable[..., Kind]:
        """For the type checker: an instance of :class:`Counts` has its own attribute in place of this."""
        raise AttributeError(self._name)

    def series(self, registry: CollectorRegistry) -> Callable[..., Kind]:
        """Makes the metric in ``registry``; what is returned takes values of labels."""
        metric = self._kind(self._name, self._text, self._labels, registry=registry, **self._options)
        return cache(metric.labels) if self._labels else lambda: metric


class Counts:
    """All of them, in a registry."""

    requests = Defined(
        Counter, "trunkline_requests", "Client requests by status class.", "route", "model", "status"
    )
    request_s = Defined(
        Histogram,
        "trunkline_request_seconds",
        "From a request's arrival to its last byte.",
        "route",
        "model",
    )
    queue_s = Defined(Histogram, "trunkline_queue_seconds", "Time waited for a slot.", "model", "tier")
    first_byte_s = Defined(
        Histogram,
        "trunkline_time_to_first_byte_seconds",
        "From a request's arrival to its response's head.",
        "model",
    )
    first_token_s = Defined(
        Histogram,
        "trunkline_time_to_first_token_seconds",
        "From the arrival of a request for a stream to the first bytes of its answer's body.",
        "model",
    )
    token_gap_s = Defined(
        Histogram,
        "trunkline_time_per_output_token_seconds",
        "Mean time between two tokens of a streamed answer, as it went out to its client.",
        "model",
        buckets=_TOKEN_GAPS_S,
    )
    agent_requests = Defined(
        Counter,
        "trunkline_agent_requests",
        "Requests whose answer came from this agent, by status class.",
        "agent",
        "status",
    )
    tokens = Defined(Counter, "trunkline_tokens", "Tokens as engines counted them.", "model", "kind")
    refused = Defined(
        Counter, "trunkline_requests_refused", "Requests that were given no slot.", "model", "reason"
    )
    retries = Defined(
        Counter, "trunkline_retries", "Requests given to a deployment again, by trouble.", "model", "reason"
    )
    unretried = Defined(
        Counter, "trunkline_retry_budget_exhausted", "Retries that the retry budget did not allow.", "model"
    )
    failovers = Defined(
        Counter,
        "trunkline_failovers",
        "Requests without an answer yet that were taken from a deployment to be given to another.",
        "model",
        "reason",
    )
    continuations = Defined(
        Counter,
        "trunkline_continuations",
        "Answers begun by one deployment and gone on with by another, by how that went.",
        "model",
        "outcome",
    )
    hedges = Defined(
        Counter, "trunkline_hedges", "Second copies of late requests: started, and won.", "model", "outcome"
    )
    preemptions = Defined(
        Counter,
        "trunkline_preemptions",
        "Requests that gave their slot back for a realtime one.",
        "model",
        "tier",
    )
    loads = Defined(
        Counter, "trunkline_model_loads", "Models that agents loaded, or failed to.", "model", "outcome"
    )
    load_s = Defined(Histogram, "trunkline_model_load_seconds", "How long loading a model took.", "model")
    unloads = Defined(Counter, "trunkline_model_unloads", "Models that agents unloaded.", "model")
    held = Defined(
        Counter, "trunkline_requests_held", "Requests that had to wait until their model was loaded.", "model"
    )
    opened = Defined(
        Counter, "trunkline_circuits_opened", "Circuits of deployments that opened.", "model", "reason"
    )
    ejected = Defined(
        Counter, "trunkline_deployments_ejected", "Deployments set aside for being slow.", "model"
    )
    broken = Defined(
        Counter, "trunkline_streams_broken", "Responses that broke after their head.", "model", "reason"
    )
    claims = Defined(
        Counter,
        "trunkline_agent_claims_refused",
        "Models and labels agents claimed and may not have.",
        "reason",
    )
    tunnels = Defined(Counter, "trunkline_tunnels", "Tunnels by how their handshake went.", "outcome")
    blocked_s = Defined(
        Counter, "trunkline_loop_blocked_seconds", "Time for which something blocked the event loop."
    )
    trouble = Defined(
        Gauge, "trunkline_machine_trouble", "What of the machine fails: 1 while it does.", "trouble"
    )

    def __init__(self, registry: CollectorRegistry) -> None:
        for name, defined in vars(Counts).items():
            if isinstance(defined, Defined):
                vars(self)[name] = defined.series(registry)
