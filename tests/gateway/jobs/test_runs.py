"""What becomes of a job after a run: the end, another attempt, or a wait."""

import pytest

from gateway.domain.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineError,
    Forbidden,
    ModelNotFound,
    NoDeployment,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ShuttingDown,
    StreamBroken,
    Unauthenticated,
)
from gateway.domain.jobs import JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.runs import (
    MOST_WAIT_S,
    WAIT_S,
    JobAnswer,
    Publish,
    RetrySettings,
    TryAgain,
    Verdict,
    backoff_s,
    verdict,
)
from gateway.storage.errors import ObjectMissing, ObjectStorageFull
from shared.protocol.errors import ErrorCode

NOW_S = 1000.0
SETTINGS = RetrySettings(attempts=3, first_s=2.0, most_s=100.0)
JSON = (("content-type", "application/json"),)


def after(ended: JobAnswer | Exception, attempts: int = 1, deadline_s: float | None = None) -> Verdict:
    new = NewJob("j", "t", "k", "m", "/v1/completions", ObjectSlice("b"), deadline_s=deadline_s)
    job = JobRecord(1, new, JobState.RUNNING, 0.0, attempts)
    return verdict(job, ended, SETTINGS, NOW_S, lambda: 1.0)


@pytest.mark.parametrize("status", [200, 201, 204, 302])
def test_an_answer_below_400_is_the_result(status: int) -> None:
    end = after(JobAnswer(status, JSON))
    assert isinstance(end, Publish)
    assert end.with_result
    assert (end.outcome.state, end.outcome.status) == (JobState.SUCCEEDED, status)
    assert end.outcome.headers == JSON


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refusal_ends_the_job_with_the_engines_words(status: int) -> None:
    body = b'{"error": {"message": "too long", "code": "too_long", "param": "prompt"}}'
    end = after(JobAnswer(status, JSON, body))
    assert isinstance(end, Publish)
    assert end.with_result
    assert end.outcome.state is JobState.FAILED
    assert end.outcome.error is not None
    assert end.outcome.error["message"] == "too long"
    assert end.outcome.error["code"] == "too_long"
    assert end.outcome.error["param"] == "prompt"


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_other_errors_of_engines_are_tried_again_until_the_last_attempt(status: int) -> None:
    answer = JobAnswer(status, JSON, b"it broke")
    assert after(answer, 1) == TryAgain(2.0, why=f"status_{status}")
    assert after(answer, 2) == TryAgain(4.0, why=f"status_{status}")
    end = after(answer, 3)
    assert isinstance(end, Publish)
    assert end.outcome.state is JobState.FAILED
    assert end.outcome.error is not None
    assert end.outcome.error["message"] == "it broke"
    assert not end.with_result, "its body is in no output"


def test_an_engine_may_ask_for_a_longer_wait() -> None:
    assert after(JobAnswer(429, (("Retry-After", "77"),))) == TryAgain(77.0, why="status_429")
    assert after(JobAnswer(429, (("retry-after", "soon"),))) == TryAgain(2.0, why="status_429")


@pytest.mark.parametrize(
    "error",
    [
        QueueFull("full"),
        NoDeployment("nobody"),
        ModelNotFound("never"),
        ShuttingDown("bye"),
        RateLimited("a minute's worth", kind="requests"),
        ObjectStorageFull("full"),
    ],
)
def test_what_is_in_nobodys_power_is_waited_for_and_is_no_attempt(error: Exception) -> None:
    again = after(error, attempts=99)
    assert isinstance(again, TryAgain)
    assert not again.counts
    assert WAIT_S <= again.after_s <= 2 * MOST_WAIT_S


def test_a_limit_says_how_long_to_wait() -> None:
    again = after(RateLimited("soon", kind="tokens", retry_after_s=20.0))
    assert isinstance(again, TryAgain)
    assert again.after_s == 30.0


def test_what_others_have_reserved_of_a_budget_is_waited_for_and_not_its_renewal() -> None:
    again = after(QuotaExceeded("over", retry_after_s=40_000.0, passing=True), attempts=99)
    assert isinstance(again, TryAgain)
    assert not again.counts
    assert again.after_s == 1.5 * WAIT_S


@pytest.mark.parametrize(
    "error",
    [
        Unauthenticated("revoked"),
        QuotaExceeded("over the budget"),
        RateLimited("larger than the limit", kind="tokens", should_retry=False),
        BadRequest("bad"),
        Forbidden("not this model"),
        ObjectMissing("gone"),
    ],
)
def test_what_no_attempt_would_change_ends_the_job(error: Exception) -> None:
    end = after(error)
    assert isinstance(end, Publish)
    assert end.outcome.state is JobState.FAILED
    assert not end.with_result
    assert end.outcome.error is not None
    assert end.outcome.error["message"]


@pytest.mark.parametrize(
    "error",
    [
        EngineError("gone"),
        StreamBroken(ErrorCode.SESSION_LOST, "lost"),
        DeadlineExceeded("slow"),
        KeyError("x"),
    ],
)
def test_broken_runs_are_tried_again_until_the_last_attempt(error: Exception) -> None:
    again = after(error, 2)
    assert isinstance(again, TryAgain)
    assert again.counts
    end = after(error, 3)
    assert isinstance(end, Publish)
    assert end.outcome.state is JobState.FAILED


def test_a_job_whose_deadline_has_come_expires() -> None:
    end = after(NoDeployment("nobody"), deadline_s=NOW_S)
    assert isinstance(end, Publish)
    assert end.outcome.state is JobState.EXPIRED


def test_the_wait_is_a_random_part_of_a_bound_that_doubles() -> None:
    bounds = [backoff_s(attempts, SETTINGS, lambda: 1.0) for attempts in range(1, 9)]
    assert bounds == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0, 100.0]
    assert backoff_s(5, SETTINGS, lambda: 0.0) == 0.0
    assert backoff_s(10_000, SETTINGS, lambda: 0.5) == 50.0


@pytest.mark.parametrize(
    ("body", "words"),
    [(b'{"error": "plain"}', "plain"), (b'{"message": "flat"}', "flat"), (b"", "status 418"), (b"[]", "[]")],
)
def test_words_are_found_in_whatever_engines_say(body: bytes, words: str) -> None:
    end = after(JobAnswer(418, (), body))
    assert isinstance(end, Publish)
    assert end.outcome.error is not None
    assert words in str(end.outcome.error["message"])
