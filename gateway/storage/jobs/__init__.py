"""Jobs in the store (:mod:`gateway.domain.jobs`): submitted, claimed by whoever runs them, and their ends."""

from gateway.storage.jobs.claims import JobClaim, JobClaims, RenewedLeases
from gateway.storage.jobs.store import (
    JobBounds,
    JobStore,
    QueuedWork,
    ResultsFull,
    Submission,
    TooManyJobs,
)
from gateway.storage.submissions import IdempotencyConflict

__all__ = [
    "IdempotencyConflict",
    "JobBounds",
    "JobClaim",
    "JobClaims",
    "JobStore",
    "QueuedWork",
    "RenewedLeases",
    "ResultsFull",
    "Submission",
    "TooManyJobs",
]
