"""Which trace a request belongs to, and whether it is recorded (W3C Trace Context). Pure."""

import random
import re
from collections.abc import Callable
from typing import NamedTuple

_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

_LOW_64 = (1 << 64) - 1


class TraceContext(NamedTuple):
    """One span of one trace, and whether the trace is recorded."""

    trace_id: int
    span_id: int
    """0: there is no span yet."""
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        """The header field that names the span as its reader's parent."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.sampled else '00'}"


def read_traceparent(text: str | None) -> TraceContext | None:
    """The span that a header field names; None for one that must be ignored, as one of zeros."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "00" and more is not None:
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1)) if trace_id and span_id else None


class TraceSampler:
    """Decides which requests are recorded: those whose client's trace is, and of requests without a trace a
    share, chosen by the id as OpenTelemetry's ``TraceIdRatioBased`` does."""

    def __init__(self, ratio: float, bits: Callable[[int], int] = random.getrandbits) -> None:
        """``ratio`` from 0 to 1; ``bits`` gives so many random bits."""
        self._bound = round(ratio * (1 << 64))
        self._bits = bits

    def decide(self, traceparent: str | None) -> TraceContext | None:
        """The parent of what is recorded of a request with that header field, without a span if the trace
        begins here; None: nothing is recorded."""
        if traceparent is not None and (parent := read_traceparent(traceparent)) is not None:
            return parent if parent.sampled else None
        return self.begin(self._bits(128))

    def begin(self, trace_id: int) -> TraceContext | None:
        """A trace of that id, which has no span yet; None: it is not recorded. The answer for an id is always
        the same."""
        if trace_id & _LOW_64 >= self._bound or not trace_id:
            return None
        return TraceContext(trace_id, 0)

    def new_span_id(self) -> int:
        return self._bits(64) or 1
