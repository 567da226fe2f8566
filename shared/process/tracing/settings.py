"""What can be set of tracing, of a gateway and of an agent."""

import importlib.util
import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from shared.process.settings import ConfigError
from shared.process.texts import as_field_value

ENDPOINT_VARIABLE = "TRUNKLINE_OTEL_ENDPOINT"
"""Sets the endpoint of gateways and agents alike, where it is not set otherwise."""

NOT_INSTALLED = "otel.endpoint needs OpenTelemetry: pip install 'trunkline[otel]'"


def _checked_endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("write http://HOST:4318 or https://HOST/PATH of an OTLP/HTTP receiver")
    _ = parts.port  # raises ValueError for what is no port
    return url


def _checked_headers(headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name in headers:
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header field")
    return {name: SecretStr(as_field_value(text.get_secret_value())) for name, text in headers.items()}


_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110, section 5.1."""


class OtelTable(BaseModel):
    """Traces for an OpenTelemetry collector, by OTLP over HTTP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: Annotated[str, Field(max_length=2000), AfterValidator(_checked_endpoint)] | None = None
    """URL of the collector; without a path, /v1/traces is meant. None: nothing is traced."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of requests without a trace of their own that get one. Clients that send a traceparent decide
    for theirs. An agent begins no traces."""
    headers: Annotated[dict[str, SecretStr], Field(max_length=32), AfterValidator(_checked_headers)] = {}
    """Sent with each export, for collectors that want a key."""
    queue_spans: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    """Spans that wait for the collector; further ones are dropped and counted."""
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 10.0
    """For one export, its repetitions included."""

    @property
    def traces_url(self) -> str | None:
        """Where spans are sent to."""
        if self.endpoint is None:
            return None
        return (
            self.endpoint
            if urlsplit(self.endpoint).path.strip("/")
            else self.endpoint.rstrip("/") + "/v1/traces"
        )


def with_endpoint(environment: Mapping[str, str], variable: str, written: str) -> Mapping[str, str]:
    """``environment`` with :data:`ENDPOINT_VARIABLE` as ``variable``, where that is not set itself. Its value
    is ``written`` with the URL in the place of ``{}``."""
    url = environment.get(ENDPOINT_VARIABLE)
    if not url or any(name.upper() == variable for name in environment):
        return environment
    return {**environment, variable: written.replace("{}", url)}


def check_installed(table: OtelTable) -> None:
    """Raises ConfigError where traces are wanted and cannot be had."""
    if table.endpoint is None:
        return
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigError(NOT_INSTALLED)
