"""The metrics at ``/metrics`` of a model's server process."""

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

from shared.protocol.limits import BATCH_SIZES

if TYPE_CHECKING:
    from agent.serve.server import ModelServer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)


class ModelMetrics:
    """Counters of the HTTP side, and gauges read from the server at each scrape."""

    def __init__(self, server: "ModelServer") -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        devices = server.devices
        read: dict[str, tuple[str, Callable[[], float]]] = {
            "requests_running": ("Requests being computed", lambda: server.running),
            "requests_waiting": ("Requests decoded, queued or encoded", lambda: server.waiting),
            "slots": ("Requests that may be sent at once", lambda: server.slots),
            "places": ("Requests held at once at most", lambda: server.admission.places),
            "ready": ("1 while it can compute", lambda: float(server.state().status in ("READY", "BUSY"))),
            "batches": ("Batches given to a device so far", lambda: server.batches),
            "items": ("Items in these batches", lambda: server.items),
            "batch_limit": ("Most items in a batch now", lambda: max(device.limit for device in devices)),
            "out_of_memory": ("Batches for which memory ran out", lambda: server.out_of_memory),
            "computed_again": ("Items computed again after a batch failed", lambda: server.retried),
            "restarts": ("Processes started again", lambda: sum(device.restarted for device in devices)),
            "codec_waiting": (
                "Orders to decode or encode that wait",
                lambda: 0 if server.codecs is None else server.codecs.waiting,
            ),
        }
        for name, (description, value) in read.items():
            Gauge(f"trunkline_engine_{name}", description, registry=self._registry).set_function(value)
        self._total_s = Histogram(
            "trunkline_engine_request_seconds",
            "From request to the end of its answer",
            buckets=_SECONDS,
            registry=self._registry,
        )
        server.on_batch = Histogram(
            "trunkline_engine_batch_size",
            "Items of the batches given to a device",
            buckets=BATCH_SIZES,
            registry=self._registry,
        ).observe
        self._failed = Counter(
            "trunkline_engine_errors",
            "Requests answered with an error, and streams broken off",
            ("code",),
            registry=self._registry,
        )

    def finished(self, took_s: float) -> None:
        """An answer was whole."""
        self._total_s.observe(took_s)

    def failed(self, code: str) -> None:
        """``code`` may be one of the model's own."""
        self._failed.labels(code[:64] if code.isidentifier() else "other").inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
