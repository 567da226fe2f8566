"""What a client sends to ``POST /v1/jobs``: one job, or many at once."""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway.domain.errors import BadRequest, RequestError
from gateway.domain.jobs import NewJob
from gateway.domain.request import Principal, Tier
from gateway.domain.slices import in_slices
from gateway.jobs.service import MOST_DEADLINE_S, JobDraft, JobService, JobTerms
from gateway.jobs.webhooks.service import AcceptWebhook, read_webhook
from gateway.pipeline.bodies.facts import read_json
from gateway.pipeline.client_body import wrong_type

MOST_JOBS = 1000
"""In one submission."""
CUSTOM_ID_CHARS = 512
WEBHOOK_CHARS = 2048
METADATA_PAIRS, METADATA_NAME_CHARS, METADATA_CHARS = 16, 64, 512
"""As OpenAI's objects have them."""
_PREPARED_AT_ONCE = 20

_MEMBERS = frozenset(
    ("path", "body", "tier", "deadline", "expires_after", "webhook", "custom_id", "metadata")
)

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class PreparedJobs:
    """Jobs that may be submitted, with their bodies by id."""

    jobs: Sequence[NewJob]
    bodies: Mapping[str, bytes]
    many: bool
    """They came as a list."""


async def prepare_jobs(
    service: JobService,
    principal: Principal,
    data: bytes,
    headers: Headers,
    accept_webhook: AcceptWebhook,
) -> PreparedJobs:
    """``headers`` are those of the submission that count for each of its jobs. Raises RequestError,
    StateError."""
    sent = await asyncio.to_thread(read_json, data)
    many = "jobs" in sent
    jobs: list[NewJob] = []
    bodies: dict[str, bytes] = {}
    webhooks: dict[str | None, str | None] = {}
    async for where, members in in_slices(_each(sent), _PREPARED_AT_ONCE):
        try:
            draft, body = _draft(members, headers, service.wall())
            given = draft.terms.webhook
            if given not in webhooks:
                webhooks[given] = await accept_webhook(given, principal.tenant)
            draft = replace(draft, terms=replace(draft.terms, webhook=webhooks[given]))
            try:
                new = await service.prepare(principal, draft, body)
            except RequestError as error:
                error.param = _param(error.param)
                raise
        except RequestError as error:
            if many:
                error.param = f"{where}.{error.param}"
                error.message = f"{where}: {error.message}"
            raise
        jobs.append(new)
        bodies[new.id] = body
    return PreparedJobs(jobs, bodies, many)


def _each(sent: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each job, and what stands before its members' names in errors. Raises BadRequest."""
    if "jobs" not in sent:
        yield "", sent
        return
    listed = sent["jobs"]
    if len(sent) > 1:
        other = next(name for name in sent if name != "jobs")
        raise BadRequest(f"Beside 'jobs' there is nothing else: {other[:64]!r} belongs to each of them.")
    if not isinstance(listed, list):
        raise wrong_type("jobs", "an array", listed)
    if not 1 <= len(listed) <= MOST_JOBS:
        raise BadRequest(f"'jobs' has 1 to {MOST_JOBS} jobs, not {len(listed)}.", param="jobs")
    for number, members in enumerate(listed):
        if not isinstance(members, dict):
            raise wrong_type(f"jobs.{number}", "an object", members)
        yield f"jobs.{number}", members


def _param(name: str | None) -> str:
    """What a job calls a parameter of its request."""
    if name == "x-trunkline-tier":
        return "tier"
    return name if name == "path" else "body" if name is None else f"body.{name}"


def _draft(members: Mapping[str, Any], headers: Headers, now_s: float) -> tuple[JobDraft, bytes]:
    unknown = next((name for name in members if name not in _MEMBERS), None)
    if unknown is not None:
        known = ", ".join(sorted(_MEMBERS))
        raise BadRequest(f"A job has no member {unknown[:64]!r}; it has {known}.", param=unknown[:64])
    path = members.get("path")
    if not isinstance(path, str):
        raise _wrong("path", "a path such as '/v1/chat/completions'", path)
    if "body" not in members:
        raise BadRequest("A job needs 'body', the JSON that is sent to its path.", param="body")
    terms = JobTerms(
        tier=_tier(members.get("tier")),
        deadline_s=_deadline_s(members, now_s),
        custom_id=_text("custom_id", members.get("custom_id"), CUSTOM_ID_CHARS),
        webhook=_webhook(members.get("webhook")),
        metadata=read_metadata(members.get("metadata")),
    )
    sent_as = ("content-type", "application/json")
    return JobDraft(path, (*headers, sent_as), terms), orjson.dumps(members["body"])


def _wrong(name: str, wanted: str, value: object) -> BadRequest:
    if value is None:
        return BadRequest(f"A job needs {name!r}, {wanted}.", param=name)
    return wrong_type(name, wanted, value)


def _tier(value: object) -> Tier | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in set(Tier):
        raise BadRequest(f"'tier' must be one of {', '.join(Tier)}.", param="tier", code="invalid_tier")
    return Tier(value)


def _deadline_s(members: Mapping[str, Any], now_s: float) -> float | None:
    """From ``deadline``, seconds since 1970, or ``expires_after``, seconds from now, which may stand in an
    object with the anchor ``created_at`` as in OpenAI's."""
    deadline, after = members.get("deadline"), members.get("expires_after")
    if deadline is not None and after is not None:
        raise BadRequest("Send either 'deadline' or 'expires_after'.", param="deadline")
    if after is not None:
        if isinstance(after, dict):
            if after.get("anchor", "created_at") != "created_at" or not after.keys() <= {"anchor", "seconds"}:
                raise BadRequest(
                    "'expires_after' has 'seconds', and 'anchor' is created_at.", param="expires_after"
                )
            after = after.get("seconds")
        seconds = _number("expires_after", after)
        if not 1 <= seconds <= MOST_DEADLINE_S:
            raise BadRequest(
                f"'expires_after' must be 1 to {MOST_DEADLINE_S:.0f} seconds.", param="expires_after"
            )
        return now_s + seconds
    if deadline is None:
        return None
    at_s = _number("deadline", deadline)
    if at_s <= now_s:
        raise BadRequest("'deadline' is over: it is in seconds since 1970 (UTC).", param="deadline")
    if at_s > now_s + MOST_DEADLINE_S:
        raise BadRequest(
            f"'deadline' is more than {MOST_DEADLINE_S / 86_400:.0f} days ahead.", param="deadline"
        )
    return at_s


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRequest(f"'{name}' must be a number of seconds.", param=name)
    return float(value)


def _text(name: str, value: object, most_chars: int) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(name, "a string", value)
    if not 0 < len(value) <= most_chars or not value.isprintable():
        raise BadRequest(f"'{name}' has 1 to {most_chars} printable characters.", param=name)
    return value


def _webhook(value: object) -> str | None:
    if value is None:
        return None
    url = read_webhook(value)
    _text("webhook", url, WEBHOOK_CHARS)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or " " in url:
        raise BadRequest("'webhook' must be an http(s) URL with a host.", param="webhook")
    return url


def read_metadata(value: object) -> Mapping[str, str] | None:
    """A client's own notes. Raises BadRequest."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type("metadata", "an object", value)
    if len(value) > METADATA_PAIRS:
        raise BadRequest(f"'metadata' has {METADATA_PAIRS} members at most.", param="metadata")
    for name, text in value.items():
        if not 0 < len(name) <= METADATA_NAME_CHARS:
            raise BadRequest(
                f"Names in 'metadata' have 1 to {METADATA_NAME_CHARS} characters.", param="metadata"
            )
        if not isinstance(text, str) or len(text) > METADATA_CHARS:
            raise BadRequest(
                f"Values in 'metadata' are strings of {METADATA_CHARS} characters at most.", param="metadata"
            )
    return value
