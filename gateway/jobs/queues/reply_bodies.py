"""What replies say. Pure: the same reply is the same bytes whenever it is made.

Every reply is a JSON object with ``id`` (the message's), ``job``, ``sequence`` (1, 2, …) and ``type``:

==========  ==========================================================================================
``output``  bytes of the answer while it is written: ``data`` (text) or ``data_base64``, and the ``offset``
            where they belong: what was sent before from there on is void
``restart`` the answer begins anew: what was sent of it so far is void
``result``  the last one: ``status``, ``http_status``, ``error``, and the answer unless it was sent as output
==========  ==========================================================================================
"""

import base64
import re
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.domain.jobs import JobOutcome, JobRecord
from gateway.domain.queues import PendingReply
from shared.process.server_sent_events import last_event_end

OUTPUT_BYTES = 40 * 1024
"""Of an answer in one reply. As JSON it has six times as many at the most, so it fits into 256 KiB."""
_UTF8_MOST = 4
_EVENT = re.compile(rb"(data|event|id|retry)?:")
"""How an event of an event stream begins."""


def cut(data: bytes, *, is_last: bool) -> int:
    """How many of these bytes of an answer go into the next reply: whole events of an event stream, else
    whole lines, else whole characters. 0: wait for more, unless these ``is_last``, the answer's last ones."""
    some = data[:OUTPUT_BYTES]
    if is_last and len(data) <= OUTPUT_BYTES:
        return len(data)
    if _EVENT.match(some):
        events = last_event_end(some, 0)
        if events or len(data) < OUTPUT_BYTES:
            return events
    lines = some.rfind(b"\n") + 1
    if lines or len(data) < OUTPUT_BYTES:
        return lines
    for short in range(_UTF8_MOST):
        if _is_text(some[: len(some) - short]):
            return len(some) - short
    return len(some)


def output_body(reply: PendingReply, sequence: int, offset: int, data: bytes) -> bytes:
    said = _head(reply, sequence, "output") | {"offset": offset}
    return orjson.dumps(said | _content("data", data))


def restart_body(reply: PendingReply, sequence: int) -> bytes:
    return orjson.dumps(_head(reply, sequence, "restart"))


def result_body(
    reply: PendingReply, sequence: int, job: JobRecord, answer: bytes | None, note: str | None = None
) -> bytes:
    """``answer``: the engine's, whole; None: it was sent before, or is too long, which ``note`` says to
    people."""
    outcome = job.outcome or JobOutcome(job.state)
    said = _head(reply, sequence, "result") | {
        "status": job.state.value,
        "http_status": outcome.status,
        "error": _plain(outcome.error),
        "body_bytes": outcome.result_bytes,
    }
    if answer is None:
        where = f"/v1/jobs/{job.id}/result"
        said["result"] = where
        if note is not None:
            said["note"] = f"{note} GET {where} has it."
        return orjson.dumps(said)
    try:
        return orjson.dumps(said | _answer(outcome, answer))
    except orjson.JSONEncodeError:  # what is read may be nested deeper than what is written
        return orjson.dumps(said | _content("body", answer))


def _head(reply: PendingReply, sequence: int, kind: str) -> dict[str, Any]:
    return {"id": reply.origin.message_id, "job": reply.job_id, "sequence": sequence, "type": kind}


def _answer(outcome: JobOutcome, answer: bytes) -> dict[str, Any]:
    kind = next((value for name, value in outcome.headers if name.lower() == "content-type"), "")
    if "json" in kind.lower():
        try:
            return {"body": orjson.loads(answer)}
        except orjson.JSONDecodeError:
            pass
    return _content("body", answer)


def _content(name: str, data: bytes) -> dict[str, str]:
    if _is_text(data):
        return {name: data.decode()}
    return {f"{name}_base64": base64.b64encode(data).decode()}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain(error: Mapping[str, object] | None) -> dict[str, object] | None:
    return None if error is None else dict(error)
