"""Replies carry whole lines or characters, and any bytes."""

import base64
import json

import pytest

from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.domain.queues import PendingReply, QueueOrigin, ReplyPlan
from gateway.jobs.queues.reply_bodies import OUTPUT_BYTES, cut, output_body, restart_body, result_body

REPLY = PendingReply(1, "job-1", QueueOrigin("orders", "7", "answers"), ReplyPlan(), 0, 1, None)
NEW = NewJob("job-1", "t", "k", "m", "/v1/chat/completions", ObjectSlice("b"))


@pytest.mark.parametrize(
    ("data", "is_last", "size"),
    [
        (b"", True, 0),
        (b"data: 1\n\ndata:", False, 9),
        (b"data: 1\n\ndata:", True, 14),
        (b"data:", False, 0),
        (b"a" * OUTPUT_BYTES, False, OUTPUT_BYTES),
        (b"a" * (OUTPUT_BYTES - 1) + "ä".encode(), False, OUTPUT_BYTES - 1),
        (b"a" * (OUTPUT_BYTES + 5), True, OUTPUT_BYTES),
        (b"\xff" * (OUTPUT_BYTES + 5), False, OUTPUT_BYTES),
        (b"a\n" + b"a" * OUTPUT_BYTES, False, 2),
    ],
)
def test_answers_are_cut_behind_lines_and_characters(data: bytes, is_last: bool, size: int) -> None:
    assert cut(data, is_last=is_last) == size


def test_parts_say_where_they_belong() -> None:
    head = {"id": "7", "job": "job-1", "sequence": 2}
    assert json.loads(output_body(REPLY, 2, 5, b"ab")) == head | {"type": "output", "offset": 5, "data": "ab"}
    binary = json.loads(output_body(REPLY, 2, 5, b"\xff"))
    assert base64.b64decode(binary["data_base64"]) == b"\xff"
    assert json.loads(restart_body(REPLY, 2)) == head | {"type": "restart"}


@pytest.mark.parametrize(
    ("kind", "answer", "said"),
    [
        ("application/json", b'{"a": 1}', {"body": {"a": 1}}),
        ("application/json", b"{", {"body": "{"}),
        ("application/json", b"[" * 500 + b"]" * 500, {"body": "[" * 500 + "]" * 500}),
        ("text/plain", b"x", {"body": "x"}),
        ("image/png", b"\x89", {"body_base64": "iQ=="}),
        ("text/plain", None, {"result": "/v1/jobs/job-1/result"}),
    ],
)
def test_the_last_reply_has_the_answer_as_it_can_be_read(
    kind: str, answer: bytes | None, said: dict[str, object]
) -> None:
    outcome = JobOutcome(JobState.SUCCEEDED, 200, (("Content-Type", kind),), "r", 9)
    job = JobRecord(1, NEW, JobState.SUCCEEDED, 1.0, outcome=outcome)
    assert json.loads(result_body(REPLY, 1, job, answer)) == {
        "id": "7",
        "job": "job-1",
        "sequence": 1,
        "type": "result",
        "status": "succeeded",
        "http_status": 200,
        "error": None,
        "body_bytes": 9,
        **said,
    }
