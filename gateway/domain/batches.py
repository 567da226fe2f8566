"""Batches: files of requests that are answered by and by, as OpenAI's Batch API has them. Plain data, and
which states follow which."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.domain.files import MIB

MOST_LINES = 50_000
MOST_INPUT_BYTES = 200 * MIB
MOST_ERRORS = 100
"""Errors of a file that are kept; whoever has more of them begins with these."""
METADATA_ENTRIES, METADATA_NAME_CHARS, METADATA_VALUE_CHARS = 16, 64, 512

WINDOW_KEY, TRY_ANYWAY = "trunkline_window", "try"
"""The entry of its metadata by which a batch is begun although it is predicted to take longer than its
window. Every SDK can send metadata, and it is seen at the batch."""

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/moderations",
)
"""What a batch may ask for: what takes JSON and is served by engines."""


class BatchState(StrEnum):
    """Where a batch is, in OpenAI's words."""

    VALIDATING = "validating"
    """Its file is being read; nothing runs yet."""
    FAILED = "failed"
    """Its file is no good; nothing of it ran."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """Every line has ended; its files are being written."""
    COMPLETED = "completed"
    EXPIRED = "expired"
    """Its time was over before every line had ended."""
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED_BATCHES = frozenset((BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED))

TRANSITIONS: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.VALIDATING: frozenset((BatchState.FAILED, BatchState.IN_PROGRESS, BatchState.CANCELLED)),
    BatchState.IN_PROGRESS: frozenset((BatchState.FINALIZING, BatchState.CANCELLING)),
    BatchState.CANCELLING: frozenset((BatchState.CANCELLED,)),
    BatchState.FINALIZING: frozenset((BatchState.COMPLETED, BatchState.EXPIRED)),
    **dict.fromkeys(ENDED_BATCHES, frozenset[BatchState]()),
}
"""What follows what. One that is cancelled while its file is read has nothing to wait for."""

CANCELLABLE = frozenset((BatchState.VALIDATING, BatchState.IN_PROGRESS))


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What is asked for. Times are seconds since 1970."""

    id: str
    tenant: str
    key_id: str
    principal: Mapping[str, object]
    """Who asks for it (:func:`gateway.jobs.principals.principal_of`)."""
    endpoint: str
    input_file_id: str
    completion_window: str
    created_s: float
    expires_s: float
    """The end of its window."""
    metadata: Mapping[str, str] | None = None
    webhook: str | None = None
    output_kept_s: float | None = None
    """How long its output files are kept; None: as long as others of batches."""

    def line_id(self, line: int) -> str:
        """The id of the job of a line, counted from 1. It names a line for good: none can be two jobs."""
        return f"batch_req_{self.id.removeprefix('batch_')}_{line}"


@dataclass(frozen=True, slots=True)
class BatchError:
    """What is wrong with the file of a batch."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def to_dict(self) -> dict[str, object]:
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


@dataclass(frozen=True, slots=True)
class BatchUsage:
    """Tokens of all its answers together."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def to_dict(self) -> dict[str, object]:
        """As on the OpenAI surface."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


@dataclass(frozen=True, slots=True)
class BatchCounts:
    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class BatchLease:
    """Who works on a batch. Whatever it writes counts only while the batch has this ``generation``."""

    process: str
    generation: int


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as it is. Times are seconds since 1970."""

    number: int
    """In the order of creation."""
    new: NewBatch
    state: BatchState
    total: int = 0
    """Lines, known once its file was read."""
    submitted: int = 0
    """Lines that are jobs by now."""
    read_bytes: int = 0
    """Where the first line begins that is none."""
    model: str | None = None
    errors: tuple[Mapping[str, object], ...] = ()
    counts: BatchCounts = BatchCounts()
    """Of one that has ended; else what is known of its jobs is newer."""
    usage: Mapping[str, object] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    times: Mapping[BatchState, float] = field(default_factory=dict)
    """When it came to each state."""
    lease: BatchLease | None = None
    """The latest."""

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_BATCHES

    @property
    def is_submitted(self) -> bool:
        """Every line is a job."""
        return self.state is not BatchState.VALIDATING and self.submitted >= self.total
