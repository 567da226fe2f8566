"""How a client's body is read, and what it asks for. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from gateway.domain.errors import BadRequest, UnsupportedEncoding
from gateway.domain.json_members import OPTIONS, usage_edits
from gateway.domain.request import RequestBody
from gateway.domain.surface import INFERENCE, SurfaceEndpoint
from gateway.pipeline.bodies.facts import JsonFacts
from gateway.pipeline.client_head import ClientHead
from gateway.quota.tokens import LIMITS, TokenDemand, demand_of_json, demand_of_unread
from shared.protocol.messages import UsageMode

FORM_MEMBERS = ("model", "stream", "user")
"""The form fields that classification reads."""


class BodyKind(StrEnum):
    """How much of a body must be understood."""

    JSON = "json"
    """Read whole and parsed."""
    FORM = "form"
    """multipart/form-data, parsed until the model is known."""
    OPAQUE = "opaque"
    """Passed on unread: the model comes from the path or from ``x-model``."""


_OPAQUE, _JSON, _FORM = BodyKind.OPAQUE, BodyKind.JSON, BodyKind.FORM
"""Members of enumerations for the path of every request: a global is found faster."""


class ClientBody(Struct, gc=False):
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
    if b"content-encoding" in fields:
        encoding = fields[b"content-encoding"].strip().lower()
        if encoding not in (b"identity", b""):
            message = "Compressed request bodies are not accepted; send this one without Content-Encoding."
            raise UnsupportedEncoding(message, param="content-encoding")
    if endpoint.names_model or method != "POST":
        return _OPAQUE
    content_type = fields.get(b"content-type", b"")
    if content_type == b"application/json":
        return _JSON
    content_type = content_type.strip().lower()
    if content_type.startswith(b"multipart/form-data"):
        return BodyKind.FORM
    if b"x-model" in fields and content_type and b"json" not in content_type:
        return BodyKind.OPAQUE
    return BodyKind.JSON


def wants_stream(head: ClientHead, kind: BodyKind, members: Mapping[str, Any]) -> bool:
    """Whether the answer is a stream of events, as far as the request says so."""
    stream = members.get("stream")
    if kind is _FORM:
        return stream in ("true", "True", "1")
    if kind is _OPAQUE:
        asked = b"text/event-stream" in head.fields.get(b"accept", b"")
        return asked or (head.endpoint is INFERENCE and head.target.path.endswith("/generate_stream"))
    if stream is None:
        return head.endpoint.streams_unasked
    if stream is not True and stream is not False:
        raise wrong_type("stream", "true or false", stream)
    return stream


def ask_usage(body: RequestBody, facts: JsonFacts) -> UsageMode:
    """The engine is always asked for usage; a client that did not ask does not get to see it."""
    options = facts.members.get(OPTIONS)
    if options is not None and not isinstance(options, dict):
        raise wrong_type(OPTIONS, "an object", options)
    if options is not None and options.get("include_usage") is True:
        return UsageMode.KEEP
    body.edit(usage_edits(facts.start, empty=not facts.members, options=options, places=facts.options))
    return UsageMode.STRIP


def token_demand(
    head: ClientHead, kind: BodyKind, content: RequestBody, members: Mapping[str, Any], prompts: int
) -> TokenDemand:
    """What the answer may have. Raises BadRequest for OpenAI's limits that are no integers."""
    endpoint = head.endpoint
    if not endpoint.output_tokens:
        return _NO_TOKENS
    if kind is _OPAQUE:
        return demand_of_unread(head.method, head.target.path, content.prefix, whole=content.rest is None)
    for name in LIMITS:
        if name in members and type(members[name]) is not int and members[name] is not None:
            raise wrong_type(name, "an integer", members[name])
    return demand_of_json(members, endpoint.path, prompts if endpoint.route == "completions" else 1)


_NO_TOKENS = TokenDemand(0)


SESSION_MEMBERS = frozenset(("prompt_cache_key", "user", "metadata"))
"""What may tell who asks again."""


def session_key(members: Mapping[str, Any]) -> str | None:
    """What in a body tells most of who asks again; None when nothing does."""
    metadata = members.get("metadata")
    nested = metadata.get("user_id") if isinstance(metadata, dict) else None
    for key in (members.get("prompt_cache_key"), members.get("user"), nested):
        if isinstance(key, str) and key:
            return key[:256]
    return None


def wrong_type(param: str, wanted: str, got: object) -> BadRequest:
    kind = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    message = f"'{param}' must be {wanted}, not {kind.get(type(got), 'a number')}."
    return BadRequest(message, param=param, code="invalid_type")
