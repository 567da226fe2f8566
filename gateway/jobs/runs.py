"""One run of a job, and what follows from how it ended. Pure, but for the jitter that is handed in."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.domain.errors import (
    BuffersFull,
    DeadlineExceeded,
    EngineBusy,
    IssuerUnavailable,
    ModelNotFound,
    NoDeployment,
    Overloaded,
    QueueFull,
    QueueTimeout,
    QuotaExceeded,
    RateLimited,
    RequestError,
    ShuttingDown,
    StateUnavailable,
    StreamBroken,
)
from gateway.domain.jobs import JobOutcome, JobRecord, JobState
from gateway.jobs.output import OutputProgress, PartialOutput
from gateway.storage.errors import ObjectMissing, StateError
from shared.protocol.progress import Progress

TRIED_AGAIN = frozenset((408, 409, 425, 429))
"""Statuses below 500 after which an engine may say something else."""

WAIT_S = 2.0
"""A job that only was in others' way comes again after so long, or when the error says."""

MOST_WAIT_S = 60.0

WORDS_CHARS = 1000
"""As much of an engine's words is kept in a job's error."""

EXPECTED = (RequestError, StreamBroken, StateError)
"""What a run may raise; anything else is a fault of the gateway's."""

EXPIRED: Mapping[str, object] = {
    "type": "timeout_error",
    "code": "deadline_exceeded",
    "message": "The job's deadline came before its end.",
    "param": None,
}

_WAITS = (
    QueueFull,
    QueueTimeout,
    EngineBusy,
    NoDeployment,
    ModelNotFound,
    ShuttingDown,
    BuffersFull,
    Overloaded,
    StateUnavailable,
    IssuerUnavailable,
)
"""Nothing is wrong with the job, and no engine has worked on it."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """When a job is tried again."""

    attempts: int = 4
    """At the most, those included that ended without a word."""
    first_s: float = 2.0
    """The mean wait before the second attempt is half of it; it doubles."""
    most_s: float = 600.0


@dataclass(frozen=True, slots=True)
class JobRun:
    """A job that is this process's, and where its answer goes."""

    job: JobRecord
    output: PartialOutput
    kept: OutputProgress | None = None
    """What earlier runs have of its answer."""
    answering: Callable[[], None] = lambda: None
    """To be called when its engine begins to answer."""
    progress: Callable[[Progress], None] = lambda progress: None
    """To be called with how far its engine is, where it says so."""
    given_up: Callable[[], bool] = lambda: False
    """Whether it is ended here for another run to go on with."""


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """What an engine answered. Below 400, and where it is final, its body is in the run's output."""

    status: int
    headers: tuple[tuple[str, str], ...]
    refusal: bytes = b""
    """The body of an answer from 400 on, as much as is kept of it."""

    @property
    def is_final(self) -> bool:
        """No other attempt would be answered otherwise."""
        return self.status < 500 and self.status not in TRIED_AGAIN


RunJob = Callable[[JobRun], Awaitable[JobAnswer]]
"""Has a job answered by an engine. Raises RequestError, StreamBroken, StateError."""


@dataclass(frozen=True, slots=True)
class Publish:
    """The job has ended."""

    outcome: JobOutcome
    with_result: bool = False
    """The output is the result."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """It is queued again."""

    after_s: float
    counts: bool = True
    """As an attempt."""
    why: str = ""


Verdict = Publish | TryAgain


def verdict(
    job: JobRecord,
    ended: JobAnswer | Exception,
    settings: RetrySettings,
    now_s: float,
    jitter: Callable[[], float],
) -> Verdict:
    """What becomes of ``job`` after a run that ``ended`` so. ``jitter`` gives numbers from 0 to 1."""
    if isinstance(ended, JobAnswer):
        return _of_answer(job, ended, settings, jitter)
    late = job.new.deadline_s is not None and now_s >= job.new.deadline_s
    if late:
        return Publish(JobOutcome(JobState.EXPIRED, error=error_of(ended)))
    if _must_wait(ended):
        wait_s = WAIT_S
        if isinstance(ended, QuotaExceeded):
            pass  # it says when the budget is renewed; what is reserved of it, anywhere, comes free sooner
        elif isinstance(ended, RequestError) and ended.retry_after_s is not None:
            wait_s = min(max(wait_s, ended.retry_after_s), MOST_WAIT_S)
        return TryAgain(wait_s * (1.0 + 0.5 * jitter()), counts=False, why=_code(ended))
    if _is_final(ended) or job.attempts >= settings.attempts:
        status = ended.status if isinstance(ended, RequestError) else None
        return Publish(JobOutcome(JobState.FAILED, status, error=error_of(ended)))
    return TryAgain(backoff_s(job.attempts, settings, jitter), why=_code(ended))


def log_fields(job: JobRecord, result: Verdict) -> tuple[str, dict[str, object]]:
    """The event that tells of a run's end in the log, and its fields."""
    fields: dict[str, object] = {"job": job.id, "model": job.new.model}
    if isinstance(result, TryAgain):
        attempts = job.attempts - (not result.counts)
        again = {"after_s": round(result.after_s, 2), "attempts": attempts, "reason": result.why}
        return "job_queued_again", fields | again
    outcome = result.outcome
    code = None if outcome.error is None else outcome.error.get("code")
    fields |= {"state": outcome.state.value, "attempts": job.attempts}
    fields |= {} if outcome.status is None else {"status": outcome.status}
    return "job_ended", fields | ({} if code is None else {"error": code})


def _of_answer(
    job: JobRecord, answer: JobAnswer, settings: RetrySettings, jitter: Callable[[], float]
) -> Verdict:
    if answer.status < 400:
        return Publish(JobOutcome(JobState.SUCCEEDED, answer.status, answer.headers), with_result=True)
    if not answer.is_final and job.attempts < settings.attempts:
        after_s = max(backoff_s(job.attempts, settings, jitter), _retry_after_s(answer.headers))
        return TryAgain(after_s, why=f"status_{answer.status}")
    error = error_of_answer(answer)
    outcome = JobOutcome(JobState.FAILED, answer.status, answer.headers, error=error)
    return Publish(outcome, with_result=answer.is_final)


def backoff_s(attempts: int, settings: RetrySettings, jitter: Callable[[], float]) -> float:
    """Before the next of so many attempts: full jitter below a bound that doubles."""
    bound_s = min(settings.most_s, settings.first_s * 2.0 ** min(attempts - 1, 30))
    return bound_s * jitter()


def _must_wait(error: Exception) -> bool:
    if isinstance(error, ObjectMissing):
        return False
    if isinstance(error, RateLimited):
        return error.should_retry is not False
    if isinstance(error, QuotaExceeded):
        return error.passing
    return isinstance(error, (*_WAITS, StateError))


def _is_final(error: Exception) -> bool:
    """Whether another attempt would end alike."""
    if isinstance(error, ObjectMissing | QuotaExceeded | RateLimited):
        return True
    if isinstance(error, DeadlineExceeded):
        return False
    return isinstance(error, RequestError) and error.status < 500 and error.status not in TRIED_AGAIN


def error_of(error: Exception) -> Mapping[str, object]:
    """As on the OpenAI surface."""
    if isinstance(error, RequestError):
        found: Mapping[str, object] = error.openai_body()["error"]
        return found
    if isinstance(error, StreamBroken):
        return _error("engine_failed", error.reason)
    if isinstance(error, ObjectMissing):
        return _error("body_missing", "The request's body is no more: the file that it was in was deleted.")
    return _error("internal_error", "The gateway failed on the job; its log has the reason.")


def error_of_answer(answer: JobAnswer) -> Mapping[str, object]:
    """The engine's own words, as far as they can be read."""
    with contextlib.suppress(orjson.JSONDecodeError):
        body = orjson.loads(answer.refusal)
        error = body.get("error", body) if isinstance(body, dict) else None
        if isinstance(error, dict):
            message = error.get("message") or error.get("detail")
            if isinstance(message, str):
                return _error(_word(error.get("code")) or "engine_refused", message, error.get("param"))
        if isinstance(error, str):
            return _error("engine_refused", error)
    words = answer.refusal[:WORDS_CHARS].decode("utf-8", "replace").strip()
    return _error("engine_refused", words or f"The engine answered with status {answer.status}.")


def _error(code: str, message: str, param: Any = None) -> Mapping[str, object]:
    kind = "server_error" if code != "engine_refused" else "engine_error"
    return {
        "type": kind,
        "code": code,
        "message": message[:WORDS_CHARS],
        "param": param if isinstance(param, str) else None,
    }


def _word(code: object) -> str | None:
    return code[:64] if isinstance(code, str) and code else None


def _code(error: Exception) -> str:
    if isinstance(error, RequestError):
        return error.code
    return type(error).__name__


def _retry_after_s(headers: tuple[tuple[str, str], ...]) -> float:
    """As the engine asks; 0 where it does not."""
    text = next((value for name, value in headers if name.lower() == "retry-after"), "")
    return min(float(text), 3600.0) if text.isdigit() else 0.0
