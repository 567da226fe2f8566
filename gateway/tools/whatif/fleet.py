"""The fleet of a gateway as it is now, and what the gateway has learnt of its speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from gateway.tools.simulate.queues import AGEING_S

_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Money = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Multiplier = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
_Multipliers = Annotated[tuple[_Multiplier, ...], Field(min_length=4, max_length=4)]
_KNOWN = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class ServingDeployment:
    """A deployment that serves now."""

    __pydantic_config__ = _KNOWN

    key: str
    model: str
    device: str
    """Its class; empty: its agent names no device."""
    slots: Annotated[int, Field(ge=1, le=1 << 20)]
    rtt_s: _Seconds = 0.0
    kv_tokens: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class LearntSpeeds:
    """What a gateway has learnt of one model on one class: the multipliers of
    :class:`gateway.scheduling.learning.performance.Speeds`."""

    __pydantic_config__ = _KNOWN

    model: str
    device: str
    reading: _Multipliers
    writing: _Multipliers
    reading_common: _Multiplier
    writing_common: _Multiplier
    answers: Annotated[int, Field(ge=0)]
    """Those it has learnt from."""


@dataclass(frozen=True, slots=True)
class QueueNow:
    """The settings of the queue that the simulator knows."""

    __pydantic_config__ = _KNOWN

    max_requests: Annotated[int, Field(ge=0)] = 1000
    max_wait_s: _Seconds = 60.0
    ageing_s: _Seconds = AGEING_S
    weights: Mapping[str, _Multiplier] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetNow:
    """All that a what-if begins with."""

    __pydantic_config__ = _KNOWN

    deployments: Sequence[ServingDeployment]
    speeds: Sequence[LearntSpeeds]
    policy: str
    policies: Mapping[str, str]
    """Those of models that have one of their own."""
    queue: QueueNow
    gpu_hour: Mapping[str, _Money]
    """What an hour of one deployment costs, by model, where a price is known."""
    elsewhere: Sequence[str] = ()
    """Processes on other hosts, whose requests are not in this host's records."""


_FLEET = TypeAdapter(FleetNow)


def read_fleet(value: Any) -> FleetNow:
    """What :func:`gateway.app.whatif.fleet_now` gives. Raises ValueError."""
    return _FLEET.validate_python(value)
