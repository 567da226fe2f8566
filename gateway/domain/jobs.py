"""Jobs: requests without a client attached, whose state outlives every process. Plain data, and which states
follow which."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shared.process.frozen import frozen
from shared.protocol.progress import Progress


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """The engine answered with a status below 400."""
    FAILED = "failed"
    """The engine refused the request, or its attempts are used up."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its deadline came first."""

    @property
    def is_final(self) -> bool:
        return self in FINAL


FINAL = frozenset((JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED))

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset((JobState.RUNNING, JobState.CANCELLED, JobState.EXPIRED)),
    JobState.RUNNING: frozenset((JobState.QUEUED, *FINAL)),
    JobState.FAILED: frozenset((JobState.QUEUED,)),
    JobState.SUCCEEDED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}
"""What follows what. A running job is queued again when its lease runs out or an attempt came to nothing; a
failed one when somebody asks for another try."""


@frozen
class ObjectSlice:
    """Bytes of an object, from ``start`` up to ``stop``; None: to its end."""

    name: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """What is submitted. Times are seconds since 1970."""

    id: str
    tenant: str
    key_id: str
    model: str
    path: str
    """As on the surface: ``/v1/chat/completions``, ``/engines/m/render``."""
    body: ObjectSlice
    headers: tuple[tuple[str, str], ...] = ()
    """Those of the request that an engine or a limit looks at, in order; never credentials."""
    tier: str = "batch"
    deadline_s: float | None = None
    not_before_s: float = 0.0
    group: str | None = None
    """A batch that it belongs to."""
    custom_id: str | None = None
    """The client's name for it inside its group; never used to find it."""
    webhook: str | None = None
    predicted_s: float | None = None
    """How long it will run, as the cost model says."""
    predicted_cost: float | None = None
    metadata: Mapping[str, str] | None = None
    """The client's own notes."""


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """What the cost model says of a request; None where nothing is known."""

    seconds: float | None = None
    """How long it will run, from its slot to its end."""
    cost: float | None = None
    """In what prices are in."""


@dataclass(frozen=True, slots=True)
class JobLease:
    """Who runs a job. Whoever publishes its result must still have this ``generation``."""

    process: str
    incarnation: int
    generation: int


@dataclass(frozen=True, slots=True)
class NewLease:
    """Who runs a job from its submission on."""

    process: str
    incarnation: int
    lease_s: float
    asked_s: float = 0.0
    """When it was asked for, on the clock of the process itself."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended."""

    state: JobState
    status: int | None = None
    """The HTTP status of the engine's answer; None: it gave none."""
    headers: tuple[tuple[str, str], ...] = ()
    result: str | None = None
    """The object that holds the answer's body."""
    result_bytes: int = 0
    error: Mapping[str, object] | None = None
    """As on the OpenAI surface: type, code, message, param."""
    event: str | None = None
    """The webhook event that tells of it, where the state does not say which: ``response.incomplete``. It is
    not kept with the job."""


@dataclass(frozen=True, slots=True)
class JobNote:
    """How far a run has come, for people to see."""

    job_id: str
    lease: JobLease
    progress: Progress
    """Its preview is left out where the store has it."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as it is. Times are seconds since 1970."""

    number: int
    """In the order of submission."""
    new: NewJob
    state: JobState
    created_s: float
    attempts: int = 0
    """Begun so far."""
    lease: JobLease | None = None
    """The latest; it counts only while the job runs."""
    cancelling: bool = False
    """Somebody wants it to end; whoever runs it ends it."""
    progress: float | None = None
    """From 0 to 1."""
    progress_text: str | None = None
    started_s: float | None = None
    """When its first attempt began."""
    finished_s: float | None = None
    kept_until_s: float | None = None
    """Then the job goes, with its result."""
    outcome: JobOutcome | None = None
    previews: int = 0
    """How often there was a newer preview of its answer; the newest is kept while the job runs."""

    @property
    def id(self) -> str:
        return self.new.id
