"""What :mod:`gateway.scaling.learning` is given. Apart from it, for that needs numpy."""

import base64
from dataclasses import asdict, dataclass

import orjson
from pydantic import Base64Bytes

from gateway.scheduling.scaling.data import ClassFacts, ScalingRule


@dataclass(frozen=True, slots=True)
class LearningTask:
    """Of one series. Without ``facts`` there is a forecast and no verdict."""

    start_s: float
    values: list[float | None]
    """None: not known, or no pattern."""
    facts: ClassFacts
    rule: ScalingRule
    quantile: float
    extra: float
    days: int
    """Of the back-test, at most."""
    acts: bool
    """It acts now."""
    bursts: Base64Bytes = b""
    """See :class:`~gateway.scheduling.scaling.forecast.LoadSeries`."""


def task_line(task: LearningTask) -> bytes:
    """For the process that makes forecasts."""
    return orjson.dumps(asdict(task), default=_text) + b"\n"  # NaN is null there


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value))
