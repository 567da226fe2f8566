"""What the JSON payloads of frames say, as plain data (PROTOCOL §4).

Each class reads and writes its own payload. Reading validates everything a peer could get wrong and
raises :class:`~shared.protocol.errors.FrameMalformed`; unknown members are ignored, so that a newer peer may
add some.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

import orjson

from shared.process.frozen import frozen
from shared.protocol import limits
from shared.protocol.engine_state import DeploymentStatus as DeploymentStatus
from shared.protocol.engine_state import EngineState, read_engines
from shared.protocol.errors import FrameMalformed
from shared.protocol.members import Headers as Headers
from shared.protocol.members import (
    read_amount,
    read_choice,
    read_flag,
    read_headers,
    read_integer,
    read_labels,
    read_number,
    read_objects,
    read_optional_text,
    read_seconds,
    read_share,
    read_text,
)
from shared.protocol.members import read_object as read_object
from shared.protocol.routes import LACKED, NEED_CHARS

_PATH_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")


class UsageMode(StrEnum):
    """What the agent does with the usage chunk of a streamed response (PROTOCOL §4.2)."""

    NONE = "none"
    KEEP = "keep"
    STRIP = "strip"


class AgentStatus(StrEnum):
    READY = "READY"
    BUSY = "BUSY"
    DRAINING = "DRAINING"
    FAILED = "FAILED"


CONTINUATION_WAYS = frozenset({"final_message", "prefill", "prompt"})
"""How an engine may be asked to go on with an answer (PROTOCOL §4.7)."""


def _continues(value: Any) -> Mapping[str, str]:
    """Route → way. Words this version does not know are left out."""
    if not isinstance(value, dict) or len(value) > 32:
        raise FrameMalformed("member 'continues' must be an object with at most 32 members")
    return {route: way for route, way in value.items() if isinstance(way, str) and way in CONTINUATION_WAYS}


def _needs(value: Any) -> tuple[str, ...]:
    """What can be no need is left out, and so is what there is no room for."""
    if not isinstance(value, list):
        raise FrameMalformed("member 'lacks' must be a list of strings")
    needs = (need for need in value if isinstance(need, str) and 0 < len(need) <= NEED_CHARS)
    return tuple(islice(needs, LACKED))


def _refusal(value: Any) -> "Refusal | None":
    """None for a word that this version does not know."""
    return Refusal(value) if isinstance(value, str) and value in _REFUSALS else None


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
        method, path = read_text(value, "method", most=32), read_text(value, "path", most=8192)
        if not method.isalpha() or not method.isascii():
            raise FrameMalformed("member 'method' must be an HTTP method")
        if not path.startswith("/") or _PATH_FORBIDDEN.search(path):
            raise FrameMalformed("member 'path' must begin with '/' and hold no blanks or control characters")
        return cls(
            deployment=read_text(value, "deployment", most=limits.MODEL_NAME_CHARS),
            method=method,
            path=path,
            headers=read_headers(value),
            model=read_text(value, "model", most=limits.MODEL_NAME_CHARS),
            request_id=read_text(value, "request_id", most=128),
            streaming=read_flag(value, "streaming"),
            usage=read_choice(value, "usage", UsageMode, UsageMode.NONE),
            tier=read_text(value, "tier", "standard", most=32),
            deadline_s=read_number(value, "deadline_s"),
            credit=read_integer(value, "credit", 0),
            trace=read_optional_text(value, "trace"),
        )


class Refusal(StrEnum):
    """Why an engine refused a request with 429 or 503, where its agent can tell (PROTOCOL §4.2)."""

    BUSY = "busy"
    """It has too many requests at once; the same request may be taken later."""
    REQUEST = "request"
    """It will not take this request, however little else there is to do."""


_REFUSALS = frozenset(Refusal)


@frozen
class ResponseHead:
    """HEAD (PROTOCOL §4.2). ``refusal`` is None but for a 429 or 503 of which its agent can tell why."""

    status: int
    headers: Headers
    lacks_path: bool = False
    """The engine has nothing at the request's path; it is not the model or an object that is missing."""
    refusal: Refusal | None = None

    def to_payload(self) -> bytes:
        said: dict[str, Any] = {"status": self.status, "headers": self.headers}
        if self.lacks_path:
            said["lacks_path"] = True
        if self.refusal is not None:
            said["refusal"] = self.refusal
        return orjson.dumps(said)

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> "ResponseHead":
        value = read_object(payload)
        status = read_integer(value, "status", most=599)
        if status < 200:
            raise FrameMalformed("member 'status' must be a final HTTP status, 200 to 599")
        return cls(
            status, read_headers(value), read_flag(value, "lacks_path"), _refusal(value.get("refusal"))
        )


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
                read_integer(usage, "prompt_tokens", 0),
                read_integer(usage, "completion_tokens", 0),
                read_integer(usage, "cached_tokens", 0),
            ),
            queue_s=read_number(value, "queue_s"),
            first_byte_s=read_number(value, "first_byte_s"),
            total_s=read_number(value, "total_s"),
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
    kind: str = ""
    """Of its engine, as the agent found it: ``vllm``, ``ollama``, …, ``generic``; empty: not told."""
    continues: Mapping[str, str] = field(default_factory=dict)
    """Route → how the engine can be asked to go on with an answer that another one began: ``final_message``,
    ``prefill`` or ``prompt`` (PROTOCOL §4.7)."""
    managed: bool = False
    """The agent loads and unloads it when told: ``loadable`` ⇄ ``loading`` → ``loaded``."""
    memory_bytes: int | None = None
    """What it takes of the agent's ``model_memory_bytes`` while it is loaded."""
    load_s: float | None = None
    """How long loading takes, as measured last, or as told by the operator."""
    load_progress: float | None = None
    """0 to 1 while it is ``loading``, where that can be known."""
    kv_tokens: int | None = None
    """Tokens of context its engine has room for, of all requests together."""
    lacks: tuple[str, ...] = ()
    """Of the paths of its ``routes`` those its engine does not have, as needs
    (:mod:`shared.protocol.routes`).
    """
    stateful: bool = False
    """What one request for the engine's own paths leaves behind, others ask for: they belong together."""

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "DeploymentState":
        routes = value.get("routes", ["any"])
        if not isinstance(routes, list) or len(routes) > 32 or not all(isinstance(r, str) for r in routes):
            raise FrameMalformed("member 'routes' must be a list of strings")
        identity, model = (
            read_text(value, "id", most=limits.MODEL_NAME_CHARS),
            read_text(value, "model", most=limits.MODEL_NAME_CHARS),
        )
        if not identity or not model or _PATH_FORBIDDEN.search(identity + model):
            raise FrameMalformed("a deployment's id and model must not be empty or hold blanks")
        context = value.get("context_tokens")
        return cls(
            id=identity,
            model=model,
            version=read_text(value, "version", "", most=limits.MODEL_NAME_CHARS),
            status=read_choice(value, "status", DeploymentStatus),
            routes=tuple(routes),
            slots=read_integer(value, "slots", 0, most=1_000_000),
            context_tokens=None if context is None else read_integer(value, "context_tokens"),
            running=read_integer(value, "running", 0),
            waiting=read_integer(value, "waiting", 0),
            kv_use=read_number(value, "kv_use"),
            reason=read_text(value, "reason", "")[: limits.REASON_CHARS],
            kind=read_text(value, "kind", "")[: limits.LABEL_CHARS],
            continues=_continues(value.get("continues", {})),
            managed=read_flag(value, "managed"),
            memory_bytes=read_amount(value, "memory_bytes"),
            load_s=read_seconds(value, "load_s"),
            load_progress=read_share(value, "load_progress"),
            kv_tokens=read_amount(value, "kv_tokens"),
            lacks=_needs(value.get("lacks", [])),
            stateful=read_flag(value, "stateful"),
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
            index=read_integer(value, "index", most=4096),
            name=read_text(value, "name", most=256),
            memory_total_bytes=read_integer(value, "memory_total_bytes"),
            memory_used_bytes=read_integer(value, "memory_used_bytes"),
            utilisation=read_number(value, "utilisation"),
            temperature_c=read_number(value, "temperature_c"),
        )


_NOT_MANAGED = b"," + orjson.dumps(DeploymentState("", "")).partition(b"{},")[2].removesuffix(b"}")
"""The members of loading as most deployments have them: at their defaults, and so left out. In a string no
quotation mark stands without a backslash before it, so this is found where it is meant and nowhere else."""

_NO_KIND = b',"kind":""'
"""The same of an engine whose kind is not told."""
_LACKS_NONE = b',"lacks":[],"stateful":false'
"""The same of what was added after them."""

_NO_LABELS = b',"labels":{}}'
_NO_ENGINES = b',"engines":[],"reason":""}'


@dataclass(frozen=True, slots=True)
class AgentState:
    """STATE: all there is to say about an agent, whole each time (PROTOCOL §4.7)."""

    status: AgentStatus
    deployments: tuple[DeploymentState, ...] = ()
    gpus: tuple[GpuState, ...] = ()
    model_memory_bytes: int | None = None
    """Room for all its managed deployments together; None: no bound is known."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What its host says of itself; only what its identity says, too, is true for a gateway."""
    engines: tuple[EngineState, ...] = ()
    """Every engine, also those without a deployment; empty where the agent is of an earlier version."""
    reason: str = ""
    """Why it serves nothing; for people."""

    def to_payload(self) -> bytes:
        payload = orjson.dumps(self)
        for unsaid in (_NOT_MANAGED, _NO_KIND, _LACKS_NONE):
            payload = payload.replace(unsaid, b"")
        if not payload.endswith(_NO_ENGINES):
            return payload
        payload = payload.removesuffix(_NO_ENGINES) + b"}"
        return payload if self.labels else payload.removesuffix(_NO_LABELS) + b"}"

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> "AgentState":
        value = read_object(payload)
        deployments = tuple(
            DeploymentState.read(item) for item in read_objects(value, "deployments", limits.DEPLOYMENTS)
        )
        if len({deployment.id for deployment in deployments}) != len(deployments):
            raise FrameMalformed("two deployments have the same id")
        gpus = tuple(GpuState.read(item) for item in read_objects(value, "gpus", limits.GPUS))
        return cls(
            read_choice(value, "status", AgentStatus),
            deployments,
            gpus,
            read_amount(value, "model_memory_bytes"),
            read_labels(value),
            read_engines(value),
            read_text(value, "reason", "")[: limits.REASON_CHARS],
        )


class CommandVerb(StrEnum):
    LOAD = "load"
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Command:
    """COMMAND (PROTOCOL §4.8): what the gateway wants of one managed deployment."""

    id: int
    verb: CommandVerb
    deployment: str

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "verb": self.verb.value, "deployment": self.deployment}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "Command":
        """Raises :class:`FrameMalformed`, for a verb that this version does not know as well."""
        return cls(
            read_integer(value, "id"),
            read_choice(value, "verb", CommandVerb),
            read_text(value, "deployment", most=limits.MODEL_NAME_CHARS),
        )


@dataclass(frozen=True, slots=True)
class CommandResult:
    """RESULT (PROTOCOL §4.8): whether the agent takes the command of that ``id`` on; ``error``: why not."""

    id: int
    ok: bool
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "ok": self.ok, "error": self.error}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> "CommandResult":
        """Raises :class:`FrameMalformed`."""
        error = read_text(value, "error", "")[: limits.REASON_CHARS]
        return cls(read_integer(value, "id"), read_flag(value, "ok"), error)


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
        return cls(read_text(value, "reason", ""), read_number(value, "deadline_s") or 0.0, tuple(gateways))


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
    return {key: read_integer(value, key, most=1_000_000) for key in value}
