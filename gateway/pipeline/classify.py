"""What a request is and how dear it will be, read from its head and body (SCHEDULING §1). Pure."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

import orjson

from gateway.auth.permit import (
    check_named,
    check_no_json,
    check_one_model,
    check_query,
    permitted_tier,
)
from gateway.domain.body.edits import OPTIONS, usage_edits
from gateway.domain.errors import BadRequest, Forbidden, HeadersTooLarge, UnsupportedEncoding
from gateway.domain.request import Principal, Request, RequestBody, Tier
from gateway.domain.residency import BadResidency, EmptyResidency, Residency, narrowed, read_where
from gateway.domain.surface import EngineTarget, SurfaceEndpoint, check_model, read_model
from gateway.pipeline.bodies.facts import JsonFacts, read_facts
from gateway.quota.tokens import LIMITS, TokenDemand, demand_of_json, demand_of_unread, tokens_unread
from shared.process.frozen import frozen
from shared.protocol import limits
from shared.protocol.header_fields import FIELD_NAME, FORBIDDEN_IN_VALUE, HOP_BY_HOP, connection_options
from shared.protocol.messages import Headers, UsageMode
from shared.protocol.routes import Dialect, need_of

QUOTED_BYTES = limits.CONTROL_PAYLOAD_BYTES - 4 * limits.KIB
"""Header fields, as JSON quotes them, and twice the path: the rest of a frame is for what else it says."""

DEADLINE_MAX_S = 86_400.0

DEADLINE_GRACE_S = 1.0
"""Added to what a client says it waits: it shall see its own timeout, not one of ours a moment before."""

FORM_MEMBERS = ("model", "stream", "user")
"""The form fields that classification reads."""

_NOT_FORWARDED = HOP_BY_HOP.union(
    # of this connection, too
    ("expect", "http2-settings"),
    # the client's credentials: they are for the gateway and nobody behind it
    ("authorization", "x-api-key", "api-key", "cookie"),
    # where the client is and by which name it knows the gateway
    ("host", "forwarded", "via", "x-real-ip", "true-client-ip", "cf-connecting-ip"),
    # written anew, or carried by the head itself
    ("content-length", "x-request-id", "x-model"),
    # an engine on the same host gains nothing by compression, and the agent must read the answer as it comes
    ("accept-encoding",),
)
_NOT_FORWARDED_PREFIXES = ("x-forwarded-", "x-stainless-", "x-trunkline-")

_TIERS = {"priority": Tier.REALTIME, "flex": Tier.BATCH, "batch": Tier.BATCH}
"""OpenAI's ``service_tier``; every other value names none."""

_NOTHING_READ = JsonFacts({})

_WHERE = b"x-trunkline-where"

ENGINE_OUTPUT_TOKENS = 256
"""Taken for the length of an answer at an engine's own path."""

SESSION = b"x-trunkline-session"
"""Requests of one value belong together: they go where the first of them went, as far as that can be."""

SESSION_CHARS = 256


class BodyKind(StrEnum):
    """How much of a body must be understood."""

    JSON = "json"
    """Read whole and parsed."""
    FORM = "form"
    """multipart/form-data, parsed until the model is known."""
    OPAQUE = "opaque"
    """Passed on unread: the model comes from the path or from ``x-model``."""


@frozen
class ClientHead:
    """What a client sent before the body. ``fields`` maps lower-case names to the first value of each."""

    id: str
    method: str
    endpoint: SurfaceEndpoint
    target: EngineTarget
    headers: Sequence[tuple[bytes, bytes]]
    fields: Mapping[bytes, bytes]
    arrived_s: float


@dataclass(slots=True)
class ClientBody:
    """A body as far as classification needs it. ``form`` holds the members named in :data:`FORM_MEMBERS`,
    ``facts`` what a long JSON body says; a short one is read when it is classified."""

    kind: BodyKind
    content: RequestBody
    form: Mapping[str, str] = field(default_factory=dict)
    facts: JsonFacts | None = None


def body_kind(endpoint: SurfaceEndpoint, method: str, fields: Mapping[bytes, bytes]) -> BodyKind:
    """How to read the body. Raises :class:`UnsupportedEncoding` for compressed ones.

    They are refused because the gateway would have to unpack them to find the model, and a few kilobytes can
    unpack to gigabytes.
    """
    encoding = fields.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b""):
        message = "Compressed request bodies are not accepted; send this one without Content-Encoding."
        raise UnsupportedEncoding(message, param="content-encoding")
    if endpoint.any_method or method != "POST":
        return BodyKind.OPAQUE
    content_type = fields.get(b"content-type", b"").strip().lower()
    if content_type.startswith(b"multipart/form-data"):
        return BodyKind.FORM
    if b"x-model" in fields and content_type and b"json" not in content_type:
        return BodyKind.OPAQUE
    return BodyKind.JSON


def classify(
    head: ClientHead,
    body: ClientBody,
    principal: Principal,
    knows: Callable[[str], bool] = lambda name: False,
) -> Request:
    """The request for queue, scheduler and dispatch. ``knows`` says whether there is a model or an alias of a
    name: of ``/engines/a@b/…`` it decides whether ``a@b`` is one, or ``b`` an agent. Raises
    :class:`RequestError`."""
    facts = _facts(body)
    members = dict(body.form) if facts is None else facts.members
    addressed = head.target.addressed
    if addressed is not None and (head.target.model is None or knows(head.target.model)):
        addressed = None  # a model is called so
    model = _model(head, members) if addressed is None else addressed.model
    tier, scopes = _tier(head.fields, members), principal.scopes
    if scopes is not None:
        tier = permitted_tier(scopes, model, head.endpoint.route, tier)
        if not head.endpoint.any_method:
            check_query(scopes, head.target.path)
            if facts is None:
                check_no_json(scopes, body.content.pieces)
            else:
                check_one_model(scopes, named=facts.named, alike=facts.alike)
            if body.kind is not BodyKind.OPAQUE:
                check_named(scopes, members)
    streaming = _streaming(head, body.kind, members)
    read = facts or _NOTHING_READ
    asked = _asked(head, body.kind, body.content, members, read.prompts)
    input_tokens = read.prompt_bytes // 4
    if body.kind is BodyKind.OPAQUE:
        input_tokens = tokens_unread(body.content.prefix, body.content.size_bytes)
    usage = UsageMode.NONE
    if facts is not None:
        body.content.models = facts.models if model == members.get("model") else None
        if streaming and head.endpoint.asks_usage:
            usage = _ask_usage(body.content, facts)
    return Request(
        id=head.id,
        principal=principal,
        method=head.method,
        path=head.target.path,
        headers=forwarded_headers(head, body.content.size_bytes),
        model=model,
        route=head.endpoint.route,
        variant=need_of(head.endpoint.route, head.target.path),
        streaming=streaming,
        body=body.content,
        arrived_s=head.arrived_s,
        usage=usage,
        tier=tier or Tier.STANDARD,
        deadline_s=None if streaming else _deadline_s(head),
        where=_where(head, principal) if _WHERE in head.fields else principal.where,
        input_tokens=input_tokens,
        output_tokens=_guess(head.endpoint) if asked.most_tokens is None else asked.most_tokens,
        prompt_bytes=read.prompt_bytes,
        most_tokens=asked.most_tokens,
        choices=asked.choices,
        endless=asked.endless,
        agent=None if addressed is None else addressed.agent,
        session_key=_session(head.fields) or _session_key(members),
        prefix=tuple(read.prefix),
        ttft_s=_ttft_s(head.fields),
        trace=_trace(head.fields),
    )


def _facts(body: ClientBody) -> JsonFacts | None:
    """What a JSON body says; None for any other."""
    if body.kind is not BodyKind.JSON:
        return None
    return read_facts(body.content.prefix) if body.facts is None else body.facts


def _model(head: ClientHead, members: Mapping[str, Any]) -> str:
    """From the path, the body or ``x-model``, in this order."""
    if head.target.model is not None:
        return head.target.model
    model = members.get("model")
    if model is None and head.endpoint.dialect is Dialect.OLLAMA:
        model = members.get("name")  # as its first clients called it
    if model is None and b"x-model" in head.fields:
        return read_model(head.fields[b"x-model"])
    if model is None:
        message = "Say which model to use: set 'model' in the body, or the header x-model."
        raise BadRequest(f"{message} GET /v1/models lists them.", param="model", code="missing_model")
    if not isinstance(model, str):
        raise _wrong_type("model", "a string", model)
    return check_model(model)


def _streaming(head: ClientHead, kind: BodyKind, members: Mapping[str, Any]) -> bool:
    """Whether the answer is a stream of events, as far as the request says so."""
    stream = members.get("stream")
    if kind is BodyKind.FORM:
        return stream in ("true", "True", "1")
    if stream is not None and not isinstance(stream, bool):
        raise _wrong_type("stream", "true or false", stream)
    if stream is None and kind is BodyKind.JSON and head.endpoint.streams_unasked:
        return True
    return bool(stream) or (
        kind is BodyKind.OPAQUE and b"text/event-stream" in head.fields.get(b"accept", b"")
    )


def _ask_usage(body: RequestBody, facts: JsonFacts) -> UsageMode:
    """The engine is always asked for usage; a client that did not ask does not get to see it."""
    options = facts.members.get(OPTIONS)
    if options is not None and not isinstance(options, dict):
        raise _wrong_type(OPTIONS, "an object", options)
    if options is not None and options.get("include_usage") is True:
        return UsageMode.KEEP
    empty = not facts.members
    body.edit(usage_edits(facts.start, empty=empty, options=options, places=facts.options))
    return UsageMode.STRIP


def _asked(
    head: ClientHead, kind: BodyKind, content: RequestBody, members: Mapping[str, Any], prompts: int
) -> TokenDemand:
    """What the answer may have. Raises BadRequest for OpenAI's limits that are no integers."""
    if not (head.endpoint.output_tokens or head.endpoint.any_method):
        return TokenDemand(0)
    if kind is BodyKind.OPAQUE:
        return demand_of_unread(head.method, head.target.path, content.prefix, whole=content.rest is None)
    for name in LIMITS:
        value = members.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise _wrong_type(name, "an integer", value)
    return demand_of_json(members, head.endpoint.path, prompts if head.endpoint.route == "completions" else 1)


def _guess(endpoint: SurfaceEndpoint) -> int:
    return ENGINE_OUTPUT_TOKENS if endpoint.any_method else endpoint.output_tokens


def _where(head: ClientHead, principal: Principal) -> Residency | None:
    """What the key allows, narrowed as the client asks. Raises BadRequest, Forbidden when nothing is left."""
    asked = b",".join(value for name, value in head.headers if name.lower() == _WHERE)
    try:
        return narrowed(principal.where, read_where(asked.decode("latin-1")))
    except BadResidency as error:
        message = f"The header {_WHERE.decode()} cannot be read: {error}."
        raise BadRequest(message, param=_WHERE.decode(), code="invalid_where") from None
    except EmptyResidency as error:
        raise Forbidden(
            f"This key's requests may run only on agents with {principal.where}, and this one asks for "
            f"another {error.label!r}.",
            param=_WHERE.decode(),
            code="residency_forbidden",
        ) from None


def _tier(fields: Mapping[bytes, bytes], members: Mapping[str, Any]) -> Tier | None:
    """The tier asked for; None: none is."""
    asked = fields.get(b"x-trunkline-tier")
    if asked is not None:
        try:
            return Tier(asked.decode("latin-1").strip().lower())
        except ValueError:
            message = f"The header x-trunkline-tier must be one of {', '.join(Tier)}."
            raise BadRequest(message, param="x-trunkline-tier", code="invalid_tier") from None
    service_tier = members.get("service_tier")
    return _TIERS.get(service_tier) if isinstance(service_tier, str) else None


def _deadline_s(head: ClientHead) -> float | None:
    """When the client stops waiting, from the read timeout its SDK sends.

    Only for answers in one piece: a stream restarts the client's read timeout with every byte, and while it
    waits it gets comments.
    """
    try:
        wait_s = float(head.fields[b"x-stainless-read-timeout"])
    except (KeyError, ValueError):
        return None
    if not math.isfinite(wait_s) or not 0 < wait_s <= DEADLINE_MAX_S:
        return None
    return head.arrived_s + wait_s + DEADLINE_GRACE_S


def _ttft_s(fields: Mapping[bytes, bytes]) -> float | None:
    """When the client wants its first token, from llm-d's header; None for what is no time."""
    try:
        wanted_s = float(fields[b"x-llm-d-slo-ttft-ms"]) / 1000.0
    except (KeyError, ValueError):
        return None
    return wanted_s if math.isfinite(wanted_s) and 0 < wanted_s <= DEADLINE_MAX_S else None


def _session(fields: Mapping[bytes, bytes]) -> str | None:
    """What the client calls the session that the request belongs to. Raises BadRequest."""
    raw = fields.get(SESSION)
    if raw is None:
        return None
    session = raw.decode("latin-1").strip()
    if not 0 < len(session) <= SESSION_CHARS or not session.isprintable():
        message = f"The header {SESSION.decode()} has 1 to {SESSION_CHARS} printable characters."
        raise BadRequest(message, param=SESSION.decode(), code="invalid_session")
    return session


def _session_key(members: Mapping[str, Any]) -> str | None:
    metadata = members.get("metadata")
    nested = metadata.get("user_id") if isinstance(metadata, dict) else None
    for key in (members.get("prompt_cache_key"), members.get("user"), nested):
        if isinstance(key, str) and key:
            return key[:256]
    return None


def _trace(fields: Mapping[bytes, bytes]) -> str | None:
    """W3C trace context, if it looks like one."""
    value = fields.get(b"traceparent", b"")
    return value.decode("ascii") if re.fullmatch(rb"[0-9a-f]{2}(-[0-9a-f]+){3}", value[:64]) else None


def forwarded_headers(head: ClientHead, size_bytes: int | None) -> Headers:
    """The header fields that go to the engine. Raises HeadersTooLarge for more than a tunnel carries."""
    named = (value.decode("latin-1") for name, value in head.headers if name.lower() == b"connection")
    dropped = connection_options(named) if b"connection" in head.fields else ()
    kept: list[tuple[str, str]] = []
    total_bytes = 0
    for raw_name, raw_value in head.headers:
        name, forwarded, allowed = _field_name(raw_name)
        if not forwarded or name in dropped:
            continue
        value = raw_value.decode("latin-1")
        if not allowed or FORBIDDEN_IN_VALUE.search(value):
            raise BadRequest(f"The header {name[:64]!r} holds characters that HTTP does not allow.")
        total_bytes += len(name) + len(value)
        kept.append((name, value))
    if size_bytes or (size_bytes == 0 and head.method in ("POST", "PUT", "PATCH")):
        kept.append(("content-length", str(size_bytes)))
    quoted_bytes = len(orjson.dumps(kept)) + 2 * len(head.target.path)
    too_long = total_bytes + 32 > limits.HEADER_BYTES or quoted_bytes > QUOTED_BYTES
    if too_long or len(kept) > limits.HEADERS:
        most = f"{limits.HEADERS} fields and {limits.HEADER_BYTES} bytes"
        raise HeadersTooLarge(f"The request's headers are more than the {most} that a tunnel carries.")
    return tuple(kept)


@lru_cache(maxsize=256)
def _field_name(raw_name: bytes) -> tuple[str, bool, bool]:
    """A header field's name in lower case; whether such fields go to engines, and whether it is one at all.
    Remembered, because clients have few names, and the same in every request."""
    name = raw_name.decode("latin-1").lower()
    forwarded = name not in _NOT_FORWARDED and not name.startswith(_NOT_FORWARDED_PREFIXES)
    # a name with '_' is one with '-' to programs behind CGI or WSGI
    forwarded = forwarded and "_" not in name
    return name, forwarded, FIELD_NAME.fullmatch(name) is not None


def _wrong_type(param: str, wanted: str, got: object) -> BadRequest:
    kind = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    message = f"'{param}' must be {wanted}, not {kind.get(type(got), 'a number')}."
    return BadRequest(message, param=param, code="invalid_type")
