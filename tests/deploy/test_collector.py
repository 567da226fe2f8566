"""``deploy/observe/otel-collector.yaml`` has only what the collector's components document, and makes sense.

The models below are the settings of the components as their published configuration schemas have them
(``config.schema.yaml`` beside each). Nothing else is taken, as a collector takes nothing else: what the file
comes to use besides has to be looked up and added here.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tests.support.promtool import promtool

_FILE = Path(__file__).parents[2] / "deploy" / "observe" / "otel-collector.yaml"
_DOCUMENT = Path(__file__).parents[2] / "docs" / "observability.md"

Duration = Annotated[str, Field(pattern=r"^(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+$")]
"""What Go's ``time.ParseDuration`` takes."""
Whole = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Url = Annotated[str, Field(pattern=r"^https?://[^/]+")]


class Settings(BaseModel):
    """Unknown members and values of other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class HttpServer(Settings):
    endpoint: Annotated[str, Field(pattern=r"^[^:/]*:\d+$")]
    include_metadata: bool = False
    max_request_body_size: Whole = 0
    traces_url_path: Name = "/v1/traces"
    metrics_url_path: Name = "/v1/metrics"
    logs_url_path: Name = "/v1/logs"


class Protocols(Settings):
    http: HttpServer


class OtlpReceiver(Settings):
    protocols: Protocols


class PrometheusReceiver(Settings):
    config: dict[str, Any]
    """Prometheus's own: its promtool judges it."""
    trim_metric_suffixes: bool = False


class Batch(Settings):
    send_batch_size: Whole = 8192
    send_batch_max_size: Whole = 0
    timeout: Duration = "200ms"
    metadata_keys: list[Name] = []
    metadata_cardinality_limit: Whole = 1000


class MemoryLimiter(Settings):
    check_interval: Duration
    limit_mib: Annotated[int, Field(gt=0)]
    """Or ``limit_percentage``, which is no choice here: one of both has to be set."""
    spike_limit_mib: Whole = 0

    @model_validator(mode="after")
    def _spike_is_less(self) -> "MemoryLimiter":
        assert self.spike_limit_mib < self.limit_mib
        return self


class Latency(Settings):
    threshold_ms: Annotated[int, Field(gt=0)]
    upper_threshold_ms: Whole = 0


class StatusCode(Settings):
    status_codes: Annotated[list[Literal["ERROR", "OK", "UNSET"]], Field(min_length=1)]


class Probabilistic(Settings):
    sampling_percentage: Annotated[float, Field(gt=0, le=100)]
    hash_salt: str = ""


class Policy(Settings):
    """A policy has the settings of its type, and of no other."""

    name: Name
    type: Literal["always_sample", "latency", "status_code", "probabilistic"]
    latency: Latency | None = None
    status_code: StatusCode | None = None
    probabilistic: Probabilistic | None = None

    @model_validator(mode="after")
    def _has_those_of_its_type(self) -> "Policy":
        given = self.model_fields_set - {"name", "type"}
        assert given == ({self.type} - {"always_sample"}), given
        return self


class TailSampling(Settings):
    decision_wait: Duration = "30s"
    num_traces: Whole = 50_000
    expected_new_traces_per_sec: Whole = 0
    policies: Annotated[list[Policy], Field(min_length=1)]

    @model_validator(mode="after")
    def _no_two_of_one_name(self) -> "TailSampling":
        assert len({each.name for each in self.policies}) == len(self.policies)
        return self


class Transform(Settings):
    include: Name
    match_type: Literal["strict", "regexp"] = "strict"
    action: Literal["update", "insert", "combine", "group"]
    new_name: Name = ""


class MetricsTransform(Settings):
    transforms: Annotated[list[Transform], Field(min_length=1)]


class OtlpHttp(Settings):
    endpoint: Url
    traces_endpoint: Url | None = None
    metrics_endpoint: Url | None = None
    headers: dict[Name, str] = {}
    timeout: Duration = "30s"
    compression: Literal["gzip", "zstd", "snappy", "zlib", "deflate", "none"] = "gzip"
    encoding: Literal["proto", "json"] = "proto"


class Receivers(Settings):
    otlp: OtlpReceiver
    prometheus: PrometheusReceiver


class Processors(Settings):
    batch: Batch
    memory_limiter: MemoryLimiter
    tail_sampling: TailSampling
    metricstransform: MetricsTransform


class Exporters(Settings):
    otlphttp: OtlpHttp
    """Later collectors call it otlp_http, and still take this name."""


class Pipeline(Settings):
    receivers: Annotated[list[Name], Field(min_length=1)]
    processors: list[Name] = []
    exporters: Annotated[list[Name], Field(min_length=1)]


class Pipelines(Settings):
    traces: Pipeline
    metrics: Pipeline


class Service(Settings):
    pipelines: Pipelines


class Collector(Settings):
    receivers: Receivers
    processors: Processors
    exporters: Exporters
    service: Service


SIGNALS = {
    "otlp": {"traces", "metrics"},
    "prometheus": {"metrics"},
    "batch": {"traces", "metrics"},
    "memory_limiter": {"traces", "metrics"},
    "tail_sampling": {"traces"},
    "metricstransform": {"metrics"},
    "otlphttp": {"traces", "metrics"},
}
"""What of each component is, by its ``metadata.yaml``."""


class _NothingTwice(yaml.SafeLoader):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """A key that comes twice is an error, as it is for the collector."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"a key comes twice: {keys}"
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def written() -> Any:
    return yaml.load(_FILE.read_text(), _NothingTwice)


def test_the_file_has_only_settings_that_its_components_document() -> None:
    Collector.model_validate(written())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("processors", "tail_sampling", "decision_wait"), "30 seconds"),
        (("processors", "tail_sampling", "policies", 0, "status_code", "status_codes"), ["error"]),
        (("processors", "tail_sampling", "policies", 1, "type"), "status_code"),
        (("processors", "tail_sampling", "policies", 1, "latency", "threshold_s"), 10),
        (("processors", "metricstransform", "transforms", 0, "action"), "rename"),
        (("processors", "memory_limiter", "limit_mib"), "512"),
        (("processors", "memory_limiter", "spike_limit_mib"), 512),
        (("receivers", "otlp", "protocols", "http", "endpoint"), "http://0.0.0.0:4318"),
        (("exporters", "otlphttp", "endpoint"), "traces.example.com:4318"),
        (("service", "pipelines", "traces", "receiver"), ["otlp"]),
    ],
)
def test_what_a_collector_would_refuse_is_refused_here(path: tuple[str | int, ...], value: object) -> None:
    document = written()
    place = document
    for each in path[:-1]:
        place = place[each]
    place[path[-1]] = value
    with pytest.raises(ValidationError):
        Collector.model_validate(document)


def test_every_component_is_in_a_pipeline_of_what_it_handles_and_in_the_right_order() -> None:
    document = written()
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for signal, pipeline in document["service"]["pipelines"].items():
        for kind, names in pipeline.items():
            used[kind] |= set(names)
            assert all(signal in SIGNALS[name] for name in names), (signal, names)
        assert pipeline["processors"][0] == "memory_limiter", "it can refuse only what nothing holds yet"
        assert pipeline["processors"][-1] == "batch", "what is thrown away is not gathered before"
    for kind, names in used.items():
        assert names == set(document[kind]), kind


def test_the_scrape_is_one_that_prometheus_takes(tmp_path: Path) -> None:
    config = written()["receivers"]["prometheus"]["config"]
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", str(path))
    shown = yaml.safe_load((_FILE.parent / "prometheus.yml").read_text())["scrape_configs"]
    for mine, theirs in zip(config["scrape_configs"], shown, strict=True):
        assert {name: mine[name] for name in mine if name != "authorization"} == {
            name: theirs[name] for name in theirs if name != "authorization"
        }
        assert mine["authorization"].keys() == theirs["authorization"].keys()


def test_it_listens_where_the_document_sends_spans() -> None:
    port = int(written()["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2])
    told = [word.partition("=")[2] for word in _DOCUMENT.read_text().split() if "OTEL_ENDPOINT=" in word]
    assert len(told) >= 2
    assert {urlsplit(each).port for each in told} == {port}
