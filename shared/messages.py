"""What the JSON payloads of frames say, as plain data (PROTOCOL §4).

Each class reads and writes its own payload. Reading validates everything a peer could get wrong and
raises :class:`~shared.errors.FrameMalformed`; unknown members are ignored, so that a newer peer may add some.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from shared import limits
from shared.errors import FrameMalformed
from shared.frozen import frozen

_E = TypeVar("_E", bound=StrEnum)

_HEADER_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PATH_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")

Headers = tuple[tuple[str, str], ...]
"""Lower-case names, hop-by-hop headers removed, order kept."""


class UsageMode(StrEnum):
    """What the agent does with the usage chunk of a streamed response (PROTOCOL §4.2)."""

    NONE = "none"
    KEEP = "keep"
    STRIP = "strip"


class DeploymentStatus(StrEnum):
    LOADED = "loaded"
    LOADABLE = "loadable"
    LOADING = "loading"
    FAILED = "failed"


class AgentStatus(StrEnum):
    READY = "READY"
    BUSY = "BUSY"
    DRAINING = "DRAINING"
    FAILED = "FAILED"


def read_object(payload: bytes | memoryview) -> dict[str, Any]:
    """The JSON object in ``payload``. Raises :class:`FrameMalformed` for anything else."""
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise FrameMalformed(f"payload is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FrameMalformed("payload is not a JSON object")
    return value


CONTINUATION_WAYS = frozenset({"final_message", "prefill", "prompt"})
"""How an engine may be asked to go on with an answer (PROTOCOL §4.7)."""


def _text(value: Mapping[str, Any], key: str, default: str | None = None, most: int = 4096) -> str:
    item = value.get(key, default)
    if not isinstance(item, str) or len(item) > most:
        raise FrameMalformed(f"member {key!r} must be a string of at most {most} characters")
    return item


def _optional_text(value: Mapping[str, Any], key: str) -> str | None:
    return None if value.get(key) is None else _text(value, key)


def _integer(value: Mapping[str, Any], key: str, default: int | None = None, most: int = 2**53) -> int:
    item = value.get(key, default)
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= most:
        raise FrameMalformed(f"member {key!r} must be an integer from 0 to {most}")
    return item


def _number(value: Mapping[str, Any], key: str, most: float = 1e15) -> float | None:
    item = value.get(key)
    if item is None:
        return None
    if not isinstance(item, int | float) or isinstance(item, bool):
        raise FrameMalformed(f"member {key!r} must be a number")
    if not math.isfinite(item) or not -most <= item <= most:
        raise FrameMalformed(f"member {key!r} is out of range")
    return float(item)


def _continues(value: Any) -> Mapping[str, str]:
    """Route → way. Words this version does not know are left out."""
    if not isinstance(value, dict) or len(value) > 32:
        raise FrameMalformed("member 'continues' must be an object with at most 32 members")
    return {route: way for route, way in value.items() if isinstance(way, str) and way in CONTINUATION_WAYS}


def _choice(value: Mapping[str, Any], key: str, kind: type[_E], default: str | None = None) -> _E:
    try:
        return kind(value.get(key, default))
    except ValueError:
        raise FrameMalformed(f"member {key!r} must be one of {', '.join(kind)}") from None


def _flag(value: Mapping[str, Any], key: str) -> bool:
    item = value.get(key, False)
    if not isinstance(item, bool):
        raise FrameMalformed(f"member {key!r} must be true or false")
    return item


def _headers(value: Mapping[str, Any]) -> Headers:
    items = value.get("headers", [])
    if not isinstance(items, list) or len(items) > limits.HEADERS:
        raise FrameMalformed(f"member 'headers' must be a list of at most {limits.HEADERS} pairs")
    size_bytes = 0
    headers: list[tuple[str, str]] = []
    for item in items:
        if not isinstance(item, list) or len(item) != 2:
            raise FrameMalformed("a header must be a pair of strings")
        name, text = item
        if not isinstance(name, str) or not isinstance(text, str):
            raise FrameMalformed("a header must be a pair of strings")
        if not _is_field_name(name) or _HEADER_FORBIDDEN.search(text):
            raise FrameMalformed("a header must have a lower-case name and no control characters")
        size_bytes += len(name) + len(text)
        headers.append((name, text))
    if size_bytes > limits.HEADER_BYTES:
        raise FrameMalformed(f"headers exceed {limits.HEADER_BYTES} bytes")
    return tuple(headers)


@lru_cache(maxsize=256)
def _is_field_name(name: str) -> bool:
    """Remembered, because few names are ever used, and the same all the time."""
    return name != "" and name == name.lower() and not _HEADER_FORBIDDEN.search(name)


def _objects(value: Mapping[str, Any], key: str, most: int) -> list[dict[str, Any]]:
    items = value.get(key, [])
    if not isinstance(items, list) or len(items) > most or not all(isinstance(item, dict) for item in items):
        raise FrameMalformed(f"member {key!r} must be a list of at most {most} objects")
    return items


@dataclass(slots=True)
class RequestHead:
    """OPEN (PROTOCOL §4.1). ``credit`` is how many bytes of response body the gateway takes at first; the
    session sets it when it sends the head."""

    deployment: str
    method: str
    path: str
    headers: Headers
    model: str
    request_id: str
    streaming: bool = False
    usage: UsageMode = UsageMode.NONE
    tier: str = "standard"
    deadline_s: float | None = None
    credit: int = 0
    trace: str | None = None

    def to_payload(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> "RequestHead":
        value = read_object(payload)
        method, path = _text(value, "method", most=32), _text(value, "path", most=8192)
        if not method.isalpha() or not method.isascii():
            raise FrameMalformed("member 'method' must be an HTTP method")
        if not path.startswith("/") or _PATH_FORBIDDEN.search(path):
            raise FrameMalformed("member 'path' must begin with '/' and hold no blanks or control characters")
        return cls(
            deployment=_text(value, "deployment", most=limits.MODEL_NAME_CHARS),
            method=method,
            path=path,
            headers=_headers(value),
            model=_text(value, "model", most=limits.MODEL_NAME_CHARS),
            request_id=_text(value, "request_id", most=128),
            streaming=_flag(value, "streaming"),
            usage=_choice(value, "usage", UsageMode, UsageMode.NONE),
            tier=_text(value, "tier", "standard", most=32),
            deadline_s=_number(value, "deadline_s"),
            credit=_integer(value, "credit", 0),
            trace=_optional_text(value, "trace"),
        )


@frozen
class ResponseHead:
    """HEAD (PROTOCOL §4.2)."""

    status: int
    headers: Headers

    def to_payload(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> "ResponseHead":
        value = read_object(payload)
        status = _integer(value, "status", most=599)
        if status < 200:
            raise FrameMalformed("member 'status' must be a final HTTP status, 200 to 599")
        return cls(status, _headers(value))


@frozen
class Usage:
    """Tokens a request used, as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@frozen
class Trailers:
    """END from the agent (PROTOCOL §4.4). Times in seconds since the agent received OPEN."""

    usage: Usage | None = None
    queue_s: float | None = None
    first_byte_s: float | None = None
    total_s: float | None = None

    def to_payload(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> "Trailers":
        value = read_object(payload)
        usage = value.get("usage")
        if usage is not None and not isinstance(usage, dict):
            raise FrameMalformed("member 'usage' must be an object")
        return cls(
            usage=None
            if usage is None
            else Usage(
                _integer(usage, "prompt_tokens", 0),
                _integer(usage, "completion_tokens", 0),
                _integer(usage, "cached_tokens", 0),
            ),
            queue_s=_number(value, "queue_s"),
            first_byte_s=_number(value, "first_byte_s"),
            total_s=_number(value, "total_s"),
        )


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """One model as served by one engine of the agent (PROTOCOL §4.7). ``id`` is unique in the session."""

    id: str
    model: str
    version: str = ""
    status: DeploymentStatus = DeploymentStatus.LOADED
    routes: tuple[str, ...] = ("any",)
    slots: int = 1
    context_tokens: int | None = None
    running: int = 0
    waiting: int = 0
    kv_use: float | None = None
    reason: str = ""
    continues: Mapping[str, str] = field(default_factory=dict)
    """Route → how the engine can be asked to go on with an answer that another one began: ``final_message``,
    ``prefill`` or ``prompt`` (PROTOCOL §4.7)."""

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "DeploymentState":
        routes = value.get("routes", ["any"])
        if not isinstance(routes, list) or len(routes) > 32 or not all(isinstance(r, str) for r in routes):
            raise FrameMalformed("member 'routes' must be a list of strings")
        identity, model = (
            _text(value, "id", most=limits.MODEL_NAME_CHARS),
            _text(value, "model", most=limits.MODEL_NAME_CHARS),
        )
        if not identity or not model or _PATH_FORBIDDEN.search(identity + model):
            raise FrameMalformed("a deployment's id and model must not be empty or hold blanks")
        context = value.get("context_tokens")
        return cls(
            id=identity,
            model=model,
            version=_text(value, "version", "", most=limits.MODEL_NAME_CHARS),
            status=_choice(value, "status", DeploymentStatus),
            routes=tuple(routes),
            slots=_integer(value, "slots", 0, most=1_000_000),
            context_tokens=None if context is None else _integer(value, "context_tokens"),
            running=_integer(value, "running", 0),
            waiting=_integer(value, "waiting", 0),
            kv_use=_number(value, "kv_use"),
            reason=_text(value, "reason", "")[: limits.REASON_CHARS],
            continues=_continues(value.get("continues", {})),
        )


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU of the host. ``utilisation`` from 0 to 1."""

    index: int
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    utilisation: float | None = None
    temperature_c: float | None = None

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "GpuState":
        return cls(
            index=_integer(value, "index", most=4096),
            name=_text(value, "name", most=256),
            memory_total_bytes=_integer(value, "memory_total_bytes"),
            memory_used_bytes=_integer(value, "memory_used_bytes"),
            utilisation=_number(value, "utilisation"),
            temperature_c=_number(value, "temperature_c"),
        )


@dataclass(frozen=True, slots=True)
class AgentState:
    """STATE: all there is to say about an agent, whole each time (PROTOCOL §4.7)."""

    status: AgentStatus
    deployments: tuple[DeploymentState, ...] = ()
    gpus: tuple[GpuState, ...] = ()

    def to_payload(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> "AgentState":
        value = read_object(payload)
        deployments = tuple(
            DeploymentState.read(item) for item in _objects(value, "deployments", limits.DEPLOYMENTS)
        )
        if len({deployment.id for deployment in deployments}) != len(deployments):
            raise FrameMalformed("two deployments have the same id")
        gpus = tuple(GpuState.read(item) for item in _objects(value, "gpus", limits.GPUS))
        return cls(_choice(value, "status", AgentStatus), deployments, gpus)


@dataclass(frozen=True, slots=True)
class Drain:
    """DRAIN (PROTOCOL §4.9): no new streams; where else to dial; seconds left for what runs."""

    reason: str
    deadline_s: float
    gateways: tuple[str, ...] = ()

    def to_payload(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> "Drain":
        value = read_object(payload)
        gateways = value.get("gateways", [])
        if (
            not isinstance(gateways, list)
            or len(gateways) > 64
            or not all(isinstance(g, str) for g in gateways)
        ):
            raise FrameMalformed("member 'gateways' must be a list of URLs")
        return cls(_text(value, "reason", ""), _number(value, "deadline_s") or 0.0, tuple(gateways))


def encode_levels(levels: Mapping[str, int]) -> bytes:
    """The payload of SLOTS (deployment id → slots) and DEMAND (model → requests waiting)."""
    return orjson.dumps(dict(levels))


def decode_levels(payload: bytes | memoryview) -> dict[str, int]:
    """Reads SLOTS or DEMAND. Raises :class:`FrameMalformed`."""
    value = read_object(payload)
    if len(value) > limits.DEPLOYMENTS:
        raise FrameMalformed(f"more than {limits.DEPLOYMENTS} levels")
    if any(len(key) > limits.MODEL_NAME_CHARS for key in value):
        raise FrameMalformed(f"a level's name has more than {limits.MODEL_NAME_CHARS} characters")
    return {key: _integer(value, key, most=1_000_000) for key in value}
