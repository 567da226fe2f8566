"""What a lying or broken agent sends without end: WebSocket frames, control frames, states, slots. Pure."""

from collections.abc import Callable, Iterator, Mapping
from random import Random

import orjson
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode

from shared.protocol import limits
from shared.protocol.errors import ErrorCode
from shared.protocol.frames import FrameType, encode, encode_offset, encode_reason
from shared.protocol.messages import (
    AgentState,
    AgentStatus,
    DeploymentState,
    DeploymentStatus,
    Drain,
    GpuState,
)

Pieces = Iterator[tuple[int, bytes]]
"""Without end: what to send next, and how many units it costs (PROTOCOL §2.6)."""

_STATUSES = (
    DeploymentStatus.LOADED,
    DeploymentStatus.FAILED,
    DeploymentStatus.LOADING,
    DeploymentStatus.LOADABLE,
)
_HARMLESS = ("", "é", "🦙", "％", "'", "\\", "<b>", "{}", "*", "[a-z]", "@", ":", "/")
_STATE_BYTES = limits.CONTROL_PAYLOAD_BYTES


def raw(opcode: Opcode, data: bytes, fin: bool = True) -> bytes:
    """A WebSocket frame as an agent sends it."""
    return WebSocketFrame(opcode, data, fin).serialize(mask=True)


def _message(*frames: bytes) -> bytes:
    return raw(Opcode.BINARY, b"".join(frames))


def _units(payload: bytes) -> int:
    return 1 + len(payload) // limits.CONTROL_FRAME_UNIT_BYTES


def _pings(random: Random) -> Pieces:
    opcode, size = random.choice((Opcode.PING, Opcode.PONG)), random.choice((0, 1, 125))
    while True:
        yield 1, raw(opcode, bytes(size))


def _fragments(random: Random) -> Pieces:
    size = random.choice((0, 1, 100))
    yield 1, raw(Opcode.BINARY, b"", fin=False)
    while True:
        yield 1, raw(Opcode.CONT, bytes(size), fin=False)


def _numbers(random: Random) -> Pieces:
    kind = random.choice((FrameType.PING, FrameType.PONG, FrameType.ACK, FrameType.CREDIT))
    offset = random.choice((0, 1)) if kind is not FrameType.ACK else 0
    while True:
        yield 1, _message(encode(kind, 0, encode_offset(offset)))


def _results(random: Random) -> Pieces:
    reason = "x" * random.choice((0, 500))
    while True:
        payload = orjson.dumps({"id": random.getrandbits(20), "ok": True, "reason": reason})
        yield _units(payload), _message(encode(FrameType.RESULT, 0, payload))


def _drains(random: Random) -> Pieces:
    while True:
        payload = Drain("going away", random.random() * 100).to_payload()
        yield _units(payload), _message(encode(FrameType.DRAIN, 0, payload))


def _resets(random: Random) -> Pieces:
    """Of streams that never were."""
    while True:
        payload = encode_reason(random.choice(list(ErrorCode)), "why")
        yield _units(payload), _message(encode(FrameType.RESET, random.randint(1, 2**31), payload))


def _short_slots(random: Random) -> Pieces:
    level = 0
    while True:
        level = 1 - level
        yield 1, _message(encode(FrameType.SLOTS, 0, b'{"d0":%d}' % level))


def _deployments(random: Random, count: int) -> list[DeploymentState]:
    """With names of any length, as many as fit into a state."""
    length = random.choice((0, 0, 60, limits.MODEL_NAME_CHARS - 8))
    managed = random.random() < 0.3
    found = []
    for number in range(count):
        tail = random.choice(_HARMLESS) + "x" * length
        found.append(
            DeploymentState(
                f"d{number}",
                f"evil{number % random.choice((1, 3, count))}-{tail}"[: limits.MODEL_NAME_CHARS],
                version=random.choice(("", "v1")),
                routes=random.choice((("any",), ("chat", "completions"), ("chat", "nonsense"))),
                slots=random.choice((0, 1, limits.OPEN_STREAMS)),
                context_tokens=random.choice((None, 1, 10**6)),
                kv_use=random.choice((None, 0.5)),
                managed=managed,
                memory_bytes=10**9 if managed else None,
            )
        )
    return found


def _state_of(
    deployments: list[DeploymentState], gpus: tuple[GpuState, ...], labels: Mapping[str, str]
) -> bytes:
    while True:
        state = AgentState(AgentStatus.READY, tuple(deployments), gpus, labels=labels)
        payload = state.to_payload()
        if len(payload) <= _STATE_BYTES:
            return payload
        deployments = deployments[: len(deployments) * 9 // 10]


def _frozen(random: Random) -> tuple[tuple[GpuState, ...], Mapping[str, str]]:
    gpus = tuple(
        GpuState(number, random.choice(("H200", "x" * 200)), 10**11, 10**10)
        for number in range(random.choice((0, 1, 8)))
    )
    return gpus, random.choice(
        ({}, {"region": "moon"}, {f"l{number}": "x" for number in range(limits.LABELS)})
    )


def _long_slots(random: Random) -> Pieces:
    """Every level of many deployments changes with each of them."""
    deployments = _deployments(random, limits.DEPLOYMENTS)
    state = _state_of(deployments, *_frozen(random))
    yield _units(state), _message(encode(FrameType.STATE, 0, state))
    names = [each["id"] for each in orjson.loads(state)["deployments"]]
    payloads = [orjson.dumps(dict.fromkeys(names, level)) for level in (0, 5, 1024, 10**6)]
    while True:
        payloads.append(payloads.pop(0))
        payload = payloads[0]
        yield min(_units(payload), limits.SLOTS_UNITS), _message(encode(FrameType.SLOTS, 0, payload))


def _flapping(random: Random) -> Pieces:
    """Deployments are lost and loaded again and again."""
    deployments = _deployments(random, random.choice((1, 20, limits.DEPLOYMENTS)))
    extras = _frozen(random)
    names = [each.id for each in deployments]
    slots = encode(FrameType.SLOTS, 0, orjson.dumps(dict.fromkeys(names, 5)))
    yield limits.SLOTS_UNITS, _message(slots)
    payloads = []
    for status in _STATUSES:
        turned = [
            _with_status(each, status if random.random() < 0.9 else DeploymentStatus.LOADED)
            for each in deployments
        ]
        payloads.append(_state_of(turned, *extras))
    while True:
        payload = random.choice(payloads)
        yield _units(payload), _message(encode(FrameType.STATE, 0, payload))


def _with_status(deployment: DeploymentState, status: DeploymentStatus) -> DeploymentState:
    facts = {name: getattr(deployment, name) for name in deployment.__dataclass_fields__}
    return DeploymentState(**facts | {"status": status, "reason": "x" * 40})


def _churning(random: Random) -> Pieces:
    """Each state has other models, and other deployments."""
    count, extras, turn = random.choice((1, 30, limits.DEPLOYMENTS)), _frozen(random), 0
    allowed = random.choice(("evil", "good"))
    while True:
        turn += 1
        deployments = [
            DeploymentState(f"d{turn}-{number}", f"{allowed}{turn}-{number}", slots=3)
            for number in range(count)
        ]
        payload = _state_of(deployments, *extras)
        yield _units(payload), _message(encode(FrameType.STATE, 0, payload))


def _mixed(random: Random) -> Pieces:
    parts = [kind(random) for kind in random.sample(_KINDS, 4)]
    while True:
        yield next(random.choice(parts))


_KINDS: tuple[Callable[[Random], Pieces], ...] = (
    *(
        _pings,
        _numbers,
        _results,
        _drains,
        _short_slots,
        _long_slots,
        _long_slots,
        _flapping,
        _flapping,
        _churning,
    ),
)
STORMS: Mapping[str, Callable[[Random], Pieces]] = {
    kind.__name__.strip("_"): kind for kind in (*_KINDS, _fragments, _resets, _mixed)
}
"""By name."""
