"""The names are those of the pinned version, which OpenTelemetry's own package has too."""

import pytest

from gateway.observability.metrics import Metrics
from shared.process.tracing import conventions


def test_every_genai_name_is_one_of_the_conventions() -> None:
    attributes = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    known = {value for name, value in vars(attributes).items() if name.startswith("GEN_AI_")}
    used = {
        value
        for name, value in vars(conventions).items()
        if isinstance(value, str) and value.startswith("gen_ai.")
    }
    assert used
    assert used - known == set()
    operations = {each.value for each in attributes.GenAiOperationNameValues}
    assert set(conventions.OPERATIONS.values()) <= operations


def test_the_schema_is_one_that_was_published() -> None:
    schemas = pytest.importorskip("opentelemetry.semconv.schemas")
    assert conventions.SCHEMA_URL in {each.value for each in schemas.Schemas}


def test_every_metric_of_the_conventions_that_has_a_histogram_here_names_one() -> None:
    module = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
    known = {value for name, value in vars(module).items() if name.startswith("GEN_AI_")}
    assert set(conventions.SERVER_METRICS) <= known
    there = {family.name for family in Metrics().registry.collect()}
    assert set(conventions.SERVER_METRICS.values()) <= there


def test_routes_without_an_operation_of_the_conventions_keep_their_names() -> None:
    assert conventions.operation_of("completions") == "text_completion"
    assert conventions.operation_of("rerank") == "rerank"
