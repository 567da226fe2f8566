"""What can be set of scaling: how many replicas are wanted, and who is told."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gateway.domain.webhook_addresses import WebhookRules, read_webhook_url
from gateway.runtime.config.cluster import SettingsTable

Replicas = Annotated[int, Field(ge=0, le=100_000)]
LongTime = Annotated[float, Field(gt=0, le=604_800)]
Name = Annotated[str, Field(min_length=1, max_length=500)]


def _is_address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("write HOST:PORT, for example 127.0.0.1:8710")
    return text


class ScalingClassTable(SettingsTable):
    """A class of device that replicas can be had of."""

    price_hour: Annotated[float | None, Field(ge=0, le=1e6)] = None
    """What a replica costs in an hour, in any unit."""
    slots: Annotated[int | None, Field(ge=1, le=100_000)] = None
    """Requests that a replica takes at once; unset: as many as those that are there."""
    min_replicas: Replicas = 0
    max_replicas: Replicas = 1000
    ready_s: Annotated[float | None, Field(gt=0, le=86_400)] = None
    """How long a new one takes until it is ready, as long as that was not measured; unset: as all do."""


class ScalingModelTable(SettingsTable):
    """What is different for some models; what is unset is as for all."""

    first_token_s: LongTime | None = None
    latency_s: LongTime | None = None
    min_replicas: Replicas | None = None
    max_replicas: Replicas | None = None
    idle_s: LongTime | None = None
    classes: Annotated[list[Name] | None, Field(max_length=100)] = None
    """The only classes of which replicas are wanted; unset: all that are set, and those that are there."""


class ScalingTable(SettingsTable):
    """How many replicas of each model are wanted: docs/scaling.md."""

    enabled: bool = True
    """Say so, at /admin/scaling and in the metrics."""
    interval_s: Annotated[float, Field(ge=0.1, le=3600)] = 5.0
    """Between two decisions."""
    first_token_s: LongTime = 2.0
    """99 of 100 requests shall have their first token so soon."""
    latency_s: LongTime | None = None
    """The same for whole answers; unset: they may take as long as they take."""
    utilisation: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The share of what replicas can do that they shall be given at most."""
    queue_s: LongTime = 30.0
    """What waits when a new replica is ready shall have begun after so long."""
    batch_queue_s: LongTime = 3600.0
    """The same for requests of the tier batch."""
    min_replicas: Replicas = 1
    """Of a model, of all classes together; 0: none is kept of what nobody asks for."""
    max_replicas: Replicas = 100
    stabilisation_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Fewer are wanted only when no more were needed for so long."""
    cooldown_s: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Between a change and the next one to fewer."""
    idle_s: LongTime = 900.0
    """Nothing was asked for so long before none is kept."""
    hold_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    """Requests for a model of which none is kept wait for so long until one is ready."""
    ready_s: Annotated[float, Field(gt=0, le=86_400)] = 180.0
    """How long a new replica takes until it is ready, as long as that was not measured."""
    forecast: Literal["act", "shadow", "off"] = "act"
    """What the past weeks foretell: it acts while it beats what is decided without it in a back-test; is only
    told; or is not made. Needs trunkline[forecast]."""
    forecast_quantile: Annotated[float, Field(ge=0.5, le=0.999)] = 0.9
    """So often no more shall come than was foreseen."""
    forecast_extra: Annotated[float, Field(ge=0, le=10)] = 0.15
    """The share of replica-hours that it may cost more."""
    forecast_weeks: Annotated[int, Field(ge=3, le=26)] = 6
    """What was asked for is kept for so long, and learnt from."""
    forecast_every_s: Annotated[float, Field(ge=300, le=86_400)] = 3600.0
    """Between two forecasts."""
    forecast_backtest_days: Annotated[int, Field(ge=7, le=28)] = 14
    """The last days, at most, that a forecast is judged by."""
    calendar: Path | None = None
    """Known events, a TOML file: docs/scaling.md."""
    classes: Annotated[dict[Name, ScalingClassTable], Field(max_length=100)] = {}
    """By class of device, such as h100 or l4."""
    models: Annotated[dict[Name, ScalingModelTable], Field(max_length=1000)] = {}
    """By model, or shell pattern; the first that fits counts."""
    command: Annotated[list[Annotated[str, Field(max_length=4000)]], Field(max_length=100)] = []
    """Run when what is wanted changes, with the change as JSON on its standard input."""
    webhook: Annotated[str | None, Field(max_length=2000)] = None
    """Where the same is sent, signed with the operator's secret. Jobs' settings say where webhooks may be."""
    hook_timeout_s: Annotated[float, Field(ge=1, le=3600)] = 60.0
    """A command that runs for longer is killed."""
    keda_listen: Annotated[str | None, AfterValidator(_is_address)] = None
    """HOST:PORT for KEDA's external scaler, over gRPC; unset: none."""
    keda_cert: Path | None = None
    keda_key: Path | None = None
    keda_client_ca: Path | None = None
    """Certificates of clients have to be signed by one of these."""
    keda_token_file: Path | None = None
    """Holds what clients have to name in their ScaledObject, as trunklineToken."""

    @model_validator(mode="after")
    def _fits_together(self) -> "ScalingTable":
        if self.min_replicas > self.max_replicas:
            raise ValueError("scaling.min_replicas is more than scaling.max_replicas")
        if self.webhook is not None:
            read_webhook_url(self.webhook, WebhookRules())  # its ValueError says what is wrong
        if (self.keda_cert is None) != (self.keda_key is None):
            raise ValueError("scaling.keda_cert and scaling.keda_key belong together")
        if self.keda_client_ca is not None and self.keda_cert is None:
            raise ValueError("scaling.keda_client_ca needs scaling.keda_cert")
        return self
