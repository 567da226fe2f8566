"""Two-way messages in the bodies of an upgraded stream (PROTOCOL §5.5). Sans-I/O.

A body is a sequence of pieces, each a byte as the first of a WebSocket frame's (RFC 6455 §5.2), the length of
what follows, and that. The body is bytes to everything else: credit, acknowledgements and replay are those of
every stream, and DATA frames may cut it anywhere.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from shared.protocol import limits
from shared.protocol.errors import ErrorCode, PieceMalformed

_HEADER = struct.Struct(">BH")
_CODE = struct.Struct(">H")
_FINAL = 0x80

NO_CODE = 1005
"""A WebSocket was closed without a code; it is never sent (RFC 6455 §7.4.1)."""

ABNORMAL = 1006
"""A WebSocket's connection was lost before it was closed; it is never sent."""

INTERNAL_ERROR = 1011
GOING_AWAY = 1001
_UNSENT_CODES = frozenset((1004, NO_CODE, ABNORMAL))


class PieceKind(IntEnum):
    """What a piece is, by the numbers of RFC 6455 §5.2."""

    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8


class MessagePiece(NamedTuple):
    """A piece of a message. The first one is TEXT or BINARY, all others CONTINUATION; the last is
    ``final``."""

    kind: int
    final: bool
    data: bytes


class CloseNotice(NamedTuple):
    """The end of a direction: code and reason as the WebSocket was closed with. ``NO_CODE``: without any."""

    code: int
    reason: str


def may_be_sent(code: int) -> bool:
    """Whether a WebSocket may be closed with that code (RFC 6455 §7.4)."""
    return (1000 <= code < 1015 or 3000 <= code < 5000) and code not in _UNSENT_CODES


def encode_pieces(kind: int, data: bytes | memoryview, *, final: bool) -> list[bytes]:
    """What is sent for a fragment of a message, or for all of it: pieces of at most
    :data:`~shared.protocol.limits.PIECE_BYTES`. ``kind`` is CONTINUATION for all but a message's first
    fragment."""
    size, view = limits.PIECE_BYTES, memoryview(data)
    starts = range(0, len(view), size) if len(view) else (0,)
    pieces: list[bytes] = []
    for start in starts:
        part = view[start : start + size]
        last = final and start + size >= len(view)
        first_byte = (PieceKind.CONTINUATION if start else kind) | (_FINAL if last else 0)
        pieces.append(_HEADER.pack(first_byte, len(part)) + part)
    return pieces


def encode_close(code: int = NO_CODE, reason: str = "") -> bytes:
    """The last piece of a direction. A code that may not be sent says nothing; a reason that is too long is
    cut."""
    payload = b""
    if may_be_sent(code):
        payload = _CODE.pack(code) + close_reason(reason)
    return _HEADER.pack(_FINAL | PieceKind.CLOSE, len(payload)) + payload


def close_reason(reason: str) -> bytes:
    """A reason as UTF-8, whole characters of it, no longer than a WebSocket carries."""
    data = reason.encode("utf-8", "replace")
    return data[: limits.CLOSE_REASON_BYTES].decode("utf-8", "ignore").encode() if data else data


def close_code_of(code: ErrorCode) -> int:
    """What a WebSocket is closed with whose stream was reset with ``code``."""
    if code in (ErrorCode.DRAINING, ErrorCode.CANCELLED, ErrorCode.NO_ERROR):
        return GOING_AWAY
    return INTERNAL_ERROR


class PieceReader:
    """Reads one direction's body, however it was cut. Holds less than one piece of it."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._inside = False
        """A message has begun and not ended."""
        self.closed: CloseNotice | None = None
        """The last piece; None until it has come."""

    def feed(self, data: bytes) -> list[MessagePiece]:
        """The whole pieces of messages there are now; :attr:`closed` is set where the last has come.

        Raises :class:`~shared.protocol.errors.PieceMalformed`; the reader is of no use then.
        """
        held, header_bytes = self._held, _HEADER.size
        held += data
        found: list[MessagePiece] = []
        start = 0
        while len(held) - start >= header_bytes:
            first_byte, size = _HEADER.unpack_from(held, start)
            self._check(first_byte, size)
            end = start + header_bytes + size
            if end > len(held):
                break
            payload = bytes(held[start + header_bytes : end])
            start = end
            kind, final = first_byte & ~_FINAL, bool(first_byte & _FINAL)
            if kind == PieceKind.CLOSE:
                self.closed = _read_close(payload)
            else:
                self._inside = not final
                found.append(MessagePiece(kind, final, payload))
        del held[:start]
        if self.closed is not None and held:
            raise PieceMalformed("something follows the last piece")
        return found

    def end(self) -> CloseNotice:
        """How the direction was closed, now that its body has ended; ABNORMAL where it did not say."""
        return self.closed or CloseNotice(ABNORMAL, "")

    def _check(self, first_byte: int, size: int) -> None:
        """Raises PieceMalformed for a header that cannot be, here."""
        kind, final = first_byte & ~_FINAL, first_byte & _FINAL
        if self.closed is not None:
            raise PieceMalformed("something follows the last piece")
        if kind == PieceKind.CLOSE:
            if not final or size == 1 or size > _CODE.size + limits.CLOSE_REASON_BYTES:
                raise PieceMalformed(f"a closing piece of {size} bytes")
        elif kind not in (PieceKind.CONTINUATION, PieceKind.TEXT, PieceKind.BINARY):
            raise PieceMalformed(f"a piece that begins with {first_byte:#04x}")
        elif size > limits.PIECE_BYTES:
            raise PieceMalformed(f"a piece of {size} bytes, limit {limits.PIECE_BYTES}")
        elif self._inside is not (kind == PieceKind.CONTINUATION):
            raise PieceMalformed("a message begins inside another" if self._inside else "nothing to continue")


def _read_close(payload: bytes) -> CloseNotice:
    """Raises PieceMalformed."""
    if not payload:
        return CloseNotice(NO_CODE, "")
    code = _CODE.unpack_from(payload)[0]
    if not may_be_sent(code):
        raise PieceMalformed(f"closed with code {code}")
    try:
        return CloseNotice(code, payload[_CODE.size :].decode("utf-8"))
    except UnicodeDecodeError:
        raise PieceMalformed("the reason is not UTF-8") from None
