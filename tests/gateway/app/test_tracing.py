"""Traces of a gateway: there where its settings want them."""

import importlib.util

import pytest

from gateway.app.tracing import GatewayTraces
from gateway.observability.metrics import Metrics
from gateway.runtime.config.sources import load
from shared.process.settings import ConfigError
from shared.process.tracing.settings import NOT_INSTALLED


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"trunkline_spans_{name}_total", labels)


async def test_without_an_endpoint_there_is_nothing() -> None:
    metrics = Metrics()
    traces = GatewayTraces(load({}, environment={}).settings, metrics)
    assert traces.requests is None
    async with traces.exported():
        assert value(metrics, "exported") is None


async def test_the_common_variable_names_the_collector_and_what_it_does_not_get_is_counted() -> None:
    pytest.importorskip("opentelemetry.sdk", reason=NOT_INSTALLED)
    environment = {
        "TRUNKLINE_OTEL_ENDPOINT": "http://127.0.0.1:1",
        "TRUNKLINE_GATEWAY_OTEL__TIMEOUT_S": "0.5",
    }
    metrics, settings = Metrics(), load({}, environment=environment).settings
    traces = GatewayTraces(settings, metrics)
    assert traces.requests is not None
    exporter = traces._exporter
    assert exporter is not None
    async with traces.exported():
        exporter.put(settings.otel.queue_spans + 1, list)
    assert value(metrics, "dropped", reason="queue_full") == settings.otel.queue_spans + 1
    assert (value(metrics, "exported"), value(metrics, "dropped", reason="not_taken")) == (0, 0)


def test_without_the_library_a_gateway_that_is_to_trace_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    settings = load({"otel": {"endpoint": "http://c:4318"}}, environment={}).settings
    with pytest.raises(ConfigError, match="trunkline\\[otel\\]"):
        GatewayTraces(settings, Metrics())
