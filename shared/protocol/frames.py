"""Frames and messages to bytes and back: pure functions, no state (PROTOCOL §2, §3)."""

import struct
from enum import Enum, IntEnum
from typing import NamedTuple

from shared.process.frozen import frozen
from shared.protocol import limits
from shared.protocol.errors import ErrorCode, FrameMalformed, FrameTooLarge, MessageTooLarge
from shared.speedups.session_frames import FRAME_RULE

HEADER = struct.Struct(">BII")
_pack_header, _read_header, _HEADER_BYTES = HEADER.pack, HEADER.unpack_from, HEADER.size
_OFFSET = struct.Struct(">Q")
_CODE = struct.Struct(">H")


class FrameType(IntEnum):
    """The frame types of PROTOCOL §3.2. The high nibble is that of the kind of message a frame travels in."""

    CHALLENGE = 0x01
    HELLO = 0x02
    WELCOME = 0x03
    REJECT = 0x04

    OPEN = 0x10
    HEAD = 0x11
    DATA = 0x12
    END = 0x13
    RESET = 0x14
    CREDIT = 0x15
    PROGRESS = 0x16
    SLOTS = 0x20
    STATE = 0x21
    DEMAND = 0x22
    COMMAND = 0x23
    RESULT = 0x24
    DRAIN = 0x25
    PEERS = 0x26
    OTHERS = 0x27

    PING = 0x30
    PONG = 0x31
    ACK = 0x32
    CLOSE = 0x33


class MessageKind(Enum):
    """What a message carries; all frames of one message are of one kind (PROTOCOL §2.2)."""

    HANDSHAKE = "handshake"
    NUMBERED = "numbered"
    LINK = "link"


class TunnelRole(Enum):
    """Which end of the tunnel this is."""

    GATEWAY = "gateway"
    AGENT = "agent"


@frozen
class FrameRule:
    """The row of PROTOCOL §3.2 for one frame type."""

    kind: MessageKind
    on_stream: bool | None
    """True: on a stream only. False: on stream 0 only. None: on either."""
    least_bytes: int
    most_bytes: int
    sender: TunnelRole | None = None
    """The only role that may send it inside a session; None: both may."""


_CONTROL = limits.CONTROL_PAYLOAD_BYTES
_HANDSHAKE = FrameRule(
    MessageKind.HANDSHAKE, False, 64, limits.HANDSHAKE_MESSAGE_BYTES - limits.FRAME_HEADER_BYTES
)
_REASON = 2 + 4 * limits.REASON_CHARS
_OFFSET_ON_LINK = FrameRule(MessageKind.LINK, False, 8, 8)

RULES: dict[int, FrameRule] = {
    FrameType.CHALLENGE: _HANDSHAKE,
    FrameType.HELLO: _HANDSHAKE,
    FrameType.WELCOME: _HANDSHAKE,
    FrameType.REJECT: _HANDSHAKE,
    FrameType.OPEN: FrameRule(MessageKind.NUMBERED, True, 2, _CONTROL, TunnelRole.GATEWAY),
    FrameType.HEAD: FrameRule(MessageKind.NUMBERED, True, 2, _CONTROL, TunnelRole.AGENT),
    FrameType.DATA: FrameRule(MessageKind.NUMBERED, True, 1, limits.DATA_PAYLOAD_BYTES),
    FrameType.END: FrameRule(MessageKind.NUMBERED, True, 0, _CONTROL),
    FrameType.RESET: FrameRule(MessageKind.NUMBERED, True, 2, _REASON),
    FrameType.CREDIT: FrameRule(MessageKind.NUMBERED, None, 8, 8),
    FrameType.PROGRESS: FrameRule(
        MessageKind.NUMBERED, True, 2, limits.PROGRESS_PAYLOAD_BYTES, TunnelRole.AGENT
    ),
    FrameType.SLOTS: FrameRule(MessageKind.NUMBERED, False, 2, _CONTROL, TunnelRole.AGENT),
    FrameType.STATE: FrameRule(MessageKind.NUMBERED, False, 2, _CONTROL, TunnelRole.AGENT),
    FrameType.DEMAND: FrameRule(MessageKind.NUMBERED, False, 2, _CONTROL, TunnelRole.GATEWAY),
    FrameType.COMMAND: FrameRule(MessageKind.NUMBERED, False, 2, _CONTROL, TunnelRole.GATEWAY),
    FrameType.RESULT: FrameRule(MessageKind.NUMBERED, False, 2, _CONTROL, TunnelRole.AGENT),
    FrameType.DRAIN: FrameRule(MessageKind.NUMBERED, False, 2, _CONTROL),
    FrameType.PEERS: FrameRule(MessageKind.NUMBERED, False, 2, _CONTROL, TunnelRole.GATEWAY),
    FrameType.OTHERS: FrameRule(MessageKind.NUMBERED, False, 2, _CONTROL, TunnelRole.AGENT),
    FrameType.PING: _OFFSET_ON_LINK,
    FrameType.PONG: _OFFSET_ON_LINK,
    FrameType.ACK: _OFFSET_ON_LINK,
    FrameType.CLOSE: FrameRule(MessageKind.LINK, False, 2, _REASON),
}


KINDS: dict[int, MessageKind] = {int(frame_type): rule.kind for frame_type, rule in RULES.items()}
"""What a message carries, by the type of its first frame."""

_ON_STREAM = {False: 0, True: 1, None: 2}


def _rules_for_cutting(kind: MessageKind, role: TunnelRole) -> bytes:
    packed = [bytes(FRAME_RULE.size)] * 256
    for frame_type, rule in RULES.items():
        if rule.kind is kind and rule.sender is not role:
            packed[frame_type] = FRAME_RULE.pack(
                1, _ON_STREAM[rule.on_stream], rule.least_bytes, rule.most_bytes
            )
    return b"".join(packed)


RULES_FOR_CUTTING = {
    role: {kind: _rules_for_cutting(kind, role) for kind in MessageKind} for role in TunnelRole
}
"""For :func:`shared.speedups.cut_frames`: the rules of the frames that a role may receive in a message of a
kind."""


class Frame(NamedTuple):
    """One protocol unit. ``type`` is a :class:`FrameType`, as a plain int for speed."""

    type: int
    stream_id: int
    payload: bytes


FrameFields = tuple[int, int, bytes]
"""What a :class:`Frame` is, or only its fields: a plain tuple of them is taken apart faster."""


def encode(frame_type: int, stream_id: int, payload: bytes = b"") -> bytes:
    """The bytes of one frame. Asserts what our own side must keep: sizes and stream numbers."""
    rule, size_bytes = RULES[frame_type], len(payload)
    assert rule.least_bytes <= size_bytes <= rule.most_bytes, (frame_type, size_bytes)
    on_stream = rule.on_stream
    assert on_stream is None or on_stream is (stream_id != 0), (frame_type, stream_id)
    return _pack_header(frame_type, stream_id, size_bytes) + payload


def decode_message(message: bytes) -> tuple[MessageKind, list[Frame]]:
    """The frames of one WebSocket message, and their common kind.

    Raises :class:`MessageTooLarge`, :class:`FrameTooLarge` or :class:`FrameMalformed`.
    """
    kind = message_kind(message)
    frames: list[Frame] = []
    start = 0
    while start < len(message):
        frame = decode_frame(message, start, kind)
        frames.append(frame)
        start += limits.FRAME_HEADER_BYTES + len(frame.payload)
    return kind, frames


def message_kind(message: bytes) -> MessageKind:
    """What a message carries, by its first frame.

    Raises :class:`MessageTooLarge`, or :class:`FrameMalformed` for one without a frame we know.
    """
    if len(message) > limits.MESSAGE_BYTES:
        raise MessageTooLarge(f"message of {len(message)} bytes, limit {limits.MESSAGE_BYTES}")
    if not message:
        raise FrameMalformed("message without a frame")
    rule = RULES.get(message[0])
    if rule is None:
        raise _unknown(message[0])
    return rule.kind


def decode_frame(message: bytes, start: int, kind: MessageKind) -> Frame:
    """The frame that begins at ``start`` of a message of that kind.

    Raises :class:`FrameTooLarge` or :class:`FrameMalformed`.
    """
    begin = start + _HEADER_BYTES
    room = len(message) - begin
    if room < 0:
        raise FrameMalformed("message ends inside a frame header")
    frame_type, stream_id, length = _read_header(message, start)
    rule = RULES.get(frame_type)
    if rule is None:
        raise _unknown(frame_type)
    if length > rule.most_bytes:
        raise FrameTooLarge(length, rule.most_bytes)
    if length < rule.least_bytes:
        raise FrameMalformed(f"frame type {frame_type:#04x} with a payload of {length} bytes")
    on_stream = rule.on_stream
    if on_stream is not None and on_stream is not (stream_id != 0):
        raise FrameMalformed(f"frame type {frame_type:#04x} on stream {stream_id}")
    if rule.kind is not kind:
        raise FrameMalformed("frames of different kinds in one message")
    if length > room:
        raise FrameMalformed("message ends inside a frame payload")
    # Frame(…) does the same by way of a function written in Python.
    return tuple.__new__(Frame, (frame_type, stream_id, message[begin : begin + length]))


def _unknown(frame_type: int) -> FrameMalformed:
    return FrameMalformed(f"unknown frame type {frame_type:#04x}")


def encode_offset(offset: int) -> bytes:
    """The payload of CREDIT, ACK, PING and PONG: one unsigned 64-bit number."""
    return _OFFSET.pack(offset)


def decode_offset(payload: bytes) -> int:
    """Reads what :func:`encode_offset` wrote; the frame's rule has checked the length."""
    offset: int = _OFFSET.unpack(payload)[0]
    return offset


def encode_reason(code: ErrorCode, reason: str) -> bytes:
    """The payload of RESET and CLOSE: code u16, reason in UTF-8, cut at the limit (PROTOCOL §4.5)."""
    text = reason[: limits.REASON_CHARS].encode("utf-8", "replace")
    return _CODE.pack(code) + text


def decode_reason(payload: bytes) -> tuple[ErrorCode, str]:
    """Reads what :func:`encode_reason` wrote. Raises :class:`FrameMalformed` when it is no UTF-8."""
    try:
        reason = payload[2:].decode("utf-8")
    except UnicodeDecodeError:
        raise FrameMalformed("reason is not UTF-8") from None
    return ErrorCode.from_wire(_CODE.unpack_from(payload)[0]), reason
