"""Messages of queues as requests for jobs. Pure.

A message is a JSON object: ``body``, the request's, and any of ``path`` or ``route``, ``id``, ``deadline``
(seconds since 1970), ``reply_to``, ``stream``, ``headers``, ``tier`` and ``metadata``.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.domain.queues import QueueOrigin
from gateway.domain.request import Tier
from gateway.domain.surface import ENDPOINTS
from gateway.jobs.queues.source import TakenMessage
from gateway.jobs.service import MOST_DEADLINE_S, JobDraft, JobTerms

ID_CHARS = 200
PLACE_CHARS = 500
METADATA_MEMBERS, METADATA_NAME_CHARS, METADATA_CHARS = 16, 64, 512

_MEMBERS = frozenset(
    ("path", "route", "body", "id", "deadline", "reply_to", "stream", "headers", "tier", "metadata")
)
_PATHS = {each.route: each.path for each in reversed(ENDPOINTS) if not each.path.endswith("/")}


class PoisonMessage(Exception):
    """No job can be made of a message, now or later. Its text says why."""


@dataclass(frozen=True, slots=True)
class MessageRules:
    """How messages of one queue are read."""

    source: str
    path: str
    """Of messages that name none."""
    model: str | None
    """Of bodies that name none."""
    most_bytes: int


@dataclass(frozen=True, slots=True)
class JobMessage:
    """What a message asks for."""

    draft: JobDraft
    body: bytes
    origin: QueueOrigin
    fingerprint: bytes
    """Two of one id are the same if this is."""


def read_message(message: TakenMessage, rules: MessageRules, now_s: float) -> JobMessage:
    """Raises PoisonMessage."""
    if len(message.body) > rules.most_bytes:
        raise PoisonMessage(
            f"the message has {len(message.body)} bytes, and may have {rules.most_bytes} "
            "(message_bytes of its queue)"
        )
    try:
        members = orjson.loads(message.body)
    except orjson.JSONDecodeError as error:
        raise PoisonMessage(f"the message is no JSON: {error}") from None
    if not isinstance(members, dict):
        raise PoisonMessage("the message is no JSON object")
    unknown = sorted(members.keys() - _MEMBERS)
    if unknown:
        raise PoisonMessage(f"the message has unknown members: {', '.join(unknown)[:200]}")
    body, streams = _body(members, rules)
    reply_to = _text(members, "reply_to", PLACE_CHARS) or message.reply_to
    if members.get("stream") is True and reply_to is None:
        raise PoisonMessage("'stream' needs 'reply_to'")
    return JobMessage(
        JobDraft(_path(members, rules), _headers(members), _terms(members, now_s)),
        body,
        QueueOrigin(rules.source, _id(members, message), reply_to, streams and reply_to is not None),
        hashlib.sha256(message.body).digest(),
    )


def _id(members: Mapping[str, Any], message: TakenMessage) -> str:
    found = members.get("id")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)[:ID_CHARS]
    found = _text(members, "id", ID_CHARS) or message.id
    if found is None:
        raise PoisonMessage("the message has no 'id', by which it is known when it comes again")
    return found[:ID_CHARS]


def _path(members: Mapping[str, Any], rules: MessageRules) -> str:
    path, route = _text(members, "path", 8192), _text(members, "route", 100)
    if path is not None and route is not None:
        raise PoisonMessage("the message has both 'path' and 'route'")
    if route is None:
        return rules.path if path is None else path
    if route not in _PATHS:
        raise PoisonMessage(f"there is no route {route!r}: write one of {', '.join(sorted(_PATHS))}")
    return _PATHS[route]


def _body(members: Mapping[str, Any], rules: MessageRules) -> tuple[bytes, bool]:
    """The request's body, and whether its answer is sent while it is written."""
    body, stream = members.get("body"), members.get("stream")
    if not isinstance(body, dict):
        raise PoisonMessage("'body' must be the request's JSON object")
    if stream is not None and not isinstance(stream, bool):
        raise PoisonMessage("'stream' must be true or false")
    if rules.model is not None:
        body.setdefault("model", rules.model)
    if stream:
        body.setdefault("stream", True)
    try:
        written = orjson.dumps(body)
    except orjson.JSONEncodeError as error:  # what is read may be nested deeper than what is written
        raise PoisonMessage(f"'body' cannot be written as JSON: {error}") from None
    return written, body.get("stream") is True if stream is None else stream


def _terms(members: Mapping[str, Any], now_s: float) -> JobTerms:
    tier, deadline_s = members.get("tier"), members.get("deadline")
    if tier is not None and (not isinstance(tier, str) or tier not in set(Tier)):
        raise PoisonMessage(f"'tier' must be one of {', '.join(Tier)}")
    if deadline_s is not None:
        if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float):
            raise PoisonMessage("'deadline' must be a number: seconds since 1970 (UTC)")
        if not math.isfinite(deadline_s) or deadline_s > now_s + MOST_DEADLINE_S:
            raise PoisonMessage(f"'deadline' is more than {MOST_DEADLINE_S / 86_400:.0f} days ahead")
        if deadline_s <= now_s:
            raise PoisonMessage("'deadline' is over: it is in seconds since 1970 (UTC)")
    metadata = _texts(members, "metadata")
    if len(metadata) > METADATA_MEMBERS or any(
        len(name) > METADATA_NAME_CHARS or len(value) > METADATA_CHARS for name, value in metadata.items()
    ):
        raise PoisonMessage(
            f"'metadata' has {METADATA_MEMBERS} members at most, with names of {METADATA_NAME_CHARS} and "
            f"values of {METADATA_CHARS} characters"
        )
    return JobTerms(None if tier is None else Tier(tier), deadline_s, metadata=metadata or None)


def _headers(members: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    headers = tuple(_texts(members, "headers").items())
    for name, value in headers:
        if not (name + value).isascii() or not (name + value).isprintable() or not name or " " in name:
            raise PoisonMessage("'headers' must be printable ASCII")
    return headers


def _texts(members: Mapping[str, Any], name: str) -> dict[str, str]:
    found = members.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise PoisonMessage(f"{name!r} must be an object whose values are strings")
    return found


def _text(members: Mapping[str, Any], name: str, most: int) -> str | None:
    found = members.get(name)
    if found is None:
        return None
    if not isinstance(found, str) or not found or len(found) > most or "\0" in found:
        raise PoisonMessage(f"{name!r} must be a string of 1 to {most} characters")
    return found
