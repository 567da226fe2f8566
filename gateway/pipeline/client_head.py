"""What a client sent before the body, and what is read from its header fields. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import orjson
from msgspec import Struct

from gateway.domain.errors import BadRequest, Forbidden, HeadersTooLarge
from gateway.domain.remembered import Remembered
from gateway.domain.request import Principal
from gateway.domain.residency import BadResidency, EmptyResidency, Residency, narrowed, read_where
from gateway.domain.surface import PATH_BYTES, EngineTarget, SurfaceEndpoint
from gateway.pipeline.websocket_head import Subprotocols
from shared.protocol import limits
from shared.protocol.header_fields import FIELD_NAME, FORBIDDEN_IN_VALUE, HOP_BY_HOP, connection_options
from shared.protocol.messages import Headers
from shared.protocol.routes import Dialect

QUOTED_BYTES = limits.CONTROL_PAYLOAD_BYTES - 4 * limits.KIB
"""Header fields, as JSON quotes them, and twice the path: the rest of a frame is for what else it says."""

_FEW_BYTES = (QUOTED_BYTES - 2 * PATH_BYTES - 8 * limits.HEADERS - 64) // 2
"""Header fields of so many bytes are surely within that: quoting doubles them at most, and puts eight bytes
around each."""

_MOST_FIELDS = limits.HEADERS - 2
_MOST_BYTES = limits.HEADER_BYTES - 128
"""What a tunnel carries, without a length and a trace that may still be added: agents end their session over
more."""

DEADLINE_MAX_S = 86_400.0

DEADLINE_GRACE_S = 1.0
"""Added to what a client says it waits: it shall see its own timeout, not one of ours a moment before."""

_NOT_FORWARDED = HOP_BY_HOP.union(
    # of this connection, too
    ("expect", "http2-settings"),
    # the client's credentials: they are for the gateway and nobody behind it
    ("authorization", "x-api-key", "api-key", "cookie"),
    # where the client is and by which name it knows the gateway
    ("host", "forwarded", "via", "x-real-ip", "true-client-ip", "cf-connecting-ip"),
    # written anew, or carried by the head itself
    ("content-length", "x-request-id", "x-model"),
    # of the client's WebSocket; the agent opens one of its own
    ("sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol"),
    # an engine on the same host gains nothing by compression, and the agent must read the answer as it comes
    ("accept-encoding",),
)

_NOT_FORWARDED_PREFIXES = ("x-forwarded-", "x-stainless-", "x-trunkline-")

WHERE = b"x-trunkline-where"

SESSION = b"x-trunkline-session"
"""Requests of one value belong together: they go where the first of them went, as far as that can be."""

READ_TIMEOUT = b"x-stainless-read-timeout"
"""So many seconds the client's SDK waits."""

TTFT = b"x-llm-d-slo-ttft-ms"
"""llm-d's: within which time the client wants its first token."""

TRACE = b"traceparent"

TRACE_CHARS = 64

SESSION_CHARS = 256


class HeadFacts:
    """What was found out about a request from its client's address, its method, its target and its header
    fields, content-length excepted.

    Most clients send the same ones with every request of a connection, which keeps the facts for as long as
    they do. So nothing may be noted here that follows from anything else, or whose validity may end.
    """

    __slots__ = ("credential", "dialect", "forwarded", "kind", "peer", "raw_path")

    def __init__(self, raw_path: str, peer: str = "") -> None:
        self.raw_path = raw_path
        """The target's path as the client wrote it."""
        self.peer = peer
        """The address of whoever is connected; empty where that is not known."""
        self.dialect: Dialect | None = None
        """In which a refusal is written."""
        self.credential: str | None = None
        """What is presented as a key. Whether it is one, and still valid, is no fact of the head."""
        self.kind: Any = None
        """How the body is to be read: a :class:`gateway.pipeline.client_body.BodyKind`, or None."""
        self.forwarded: Headers | None = None
        """Those of the client's header fields that go to the engine, where they are short."""


class ClientHead(Struct, frozen=True, gc=False):
    """What a client sent before the body. ``fields`` maps lower-case names to the first value of each."""

    id: str
    method: str
    endpoint: SurfaceEndpoint
    target: EngineTarget
    headers: Sequence[tuple[bytes, bytes]]
    fields: Mapping[bytes, bytes]
    arrived_s: float
    upgrade: Subprotocols | None = None
    """What is said of the WebSocket that is asked for; None: none is."""
    facts: HeadFacts | None = None
    """Kept with the connection, where there is one."""


def residency_of(head: ClientHead, principal: Principal) -> Residency | None:
    """What the key allows, narrowed as the client asks. Raises BadRequest, Forbidden when nothing is left."""
    wish = b",".join(value for name, value in head.headers if name.lower() == WHERE)
    try:
        return narrowed(principal.where, read_where(wish.decode("latin-1")))
    except BadResidency as error:
        message = f"The header {WHERE.decode()} cannot be read: {error}."
        raise BadRequest(message, param=WHERE.decode(), code="invalid_where") from None
    except EmptyResidency as error:
        raise Forbidden(
            f"This key's requests may run only on agents with {principal.where}, and this one asks for "
            f"another {error.label!r}.",
            param=WHERE.decode(),
            code="residency_forbidden",
        ) from None


def deadline_s_of(head: ClientHead) -> float | None:
    """When the client stops waiting, from the read timeout its SDK sends.

    Only for answers in one piece: a stream restarts the client's read timeout with every byte, and while it
    waits it gets comments.
    """
    wait_s = _seconds(head.fields.get(READ_TIMEOUT))
    return None if wait_s is None else head.arrived_s + wait_s + DEADLINE_GRACE_S


def ttft_s_of(fields: Mapping[bytes, bytes]) -> float | None:
    """When the client wants its first token; None for what is no time."""
    return _seconds(fields.get(TTFT), unit_s=0.001)


def _seconds(value: bytes | None, unit_s: float = 1.0) -> float | None:
    """A time in a header field; None for what is no time or too long."""
    if value is None:
        return None
    try:
        seconds = float(value) * unit_s
    except ValueError:
        return None
    return seconds if 0 < seconds <= DEADLINE_MAX_S else None


def session_of(fields: Mapping[bytes, bytes]) -> str | None:
    """What the client calls the session that the request belongs to. Raises BadRequest."""
    raw = fields.get(SESSION)
    if raw is None:
        return None
    session = raw.decode("latin-1").strip()
    if not 0 < len(session) <= SESSION_CHARS or not session.isprintable():
        message = f"The header {SESSION.decode()} has 1 to {SESSION_CHARS} printable characters."
        raise BadRequest(message, param=SESSION.decode(), code="invalid_session")
    return session


def trace_of(fields: Mapping[bytes, bytes]) -> str | None:
    """W3C trace context, if it looks like one, and is no longer than one: agents take nothing else."""
    value = fields.get(TRACE, b"")
    found = len(value) <= TRACE_CHARS and re.fullmatch(rb"[0-9a-f]{2}(-[0-9a-f]+){3}", value)
    return value.decode("ascii") if found else None


def forwarded_headers(head: ClientHead, size_bytes: int | None) -> Headers:
    """The header fields that go to the engine. Raises HeadersTooLarge for more than a tunnel carries."""
    facts = head.facts
    if facts is not None and facts.forwarded is not None:
        kept, text_chars = facts.forwarded, 0
    else:
        kept, text_chars = _kept_headers(head)
    if size_bytes or (size_bytes == 0 and head.method in ("POST", "PUT", "PATCH")):
        kept = (*kept, ("content-length", str(size_bytes)))
    if head.upgrade is not None and head.upgrade.offered:
        kept = (*kept, ("sec-websocket-protocol", ", ".join(head.upgrade.offered)))
        text_chars = sum(map(len, chain.from_iterable(kept)))
    if text_chars > _FEW_BYTES or len(kept) > _MOST_FIELDS:
        _check_size(text_chars, kept, head.target.path)
    return kept


def _kept_headers(head: ClientHead) -> tuple[Headers, int]:
    """Those of the client's fields that go to the engine, and how long their names and values are. Short ones
    are noted."""
    dropped = _named_by_connection(head) if b"connection" in head.fields else ()
    names = _FORWARDED_NAMES
    kept = tuple(
        [
            (name, raw_value.decode("latin-1"))
            for raw_name, raw_value in head.headers
            if (name := names[raw_name]) and name not in dropped
        ]
    )
    text = "".join(chain.from_iterable(kept))
    if FORBIDDEN_IN_VALUE.search(text):
        raise _forbidden(next(name for name, value in kept if FORBIDDEN_IN_VALUE.search(value)))
    if len(text) <= _FEW_BYTES and head.facts is not None:
        head.facts.forwarded = kept
    return kept, len(text)


def _named_by_connection(head: ClientHead) -> Collection[str]:
    """Further fields that belong to the client's connection."""
    if head.fields[b"connection"] == b"keep-alive" and len(head.fields) == len(head.headers):
        return ()
    named = (value.decode("latin-1") for name, value in head.headers if name.lower() == b"connection")
    return connection_options(named)


def _check_size(size_bytes: int, kept: Sequence[tuple[str, str]], path: str) -> None:
    """Raises HeadersTooLarge when these fields, whose names and values are so long together, are more than a
    tunnel carries."""
    quoted_bytes = len(orjson.dumps(kept)) + 2 * len(path)
    too_long = size_bytes > _MOST_BYTES or quoted_bytes > QUOTED_BYTES
    if too_long or len(kept) > _MOST_FIELDS:
        most = f"{_MOST_FIELDS} fields and {_MOST_BYTES} bytes"
        raise HeadersTooLarge(f"The request's headers are more than the {most} that a tunnel carries.")


def _forbidden(name: str) -> BadRequest:
    return BadRequest(f"The header {name[:64]!r} holds characters that HTTP does not allow.")


def _forwarded_name(raw_name: bytes) -> str:
    """A header field's name in lower case; empty for fields that do not go to engines. Raises BadRequest for
    what is no name."""
    name = raw_name.decode("latin-1").lower()
    # a name with '_' is one with '-' to programs behind CGI or WSGI
    if name in _NOT_FORWARDED or name.startswith(_NOT_FORWARDED_PREFIXES) or "_" in name:
        return ""
    if FIELD_NAME.fullmatch(name) is None:
        raise _forbidden(name)
    return name


_FORWARDED_NAMES = Remembered(_forwarded_name, 256)
"""Clients have few names, and the same in every request."""
