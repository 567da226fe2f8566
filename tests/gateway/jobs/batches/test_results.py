"""Lines of results are OpenAI's, and each is one line."""

import orjson
import pytest

from gateway.domain.batches import BatchUsage
from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.batches.results import (
    ANSWER_TAIL,
    answer_body,
    answer_head,
    ending_error,
    error_line,
    usage_of,
)


def job(state: JobState, outcome: JobOutcome | None = None) -> JobRecord:
    new = NewJob("batch_req_1_1", "t", "k", "m", "/v1/x", ObjectSlice("b"), custom_id='a"b')
    return JobRecord(1, new, state, 0.0, outcome=outcome)


@pytest.mark.parametrize(
    ("content", "body"),
    [
        (b'{\n  "a": 1.50,\r\n "b": "x\\ny"}\n', {"a": 1.5, "b": "x\ny"}),
        (b"Internal\nServer Error", "Internal\nServer Error"),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_an_answer_is_a_line(content: bytes, body: object) -> None:
    outcome = JobOutcome(JobState.SUCCEEDED, 200, (("X-Request-Id", "req-7"),))
    whole = job(JobState.SUCCEEDED, outcome)
    line = answer_head(whole, 200) + answer_body(content)[0] + ANSWER_TAIL
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert orjson.loads(line) == {
        "id": "batch_req_1_1",
        "custom_id": 'a"b',
        "response": {"status_code": 200, "request_id": "req-7", "body": body},
        "error": None,
    }


@pytest.mark.parametrize(
    ("state", "late", "code"),
    [
        (JobState.EXPIRED, False, "batch_expired"),
        (JobState.CANCELLED, True, "batch_expired"),
        (JobState.CANCELLED, False, "batch_cancelled"),
        (JobState.FAILED, True, "engine_failed"),
    ],
)
def test_what_has_no_answer_says_why(state: JobState, late: bool, code: str) -> None:
    ended = job(state, JobOutcome(state, error={"code": "engine_failed", "message": "no", "type": "x"}))
    line = orjson.loads(error_line(ended, ending_error(ended, late=late)))
    assert (line["response"], line["error"]["code"]) == (None, code)
    assert set(line["error"]) == {"code", "message"}


def test_usage_is_read_as_each_route_says_it() -> None:
    chat = {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert usage_of(chat) == BatchUsage(7, 5, 4, 2)
    assert usage_of({"input_tokens": 7, "output_tokens": 5, "input_tokens_details": None}) == BatchUsage(7, 5)
    assert usage_of({"prompt_tokens": 7, "total_tokens": 7}) == BatchUsage(7)
    assert usage_of({"prompt_tokens": "7"}) == BatchUsage()
    assert answer_body(b'{"usage":{"prompt_tokens":1}}')[1] == BatchUsage(1)
    assert answer_body(b'{"usage":3}')[1] is None
