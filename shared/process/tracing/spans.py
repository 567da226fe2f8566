"""What a span is before anything of OpenTelemetry's is made of it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

Attribute = str | int | float | bool


class SpanRole(StrEnum):
    """Which side of a request a span is."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"
    CONSUMER = "consumer"
    """It works on what was submitted before."""


@dataclass(frozen=True, slots=True)
class SpanData:
    """One span that is over. Times are Unix time in nanoseconds."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    """0: the trace begins with it."""
    start_ns: int
    end_ns: int
    role: SpanRole = SpanRole.INTERNAL
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    error: str | None = None
    """A code that says what failed; None: nothing did."""


class SpanSender(Protocol):
    """Sends spans, waits for the answer. Used in one thread."""

    def send(self, spans: Sequence[SpanData]) -> bool:
        """Whether the collector took them."""

    def close(self) -> None:
        """Ends a :meth:`send` that waits, in another thread."""
