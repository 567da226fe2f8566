"""What waits at a gateway, so that an agent can divide its slots among gateways (PROTOCOL §4.7, DEMAND)."""

from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from pydantic import AllowInfNan, BeforeValidator, Field, Strict, TypeAdapter

from shared.process.frozen import frozen
from shared.protocol import limits
from shared.protocol.errors import FrameMalformed
from shared.protocol.members import Level, Name, Seconds, read, read_object

_Weight = Annotated[float, Strict(), AllowInfNan(False), Field(ge=0.0, le=1e6)]


@frozen
class Demand:
    """What waits at one gateway for one model."""

    waiting: Level = 0
    """Requests that wait."""
    realtime: Level = 0
    """Those of them that are of the realtime tier."""
    oldest_wait_s: Seconds = 0.0
    """How long the one that came first has waited, in seconds."""
    weight: _Weight = 1.0
    """The sum of the weights of the tenants whose requests wait or run."""


def _with_plain_counts(value: Any) -> Any:
    """A number stands for so many waiting requests, as the first versions of this page had it."""
    return {"waiting": value} if isinstance(value, int) and not isinstance(value, bool) else value


_DEMANDS = TypeAdapter(
    Annotated[
        dict[Name, Annotated[Demand, BeforeValidator(_with_plain_counts)]],
        Field(max_length=limits.DEPLOYMENTS),
    ]
)


def encode_demand(demands: Mapping[str, Demand]) -> bytes:
    """The payload of DEMAND: model → what waits for it. Where there is no room for all, those with the fewest
    waiting requests are left out."""
    ordered = sorted(demands, key=lambda model: (-demands[model].waiting, model))[: limits.DEPLOYMENTS]
    while True:
        payload = orjson.dumps({model: demands[model] for model in ordered})
        if len(payload) <= limits.CONTROL_PAYLOAD_BYTES:
            return payload
        ordered = ordered[: len(ordered) // 2]


def decode_demand(payload: bytes) -> dict[str, Demand]:
    """Reads DEMAND. Raises :class:`~shared.protocol.errors.FrameMalformed`."""
    return read(_DEMANDS, read_object(payload), lambda complaint: FrameMalformed(f"demand: {complaint}"))
