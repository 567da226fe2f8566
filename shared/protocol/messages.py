"""What the JSON payloads of frames say, as plain data (PROTOCOL §4).

Reading a payload validates everything a peer could get wrong and raises
:class:`~shared.protocol.errors.FrameMalformed`. Unknown members are ignored, so that a newer peer may add
some.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

import orjson
from msgspec import Meta, Struct
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from shared.protocol import limits, structs
from shared.protocol.commands import Command as Command
from shared.protocol.commands import CommandResult as CommandResult
from shared.protocol.commands import CommandVerb as CommandVerb
from shared.protocol.deployment_state import CONTINUATION_WAYS as CONTINUATION_WAYS
from shared.protocol.deployment_state import UNSAID
from shared.protocol.deployment_state import DeploymentState as DeploymentState
from shared.protocol.deployment_state import GpuState as GpuState
from shared.protocol.engine_state import DeploymentStatus as DeploymentStatus
from shared.protocol.engine_state import EngineState
from shared.protocol.errors import FrameMalformed
from shared.protocol.members import (
    Amount,
    Labels,
    Level,
    Name,
    Number,
    Payload,
    Reason,
    Text,
    read,
)
from shared.protocol.members import Headers as Headers
from shared.protocol.members import read_object as read_object
from shared.protocol.others import Expected, check_expected
from shared.protocol.structs import NOT_READ, ReceivedHeaders, check_headers, decoder_of, read_again


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


_NOT_IN_PATH = re.compile(r"[\x00-\x20\x7f]")


class RequestHead(Struct, gc=False):
    """OPEN (PROTOCOL §4.1). ``credit`` is how many bytes of response body the gateway takes at first; the
    session sets it when it sends the head."""

    deployment: structs.Name
    method: Annotated[str, Meta(max_length=32)]
    path: Annotated[str, Meta(max_length=8192)]
    headers: ReceivedHeaders
    model: structs.Name
    request_id: Annotated[str, Meta(max_length=128)]
    streaming: bool = False
    usage: UsageMode = UsageMode.NONE
    tier: Annotated[str, Meta(max_length=32)] = "standard"
    deadline_s: structs.Number | None = None
    credit: structs.Count = 0
    trace: structs.Text | None = None
    expected: Expected | None = None
    """What it is expected to take; said only where OTHERS is agreed on (PROTOCOL §4.11)."""
    where: structs.Where | None = None
    """Where it may run, for an agent that is a gateway (PROTOCOL §7.6); None: anywhere."""
    via: structs.GatewayPath = ()
    """The gateways that it came through, the sender last; empty for an agent that is none."""
    upgrade: bool = False
    """Its client asks for a WebSocket (PROTOCOL §5.5)."""
    gather_s: structs.Seconds | None = None
    """So long the response's body may be held back, to be sent in fewer pieces: nobody reads it before it is
    whole."""

    @staticmethod
    def from_payload(payload: bytes) -> "RequestHead":
        """What OPEN says. Raises :class:`FrameMalformed`."""
        try:
            head = _decode_request(payload)
        except NOT_READ:
            head = read_again(RequestHead, payload, _default_headers)
        # patterns would take twice as long as all the rest
        if not (head.method.isascii() and head.method.isalpha()):
            raise FrameMalformed("member 'method': must be letters")
        path = head.path
        if path[:1] != "/" or ((" " in path or not path.isprintable()) and _NOT_IN_PATH.search(path)):
            raise FrameMalformed("member 'path': must begin with / and have no blanks or control characters")
        check_headers(head.headers)
        if head.expected is not None:
            check_expected(head.expected)
        return head

    def to_payload(self) -> bytes:
        # Half of what it takes to have the dataclass itself written.
        said: dict[str, Any] = {
            "deployment": self.deployment,
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "model": self.model,
            "request_id": self.request_id,
            "streaming": self.streaming,
            "usage": self.usage,
            "tier": self.tier,
            "deadline_s": self.deadline_s,
            "credit": self.credit,
            "trace": self.trace,
        }
        if self.via:
            said |= {"where": self.where, "via": self.via}
        if self.upgrade:
            said["upgrade"] = True
        if self.gather_s is not None:
            said["gather_s"] = self.gather_s
        if self.expected is not None:
            payload = orjson.dumps(said | {"expected": self.expected.to_dict()})
            if len(payload) <= limits.CONTROL_PAYLOAD_BYTES:
                return payload
        return orjson.dumps(said)


def _default_headers(head: dict[str, object]) -> None:
    """A request may have none, and its gateway say nothing of them then."""
    head.setdefault("headers", [])


UPGRADED = 101
"""The status of a response that is two-way messages from here on (PROTOCOL §5.5)."""


class Refusal(StrEnum):
    """Why an engine refused a request with 429 or 503, where its agent can tell (PROTOCOL §4.2)."""

    BUSY = "busy"
    """It has too many requests at once; it may take the same request later."""
    REQUEST = "request"
    """It will not take this request, whatever else runs."""


_REFUSALS = frozenset(Refusal)
_LEAST_STATUS = 200


def _forget_unknown_refusal(head: dict[str, object]) -> None:
    """Of a word that this version does not know, nothing is left."""
    if "refusal" in head and not (isinstance(word := head["refusal"], str) and word in _REFUSALS):
        del head["refusal"]


class ResponseHead(Struct, frozen=True, gc=False):
    """HEAD (PROTOCOL §4.2). ``refusal`` is None but for a 429 or 503 of which its agent can tell why."""

    status: Annotated[int, Meta(ge=UPGRADED, le=599)]
    headers: ReceivedHeaders = ()
    lacks_path: bool = False
    """The engine has nothing at the request's path; it is not the model or an object that is missing."""
    refusal: Refusal | None = None
    ran_by: structs.RanBy = ""
    """Who answers, where the agent is a gateway: its own agent, behind the names of gateways between."""

    @staticmethod
    def from_payload(payload: bytes) -> "ResponseHead":
        """What HEAD says. Raises :class:`FrameMalformed`."""
        try:
            head = _decode_response(payload)
        except NOT_READ:
            head = read_again(ResponseHead, payload, _forget_unknown_refusal)
        if head.status < _LEAST_STATUS and head.status != UPGRADED:
            raise FrameMalformed(f"member 'status': must be {UPGRADED} or at least {_LEAST_STATUS}")
        check_headers(head.headers)
        return head

    def to_payload(self) -> bytes:
        said: dict[str, Any] = {"status": self.status, "headers": self.headers}
        if self.ran_by:
            said["ran_by"] = self.ran_by
        if self.lacks_path:
            said["lacks_path"] = True
        if self.refusal is not None:
            said["refusal"] = self.refusal
        return orjson.dumps(said)


class Usage(Struct, frozen=True, gc=False):
    """Tokens a request used, as the engine counted them."""

    prompt_tokens: structs.Count = 0
    completion_tokens: structs.Count = 0
    cached_tokens: structs.Count = 0


class Trailers(Struct, frozen=True, gc=False):
    """END from the agent (PROTOCOL §4.4). Times in seconds since the agent received OPEN."""

    usage: Usage | None = None
    queue_s: structs.Number | None = None
    first_byte_s: structs.Number | None = None
    total_s: structs.Number | None = None
    gpu_s: structs.Seconds | None = None
    """GPU-seconds that it took: of each second that it ran, the share of those that ran beside it."""
    ran_by: structs.RanBy = ""
    """As in HEAD, of the last that answered."""
    device: structs.Text = ""
    """What its engine runs on, where the agent is a gateway."""

    @staticmethod
    def from_payload(payload: bytes) -> "Trailers":
        """What END says. Raises :class:`FrameMalformed`."""
        try:
            return _decode_trailers(payload)
        except NOT_READ:
            return read_again(Trailers, payload)

    def to_payload(self) -> bytes:
        usage = self.usage
        said: dict[str, Any] = {
            "usage": None
            if usage is None
            else {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            "queue_s": self.queue_s,
            "first_byte_s": self.first_byte_s,
            "total_s": self.total_s,
        }
        if self.gpu_s is not None:
            said["gpu_s"] = self.gpu_s
        if self.ran_by:
            said |= {"ran_by": self.ran_by, "device": self.device}
        return orjson.dumps(said)


_decode_request, _decode_response = decoder_of(RequestHead), decoder_of(ResponseHead)
_decode_trailers = decoder_of(Trailers)

_NO_LABELS = b',"labels":{}}'
_NO_ENGINES = b',"engines":[],"reason":""}'


def _with_defaults_of_the_wire(deployment: Any) -> Any:
    """Adds the defaults of members for which the constructor has others: ``status`` must be there."""
    return {"status": None, "slots": 0} | deployment if isinstance(deployment, dict) else deployment


def _check_ids(deployments: tuple[DeploymentState, ...]) -> tuple[DeploymentState, ...]:
    if len({deployment.id for deployment in deployments}) != len(deployments):
        raise ValueError("two deployments have the same id")
    return deployments


def _engines_of_known_status(engines: Any) -> Any:
    """Leaves out engines whose status this version does not know."""
    if not isinstance(engines, list) or len(engines) > limits.ENGINES:
        raise ValueError(f"must be a list of at most {limits.ENGINES} objects")
    known = [str(status) for status in DeploymentStatus]
    return [each for each in engines if not isinstance(each, dict) or each.get("status") in known]


@dataclass(frozen=True, slots=True)
class AgentState(Payload):
    """STATE: all there is to say about an agent, whole each time (PROTOCOL §4.7)."""

    status: AgentStatus
    deployments: Annotated[
        tuple[Annotated[DeploymentState, BeforeValidator(_with_defaults_of_the_wire)], ...],
        Field(max_length=limits.DEPLOYMENTS),
        AfterValidator(_check_ids),
    ] = ()
    gpus: Annotated[tuple[GpuState, ...], Field(max_length=limits.GPUS)] = ()
    model_memory_bytes: Amount | None = None
    """Room for all its managed deployments together; None: no bound is known."""
    labels: Labels = field(default_factory=dict)
    """What its host says of itself; only what its identity says, too, is true for a gateway."""
    engines: Annotated[tuple[EngineState, ...], BeforeValidator(_engines_of_known_status)] = ()
    """Every engine, also those without a deployment; empty where the agent is of an earlier version."""
    reason: Reason = ""
    """Why it serves nothing; for people."""

    def to_payload(self) -> bytes:
        payload = orjson.dumps(self)
        for unsaid in UNSAID:
            payload = payload.replace(unsaid, b"")
        if not payload.endswith(_NO_ENGINES):
            return payload
        payload = payload.removesuffix(_NO_ENGINES) + b"}"
        return payload if self.labels else payload.removesuffix(_NO_LABELS) + b"}"


def state_within(state: AgentState, most_bytes: int) -> AgentState:
    """``state`` cut to so many bytes: without what is for clients only, then without its last deployments."""
    if len(state.to_payload()) > most_bytes:
        state = replace(state, deployments=tuple(replace(d, capabilities=()) for d in state.deployments))
    while (size_bytes := len(state.to_payload())) > most_bytes and state.deployments:
        # An estimate: encoding takes a millisecond.
        fitting = len(state.deployments) * most_bytes // size_bytes
        state = replace(state, deployments=state.deployments[: min(fitting, len(state.deployments) - 1)])
    return state


@dataclass(frozen=True, slots=True)
class Drain(Payload):
    """DRAIN (PROTOCOL §4.9): no new streams; where else to dial; seconds left for what runs."""

    reason: Annotated[Text, Field(default="")]
    deadline_s: Annotated[
        Number, Field(default=0.0), BeforeValidator(lambda value: 0.0 if value is None else value)
    ]
    gateways: Annotated[tuple[str, ...], Field(max_length=64)] = ()


_LEVELS = TypeAdapter(Annotated[dict[Name, Level], Field(max_length=limits.DEPLOYMENTS)])


def encode_levels(levels: Mapping[str, int]) -> bytes:
    """The payload of SLOTS: deployment id → slots."""
    return orjson.dumps(dict(levels))


def decode_levels(payload: bytes) -> dict[str, int]:
    """Reads SLOTS. Raises ``FrameMalformed``."""
    return read(_LEVELS, read_object(payload), lambda complaint: FrameMalformed(f"levels: {complaint}"))
