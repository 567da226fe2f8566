"""The metrics at ``/metrics``, with vLLM's names where vLLM has one: an agent reads this engine as others."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from agent.engines.torch.shapes import TokenUsage
from shared.protocol.limits import BATCH_SIZES

if TYPE_CHECKING:
    from agent.engines.torch.engine import TorchEngine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)


class TorchMetrics:
    """Counters of the HTTP side, and gauges read from the engine at each scrape."""

    def __init__(self, engine: "TorchEngine") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._model = engine.facts.model
        self._gauges(engine)
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of finished requests")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated")
        self.first_token_s = self._histogram("vllm:time_to_first_token_seconds", "From request to first text")
        self._batches(engine)
        self._total_s = self._histogram(
            "vllm:e2e_request_latency_seconds", "From request to the end of its answer"
        )
        self._finished = Counter(
            "vllm:request_success",
            "Answers that were whole",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self._failed = Counter(
            "trunkline_engine_errors",
            "Requests answered with an error",
            ("model_name", "code"),
            registry=self._registry,
        )

    def finished(self, reason: str, usage: TokenUsage, took_s: float) -> None:
        """An answer was whole."""
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._generation_tokens.inc(usage.completion_tokens)
        self._total_s.observe(took_s)
        self._finished.labels(self._model, reason).inc()

    def failed(self, code: str) -> None:
        """``code`` is one of this engine's own error codes."""
        self._failed.labels(self._model, code).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _gauges(self, engine: "TorchEngine") -> None:
        manager, vectors, admission = engine.manager, engine.vectors, engine.admission
        read: dict[str, tuple[str, Callable[[], float]]] = {
            "vllm:num_requests_running": ("Requests being computed", lambda: engine.running),
            "vllm:num_requests_waiting": ("Requests waiting to be", lambda: engine.waiting),
            "trunkline_engine_slots": ("Requests computed at once at most", lambda: admission.slots),
            "trunkline_engine_places": ("Requests held at once at most", lambda: admission.places),
            "trunkline_engine_places_taken": ("Requests held now", lambda: admission.taken),
            "trunkline_engine_ready": ("1 while it can compute", lambda: float(engine.failure is None)),
        }
        if manager is not None:
            read["vllm:kv_cache_usage_perc"] = ("Share of the KV cache in need", lambda: manager.kv_use)
            read["trunkline_engine_kv_tokens"] = ("Tokens that fit the KV cache", lambda: manager.kv_tokens)
            read["trunkline_engine_steps"] = ("Steps computed so far", lambda: manager.steps)
            read["trunkline_engine_text_out_of_memory"] = (
                "Texts given up for want of memory",
                lambda: manager.out_of_memory,
            )
        if vectors is not None:
            read["trunkline_engine_embedding_batches"] = ("Batches so far", lambda: vectors.batches)
            read["trunkline_engine_embedding_texts"] = ("Texts embedded so far", lambda: vectors.texts)
            read["trunkline_engine_embedding_out_of_memory"] = (
                "Texts given up for want of memory",
                lambda: vectors.out_of_memory,
            )
        for name, (description, value) in read.items():
            gauge = Gauge(name, description, ("model_name",), registry=self._registry)
            gauge.labels(self._model).set_function(value)

    def _batches(self, engine: "TorchEngine") -> None:
        """Requests in the steps of text, and texts in the batches of embeddings."""
        sizes = Histogram(
            "trunkline_engine_batch_size",
            "Requests or texts computed at once",
            ("model_name",),
            buckets=BATCH_SIZES,
            registry=self._registry,
        ).labels(self._model)
        if engine.manager is not None:
            engine.manager.on_step = sizes.observe
        if engine.vectors is not None:
            engine.vectors.on_batch = sizes.observe

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(name, description, ("model_name",), registry=self._registry).labels(self._model)

    def _histogram(self, name: str, description: str) -> Histogram:
        histogram = Histogram(name, description, ("model_name",), buckets=_SECONDS, registry=self._registry)
        return histogram.labels(self._model)
