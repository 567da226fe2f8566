"""Spans of jobs. A job is one span, of which each of its runs is a part::

    job chat m                     from its submission to its end, below the request that submitted it
    ├── run chat m                 one run, in one process
    │   ├── queue                  as of any request (:mod:`gateway.observability.request_trace`)
    │   └── attempt
    └── run chat m                 the next one, perhaps in another process after a restart

The trace is that of the request that submitted the job, which the job's ``traceparent`` names; a job without
one has a trace of its own. The other ids follow from the job's. So every process that runs it finds the same
ones, and nothing is kept for them.
"""

import hashlib
import time
from collections.abc import Callable

from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob
from gateway.observability.request_trace import TRACEPARENT, RequestTrace, TracedRequest
from shared.process.tracing import conventions as names
from shared.process.tracing.context import TraceContext, TraceSampler, read_traceparent
from shared.process.tracing.export import SpanExporter
from shared.process.tracing.spans import Attribute, SpanData
from shared.protocol.routes import ANY_ROUTE, need_of_path, route_of


def job_span_id(job_id: str) -> int:
    """The id of the job's own span."""
    return int.from_bytes(_digest(job_id)[16:24]) or 1


class JobTracing:
    """Only there where traces are wanted."""

    def __init__(
        self, sampler: TraceSampler, exporter: SpanExporter, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._sampler = sampler
        self._exporter = exporter
        self._wall_ns = wall_ns

    def begin_run(self, job: NewJob, began_s: float) -> RequestTrace | None:
        """A run begins, at ``began_s`` on the event loop's clock; None: the job's trace is not recorded."""
        above = self._above(job)
        if above is None:
            return None
        parent, new_id = TraceContext(above.trace_id, job_span_id(job.id)), self._sampler.new_span_id
        return RequestTrace(parent, new_id(), began_s, self._wall_ns(), new_id)

    def run_ended(self, trace: RequestTrace, traced: TracedRequest) -> None:
        """A run is over: its spans are made in the thread that sends them."""
        self._exporter.put(trace.span_count, lambda: trace.spans(traced))

    def job_ended(self, job: JobRecord, outcome: JobOutcome) -> None:
        """The job is over; ``job`` is as it was when its last run began."""
        above = self._above(job.new)
        if above is not None:
            end_ns = self._wall_ns()
            self._exporter.put(1, lambda: [_span(job, outcome, above, end_ns)])

    def _above(self, job: NewJob) -> TraceContext | None:
        """The request that submitted it, without a span if the trace begins with the job; None: nothing is
        recorded."""
        given = next((text for name, text in job.headers if name.lower() == TRACEPARENT), None)
        if (parent := read_traceparent(given)) is not None:
            return parent if parent.sampled else None
        return self._sampler.begin(int.from_bytes(_digest(job.id)[:16]))


def _digest(job_id: str) -> bytes:
    return hashlib.sha256(job_id.encode()).digest()


def _span(job: JobRecord, outcome: JobOutcome, above: TraceContext, end_ns: int) -> SpanData:
    new = job.new
    need = need_of_path(new.path)
    operation = names.operation_of(ANY_ROUTE if need is None else route_of(need))
    found: dict[str, Attribute] = {
        names.JOB_ID: job.id,
        names.JOB_STATE: outcome.state.value,
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: new.model,
        names.TENANT: new.tenant,
        names.TIER: new.tier,
        names.ATTEMPTS: job.attempts,
    }
    if outcome.status is not None:
        found[names.HTTP_STATUS] = outcome.status
    if new.group is not None:
        found[names.JOB_GROUP] = new.group
    error = None
    if outcome.state in (JobState.FAILED, JobState.EXPIRED):
        error = str((outcome.error or {}).get("code") or outcome.state.value)
    name, start_ns = f"job {operation} {new.model}", round(job.created_s * 1e9)
    ids = above.trace_id, job_span_id(job.id), above.span_id
    return SpanData(name, *ids, start_ns, max(start_ns, end_ns), attributes=found, error=error)
