"""Background responses of OpenAI's Responses API: jobs whose engines stream the events of one response.

What an engine streams is kept as it came, so that it can be gone on with; here it becomes what clients read:
events under numbers of the gateway's, in which the response has the id of its job.

==============================  =============================================================================
number                          event
==============================  =============================================================================
0, 1                            ``response.created`` and ``response.queued``
2 and up                        the engine's, in order, but for its own announcements of these two
``since * NUMBERS_EACH`` and    the same of an answer that began in a later generation, ``since``, than the
up                              first: ``response.created``, and from the second number after it on the rest
==============================  =============================================================================

So a number means the same event to every reader, at any gateway, and nothing of two answers is ever mixed.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from gateway.domain.jobs import JobOutcome, JobRecord, JobState
from gateway.domain.json_members import with_members
from gateway.domain.webhooks import RESPONSE_ID
from shared.process.server_sent_events import each_event

if TYPE_CHECKING:  # its library is loaded at the first use
    from gateway.storage.objects import ObjectStore

RESPONSES = "/v1/responses"
ENDS = ("response.completed", "response.incomplete", "response.failed")
"""Events that are the last of a response and hold all of it."""
NUMBERS_EACH = 1_000_000
"""Numbers of one answer; another one of the same job has others."""
END_BYTES = 16 * 1024 * 1024
"""The longest event that is read."""

_TAIL_BYTES = 256 * 1024
"""Nearly every last event is within so much of the end."""
_ANNOUNCED = ("response.created", "response.queued")
_FIRST = 2
_FOR_ENGINE: Mapping[str, bytes] = {"background": b"false", "stream": b"true", "store": b"false"}

Json = dict[str, Any]


def new_response_id() -> str:
    return RESPONSE_ID + secrets.token_hex(24)


def engine_body(body: bytes) -> bytes:
    """A request as its engine gets it: streamed, in the foreground, and stored here only. ``body`` is
    an object that has the member ``background``. Raises BadRequest for more than anybody means."""
    return with_members(body, _FOR_ENGINE)


# --- The object ---

Asked = Mapping[str, Any]
"""Members of the request, as far as they are known."""

_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": (),
    "top_logprobs": None,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""Members of a response that say again what was asked for, and what they are where nothing was."""

_STATUS: Mapping[JobState, str] = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "failed",
}
_CODES = ("server_error", "rate_limit_exceeded", "invalid_prompt")
_LOST: Mapping[str, object] = {
    "code": "server_error",
    "message": "The engine's answer ended before the event that holds the whole response.",
}


def response_object(job: JobRecord, asked: Asked, status: str | None = None) -> Json:
    """A response of which no engine has told the whole: of the ``status``, else as the job is."""
    status = status or _STATUS[job.state]
    given = {name: asked.get(name) for name in _ECHOED}
    echoed = {name: _ECHOED[name] if value is None else value for name, value in given.items()}
    return {
        "id": job.id,
        "object": "response",
        "created_at": int(job.created_s),
        "status": status,
        "background": True,
        "completed_at": None,
        "error": _error_of(job) if status == "failed" else None,
        "incomplete_details": None,
        **echoed,
        "metadata": dict(job.new.metadata or {}),
        "model": job.new.model,
        "output": [],
        "store": True,
        "usage": None,
    }


def own_response(job: JobRecord, engines: Mapping[str, Any]) -> Json:
    """A response as its engine tells it, made the job's."""
    found = {**engines, "id": job.id, "created_at": int(job.created_s), "background": True, "store": True}
    if not found.get("metadata"):
        found["metadata"] = dict(job.new.metadata or {})
    return found


def final_response(job: JobRecord, asked: Asked, end: Mapping[str, Any] | None) -> Json:
    """Of a job that has ended. ``end``: :func:`response_end` of its outcome."""
    if job.state is not JobState.SUCCEEDED:
        return response_object(job, asked)
    return response_object(job, asked, "failed") if end is None else own_response(job, end)


def _error_of(job: JobRecord) -> Json:
    """As OpenAI's objects have it: of the codes that their type names."""
    outcome = job.outcome
    said = _LOST if outcome is None or outcome.error is None else outcome.error
    code, status = said.get("code"), None if outcome is None else outcome.status
    if code not in _CODES:
        refused = status is not None and 400 <= status < 500
        code = "rate_limit_exceeded" if status == 429 else "invalid_prompt" if refused else "server_error"
    return {"code": code, "message": str(said.get("message") or "The response failed.")}


# --- The events ---


class NumberedEvents:
    """Makes events for one reader of a job's answer, who has those up to the number ``after``."""

    def __init__(self, job: JobRecord, asked: Asked, after: int = -1) -> None:
        self.ended = False
        """The event that ends the response is read, whoever has it."""
        self._job = job
        self._asked = asked
        self._after = after
        self._number = -1
        """Of the last event there is."""

    def announced(self) -> bytes:
        """The first two events."""
        return b"".join(
            self._written(number, kind, self._of_ours("queued")) for number, kind in enumerate(_ANNOUNCED)
        )

    def begin(self, since: int) -> bytes:
        """The answer begins at zero in the generation ``since`` of its job."""
        base = 0 if since <= 1 else since * NUMBERS_EACH
        self.ended = False
        out = b"" if not base else self._written(base, _ANNOUNCED[0], self._of_ours("in_progress"))
        self._number = base + _FIRST - 1
        return out

    def read(self, data: bytes) -> bytes:
        """The events of an engine's, which are whole in ``data``."""
        out = []
        for event in each_event(data):
            value = event.value()
            kind = None if value is None else value.get("type")
            if value is None or not isinstance(kind, str) or kind in _ANNOUNCED or self.ended:
                continue
            response = value.get("response")
            if isinstance(response, dict):
                value["response"] = own_response(self._job, response)
            if isinstance(value.get("response_id"), str):
                value["response_id"] = self._job.id
            self.ended = kind in ENDS
            out.append(self._written(self._number + 1, kind, value))
        return b"".join(out)

    def close(self, response: Json) -> bytes:
        """The end of a response that no engine has told: with one of ours."""
        kind = f"response.{response['status']}"
        self._number = max(self._number, self._after)
        self.ended = True
        return self._written(
            self._number + 1, kind if kind in ENDS else "response.failed", {"response": response}
        )

    def _of_ours(self, status: str) -> Json:
        return {"response": response_object(self._job, self._asked, status)}

    def _written(self, number: int, kind: str, value: Mapping[str, Any]) -> bytes:
        self._number = number
        if number <= self._after:
            return b""
        told = {**value, "type": kind, "sequence_number": number}
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(told))


# --- The end ---


def is_streamed(outcome: JobOutcome) -> bool:
    """Whether its result is an engine's events."""
    return any(name == "content-type" and "event-stream" in value for name, value in outcome.headers)


async def response_end(objects: "ObjectStore", outcome: JobOutcome) -> Json | None:
    """The whole response as its engine told it last; None: it did not. Reads no more than ``END_BYTES``.
    Raises StateError."""
    if outcome.result is None or outcome.state is not JobState.SUCCEEDED:
        return None
    size_bytes = outcome.result_bytes
    if not is_streamed(outcome):
        whole = size_bytes <= END_BYTES
        return _value_of(await objects.read_bytes(outcome.result, END_BYTES)) if whole else None
    for tail_bytes in (_TAIL_BYTES, END_BYTES):
        start = max(0, size_bytes - tail_bytes)
        data = b"".join([piece async for piece in objects.read(outcome.result, start)])
        found = await asyncio.to_thread(_last_response, data)
        if found is not None or not start:
            return found
    return None


def end_event(end: Mapping[str, Any] | None) -> str | None:
    """The webhook event that tells of a response which ended so, where that is not success."""
    status = "failed" if end is None else end.get("status")
    return f"response.{status}" if status in ("failed", "incomplete") else None


def _last_response(data: bytes) -> Json | None:
    found = None
    for event in each_event(data):
        if event.data is not None and any(kind.encode() in event.data for kind in ENDS):
            value = event.value() or {}
            if value.get("type") in ENDS and isinstance(value.get("response"), dict):
                found = value["response"]
    return found


def _value_of(data: bytes) -> Json | None:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
