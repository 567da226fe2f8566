"""What a STATE says of a deployment and of a GPU (PROTOCOL §4.7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, Field, PlainValidator

from shared.protocol import limits
from shared.protocol.batch_sizes import BatchSizes, usable_batch_sizes
from shared.protocol.capabilities import usable_capabilities
from shared.protocol.engine_state import DeploymentStatus
from shared.protocol.members import (
    Amount,
    Count,
    Flag,
    GatewayPath,
    Identifier,
    Labels,
    Level,
    Name,
    Number,
    Reason,
    Seconds,
    Share,
    Text,
    one_line,
)
from shared.protocol.routes import LACKED, NEED_CHARS
from shared.protocol.work import WorkScale, usable_scale

CONTINUATION_WAYS = frozenset({"final_message", "prefill", "prompt"})
"""The ways in which an engine goes on with an answer (PROTOCOL §4.7)."""


def _known_ways(value: Any) -> dict[str, str]:
    """Route → way. Words this version does not know are left out."""
    if not isinstance(value, dict) or len(value) > 32:
        raise ValueError("must be an object with at most 32 members")
    return {route: way for route, way in value.items() if isinstance(way, str) and way in CONTINUATION_WAYS}


def _usable_needs(value: Any) -> tuple[str, ...]:
    """Leaves out what cannot be a need, and what there is no room for."""
    if not isinstance(value, list):
        raise ValueError("must be a list of strings")  # noqa: TRY004 (what pydantic takes)
    needs = (need for need in value if isinstance(need, str) and 0 < len(need) <= NEED_CHARS)
    return tuple(islice(needs, LACKED))


def _gpu_indices(value: Any) -> tuple[int, ...]:
    """Leaves out what cannot be an index, and what there is no room for."""
    if not isinstance(value, list):
        raise ValueError("must be a list of numbers")  # noqa: TRY004 (what pydantic takes)
    indices = (each for each in value if type(each) is int and 0 <= each <= GPU_INDEX)
    return tuple(islice(dict.fromkeys(indices), limits.GPUS))


GPU_INDEX = 4096
"""The highest index of a GPU."""


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """One model as served by one engine of the agent (PROTOCOL §4.7). ``id`` is unique in the session."""

    id: Identifier
    model: Identifier
    version: Name = ""
    status: DeploymentStatus = DeploymentStatus.LOADED
    routes: Annotated[tuple[str, ...], Field(max_length=32)] = ("any",)
    slots: Level = 1
    context_tokens: Count | None = None
    running: Count = 0
    waiting: Count = 0
    kv_use: Number | None = None
    reason: Reason = ""
    kind: Annotated[Text, AfterValidator(lambda kind: kind[: limits.LABEL_CHARS])] = ""
    """The kind of its engine: ``vllm``, ``ollama``, …, ``generic``; empty: the agent does not say."""
    continues: Annotated[Mapping[str, str], PlainValidator(_known_ways)] = field(default_factory=dict)
    """Route → how the engine can be asked to go on with an answer that another one began: ``final_message``,
    ``prefill`` or ``prompt`` (PROTOCOL §4.7)."""
    managed: Flag = False
    """The agent loads and unloads it on command: ``loadable`` ⇄ ``loading`` → ``loaded``."""
    memory_bytes: Amount | None = None
    """What it takes of the agent's ``model_memory_bytes`` while it is loaded."""
    load_s: Seconds | None = None
    """How long loading takes, as measured last or as the operator says."""
    load_progress: Share | None = None
    """0 to 1 while it is ``loading``, where that can be known."""
    kv_tokens: Amount | None = None
    """Tokens of context its engine has room for, of all requests together."""
    lacks: Annotated[tuple[str, ...], PlainValidator(_usable_needs)] = ()
    """The paths of its ``routes`` that its engine does not have, as needs (:mod:`shared.protocol.routes`)."""
    stateful: Flag = False
    """Requests for the engine's own paths use what others left behind there, so they belong together."""
    device: Annotated[Text, AfterValidator(lambda device: one_line(device[: limits.DEVICE_CHARS]))] = ""
    """What it runs on, where the agent is a gateway, whose deployments run on different GPUs."""
    via: GatewayPath = ()
    """The gateways that it is served through, the agent first; empty for an agent that is no gateway."""
    labels: Labels | None = None
    """Those of the agents behind it, where the agent is a gateway, whose agents may stand in different
    places; None: it does not say."""
    upgrades: Flag = False
    """Its agent takes requests for a WebSocket to the engine's own paths (PROTOCOL §5.5)."""
    translated: Annotated[tuple[str, ...], PlainValidator(_usable_needs)] = ()
    """Needs whose requests its agent translates to chat completions: its engine has no such paths."""
    capabilities: Annotated[tuple[str, ...], PlainValidator(usable_capabilities)] = ()
    """What its engine says of the model, in the engine's words: ``tools``, ``vision``, …; for clients."""
    gpu_indices: Annotated[tuple[int, ...], PlainValidator(_gpu_indices)] = ()
    """The host's GPUs that it runs on; empty: the agent does not say."""
    work: Annotated[WorkScale | None, PlainValidator(usable_scale)] = None
    """How much work a request for pictures or videos is; None: the agent does not say."""
    batches: Annotated[BatchSizes | None, PlainValidator(usable_batch_sizes)] = None
    """How many items its engine has computed at once; None: it does not say."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU of the host. ``utilisation`` from 0 to 1 is the share of the last second or so in which it
    computed. What its driver does not tell is None."""

    index: Annotated[int, Field(strict=True, ge=0, le=GPU_INDEX)]
    name: Annotated[Name, AfterValidator(one_line)]
    memory_total_bytes: Count
    memory_used_bytes: Count
    utilisation: Number | None = None
    temperature_c: Number | None = None
    power_w: Number | None = None
    """What it draws now. Agents of earlier versions do not say it."""


def device_of(deployment: DeploymentState, gpus: Sequence[GpuState]) -> str:
    """What ``deployment`` runs on: the names of its own GPUs, or, where it does not say which these are, of
    all ``gpus`` of its host; each name once."""
    own = [gpu for gpu in gpus if gpu.index in deployment.gpu_indices]
    return ",".join(sorted({gpu.name for gpu in own or gpus}))


_NO_LABELS_SAID = b',"labels":null'
"""What the deployments of an agent have that says none of them."""

_NO_UPGRADES = b',"upgrades":false'
"""What the deployments of an agent have that takes no requests for a WebSocket."""

_NONE_TRANSLATED = b',"translated":[]'
_NO_CAPABILITIES = b',"capabilities":[]'
"""What most deployments have whose engines speak all their routes, and say nothing of their models."""

_NO_WORK = b',"work":null'
"""What the deployments of an agent have that does not say how much work their requests are."""

_NO_GPUS = b',"gpu_indices":[]'
"""What the deployments of an agent have that does not say where they run."""

_NO_POWER = b',"power_w":null'
"""What GPUs have whose drivers do not say what they draw."""

_NO_BATCHES = b',"batches":null'
"""What deployments have whose engines do not say what they compute at once."""

_NO_GATEWAY = b',"device":"","via":[]'
"""What the deployments of an agent that is no gateway have; it is left out."""

_NOT_MANAGED = b"," + orjson.dumps(DeploymentState("", "")).partition(b"{},")[2].removesuffix(
    _NO_GATEWAY
    + _NO_LABELS_SAID
    + _NO_UPGRADES
    + _NONE_TRANSLATED
    + _NO_CAPABILITIES
    + _NO_GPUS
    + _NO_WORK
    + _NO_BATCHES
    + b"}"
)
"""The members about loading, at their defaults as most deployments have them; they are left out.

A quotation mark inside a JSON string has a backslash before it, so this text cannot be part of a string."""

_NO_KIND = b',"kind":""'
"""The same for an engine whose kind the agent does not say."""
_LACKS_NONE = b',"lacks":[],"stateful":false'
"""The same for members that were added later."""

UNSAID = (
    _NO_POWER,
    *(_NO_BATCHES, _NO_WORK, _NO_GPUS, _NONE_TRANSLATED, _NO_CAPABILITIES, _NO_UPGRADES),
    *(_NO_LABELS_SAID, _NO_GATEWAY),
    *(_NOT_MANAGED, _NO_KIND, _LACKS_NONE),
)
"""What is left out of a state; what was added later comes first, as it ends what was there before."""
