"""What is recorded of one request whose trace is, and the spans that become of it.

Its span has, as children, a span for each wait in the queue and one for each attempt at a deployment,
and each attempt one for the time in its engine as the agent measured it::

    chat m                     from the request's arrival to the last byte of its answer
    ├── queue                  until it had a slot
    ├── attempt                at a deployment, with the trouble that ended it
    │   └── engine             passed on to agent and engine as their parent
    └── continuation           from the loss of an engine on: another one goes on with the answer
        ├── queue
        └── attempt
            └── engine

While the request runs only times and ids are noted. Spans are made of them when it is over, in the thread
that sends them. Nothing of a request's or an answer's content is here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.observability.span_attributes import usage_attributes
from shared.process.tracing import conventions as names
from shared.process.tracing.context import TraceContext
from shared.process.tracing.spans import Attribute, SpanData, SpanRole
from shared.protocol.messages import RequestHead, Trailers

TRACEPARENT = "traceparent"

MOST_RECORDS = 200
"""Waits and attempts of one request that are recorded."""


@dataclass(slots=True)
class AttemptTrace:
    """One attempt. Times are seconds of the event loop's clock."""

    deployment: str
    agent: str
    kind: str
    """Of its engine."""
    opened_s: float
    span_id: int
    engine_id: int
    continuation: int
    ended_s: float | None = None
    trailers: Trailers | None = None
    trouble: str | None = None
    status: int | None = None


@dataclass(slots=True)
class WaitTrace:
    """One wait in the queue."""

    since_s: float
    continuation: int
    until_s: float | None = None


@dataclass(slots=True)
class RequestTrace:
    """One request. Implements :class:`gateway.domain.request.DispatchTrace`."""

    parent: TraceContext
    """That of the client; without a span if the trace begins here."""
    span_id: int
    began_s: float
    """On the event loop's clock; ``wall_ns`` is the same moment as Unix time."""
    wall_ns: int
    new_id: Callable[[], int]
    waits: list[WaitTrace] = field(default_factory=list)
    attempts: list[AttemptTrace] = field(default_factory=list)
    continuations: list[float] = field(default_factory=list)
    """When another engine was first wanted to go on with the answer; one for each loss."""

    @property
    def trace_id(self) -> str:
        return f"{self.parent.trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """Of the server span."""
        return TraceContext(self.parent.trace_id, self.span_id).traceparent

    # --- While the request runs

    def wait(self, since_s: float, *, continuation: bool = False) -> None:
        """It waits for a slot, where ``continuation`` so that another engine goes on with its answer."""
        self.end_wait(since_s)
        if continuation:
            self.continuations.append(since_s)
        if len(self.waits) < MOST_RECORDS:
            self.waits.append(WaitTrace(since_s, len(self.continuations)))

    def end_wait(self, now: float) -> None:
        """It waits no longer."""
        if self.waits and self.waits[-1].until_s is None:
            self.waits[-1].until_s = now

    def attempt(self, head: RequestHead, deployment: str, agent: str, kind: str, now: float) -> AttemptTrace:
        """An attempt that is about to begin; ``head`` names its engine's span as the parent from now on."""
        made = AttemptTrace(
            deployment, agent, kind, now, self.new_id(), self.new_id(), len(self.continuations)
        )
        head.trace = TraceContext(self.parent.trace_id, made.engine_id).traceparent
        head.headers = with_traceparent(head.headers, head.trace)
        return made

    def begin(self, attempt: AttemptTrace) -> None:
        """Its stream is open."""
        self.end_wait(attempt.opened_s)
        if len(self.attempts) < MOST_RECORDS:
            self.attempts.append(attempt)

    def trouble(self, deployment: str, why: str) -> None:
        """The latest attempt at ``deployment`` did not bring the request to its end."""
        for attempt in reversed(self.attempts):
            if attempt.deployment == deployment:
                attempt.trouble = why
                return

    def hand_over(self, parent_id: int) -> "RequestTrace":
        """The request goes on as something else, whose span has the id ``parent_id``: from now on this is
        the trace of a part of that, with the waits and attempts so far. What is returned is that of the
        request itself, without them."""
        own = RequestTrace(self.parent, self.span_id, self.began_s, self.wall_ns, self.new_id)
        self.parent = TraceContext(self.parent.trace_id, parent_id)
        self.span_id = self.new_id()
        return own

    # --- When it is over

    @property
    def span_count(self) -> int:
        return 1 + len(self.waits) + 2 * len(self.attempts) + len(self.continuations)

    def spans(self, request: "TracedRequest") -> list[SpanData]:
        """All spans, the server's first. In any thread, once nothing is noted any more."""
        end_ns = self.wall_ns + round(request.total_s * 1e9)
        server = SpanData(
            request.name,
            self.parent.trace_id,
            self.span_id,
            self.parent.span_id,
            self.wall_ns,
            end_ns,
            request.role,
            request.attributes,
            request.error,
        )
        return [server, *_Children(self, request, end_ns).spans()]


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """What is known of a request when it is over."""

    name: str
    total_s: float
    attributes: Mapping[str, Attribute]
    error: str | None
    operation: str
    model: str
    role: SpanRole = SpanRole.SERVER


class _Children:
    """Makes the spans below the server's, all of them within its time."""

    def __init__(self, trace: RequestTrace, request: TracedRequest, end_ns: int) -> None:
        self._trace = trace
        self._request = request
        self._end_ns = end_ns
        self._parents = [trace.span_id, *(trace.new_id() for _ in trace.continuations)]

    def spans(self) -> list[SpanData]:
        trace = self._trace
        found = [self._continuation(number) for number in range(1, len(self._parents))]
        for wait in trace.waits:
            error = "not_served" if wait.until_s is None else None
            parent_id = self._parents[wait.continuation]
            found.append(
                self._span("queue", trace.new_id(), parent_id, wait.since_s, wait.until_s, error=error)
            )
        for number, attempt in enumerate(trace.attempts, 1):
            found += self._attempt(number, attempt)
        return found

    def _continuation(self, number: int) -> SpanData:
        """It lasts until the next one, or until the answer's end."""
        trace = self._trace
        after = trace.continuations[number:]
        lost = [each for each in trace.attempts if each.continuation < number and each.trouble is not None]
        facts: dict[str, Attribute] = {names.RETRY_REASON: lost[-1].trouble or ""} if lost else {}
        since_s, until_s = trace.continuations[number - 1], after[0] if after else None
        return self._span("continuation", self._parents[number], trace.span_id, since_s, until_s, facts)

    def _attempt(self, number: int, attempt: AttemptTrace) -> list[SpanData]:
        trace, trailers = self._trace, attempt.trailers
        facts: dict[str, Attribute] = {
            names.OPERATION_NAME: self._request.operation,
            names.PROVIDER_NAME: attempt.kind or names.PROVIDER,
            names.REQUEST_MODEL: self._request.model,
            names.ATTEMPT: number,
            names.DEPLOYMENT: attempt.deployment,
            names.AGENT: attempt.agent,
        }
        before = trace.attempts[number - 2].trouble if number > 1 else None
        if before is not None:
            facts[names.RETRY_REASON] = before
        if attempt.trouble is not None:
            facts[names.TROUBLE] = attempt.trouble
        if attempt.status is not None:
            facts[names.HTTP_STATUS] = attempt.status
        parent_id = self._parents[attempt.continuation]
        times = attempt.opened_s, attempt.ended_s
        span = self._span(
            "attempt", attempt.span_id, parent_id, *times, facts, attempt.trouble, role=SpanRole.CLIENT
        )
        return [span] if trailers is None else [span, self._engine(attempt, span, trailers)]

    def _engine(self, attempt: AttemptTrace, within: SpanData, trailers: Trailers) -> SpanData:
        """As the agent measured it. What its clock says of when is not known, so that as much of the attempt
        is left before it as behind it: the way there and the way back."""
        facts: dict[str, Attribute] = {names.PROVIDER_NAME: attempt.kind or names.PROVIDER}
        for name, value in (
            (names.ENGINE_S, trailers.total_s),
            (names.FIRST_BYTE_S, trailers.first_byte_s),
            (names.GPU_S, trailers.gpu_s),
        ):
            if value is not None:
                facts[name] = value
        facts |= usage_attributes(trailers)
        whole_ns = within.end_ns - within.start_ns
        took_ns = min(whole_ns, max(0, round((trailers.total_s or 0.0) * 1e9)))
        start_ns = within.start_ns + (whole_ns - took_ns) // 2
        trace_id = self._trace.parent.trace_id
        return SpanData(
            "engine",
            trace_id,
            attempt.engine_id,
            attempt.span_id,
            start_ns,
            start_ns + took_ns,
            attributes=facts,
        )

    def _span(
        self,
        name: str,
        span_id: int,
        parent_id: int,
        since_s: float,
        until_s: float | None,
        attributes: Mapping[str, Attribute] | None = None,
        error: str | None = None,
        role: SpanRole = SpanRole.INTERNAL,
    ) -> SpanData:
        start_ns, end_ns = self._ns(since_s), self._end_ns if until_s is None else self._ns(until_s)
        trace_id = self._trace.parent.trace_id
        return SpanData(
            name, trace_id, span_id, parent_id, start_ns, max(start_ns, end_ns), role, attributes or {}, error
        )

    def _ns(self, at_s: float) -> int:
        """As Unix time, within the request's: the event loop's clock counts milliseconds."""
        at_ns = self._trace.wall_ns + round((at_s - self._trace.began_s) * 1e9)
        return min(max(at_ns, self._trace.wall_ns), self._end_ns)


def with_traceparent(headers: tuple[tuple[str, str], ...], traceparent: str) -> tuple[tuple[str, str], ...]:
    """``headers`` with that parent and no other."""
    kept = tuple(field for field in headers if field[0] != TRACEPARENT)
    return (*kept, (TRACEPARENT, traceparent))
