"""Lines of the files that a batch writes, as OpenAI's Batch API has them. Pure."""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.domain.batches import BatchUsage
from gateway.domain.jobs import JobRecord, JobState

EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}
CANCELLED = {
    "code": "batch_cancelled",
    "message": "The batch was cancelled before this request was executed.",
}
RESULT_GONE = {"code": "result_missing", "message": "The answer to this request is gone."}
RESULT_TOO_LONG = {
    "code": "result_too_long",
    "message": "The answer to this request is too long for a line; the job of this id has it.",
}

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def without_line_ends(json: bytes) -> bytes:
    """The same JSON in one line: between its tokens a line end is a blank, and in strings there is none."""
    return json.translate(_LINE_ENDS)


def error_line(job: JobRecord, error: Mapping[str, object]) -> bytes:
    """Of a request that has no answer."""
    said = {"code": error.get("code"), "message": error.get("message")}
    line = {"id": job.id, "custom_id": job.new.custom_id, "response": None, "error": said}
    return orjson.dumps(line) + b"\n"


def ending_error(job: JobRecord, *, late: bool) -> Mapping[str, object]:
    """Why a job without an answer has none. ``late``: what was not executed was so because the batch ran
    out."""
    if job.state is JobState.EXPIRED or (late and job.state is JobState.CANCELLED):
        return EXPIRED
    if job.state is JobState.CANCELLED:
        return CANCELLED
    error = None if job.outcome is None else job.outcome.error
    return error or {"code": "server_error", "message": "This request failed."}


def answer_head(job: JobRecord, status: int) -> bytes:
    """What stands before the body in the line of an answer; :data:`ANSWER_TAIL` stands behind it."""
    headers = {} if job.outcome is None else {name.lower(): value for name, value in job.outcome.headers}
    said = {"status_code": status, "request_id": headers.get("x-request-id", job.id)}
    line = {"id": job.id, "custom_id": job.new.custom_id, "response": said}
    return orjson.dumps(line).removesuffix(b"}}") + b',"body":'


ANSWER_TAIL = b'},"error":null}\n'


def answer_body(content: bytes) -> tuple[bytes, BatchUsage | None]:
    """The body as JSON in one line, and what it says of its usage. What is no JSON becomes a string."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return orjson.dumps(content.decode(errors="replace")), None
    usage = value.get("usage") if isinstance(value, dict) else None
    return without_line_ends(content), usage_of(usage) if isinstance(usage, dict) else None


def usage_of(usage: Mapping[str, Any]) -> BatchUsage:
    """Of the routes that call them prompt and completion tokens, and of those that say input and output."""
    inputs, outputs = ("input", "output") if "input_tokens" in usage else ("prompt", "completion")
    return BatchUsage(
        _count(usage, f"{inputs}_tokens"),
        _count(usage, f"{outputs}_tokens"),
        _count(usage.get(f"{inputs}_tokens_details"), "cached_tokens"),
        _count(usage.get(f"{outputs}_tokens_details"), "reasoning_tokens"),
    )


def _count(value: Any, name: str) -> int:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, int) and found > 0 else 0
