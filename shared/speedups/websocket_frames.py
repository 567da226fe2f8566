"""WebSocket messages of the one kind that tunnels carry: whole, binary, in one frame each (RFC 6455 §5.2).

Everything else, the malformed included, is left to a complete implementation of the protocol. These functions
are the reference for their native twins.
"""

from struct import Struct

try:
    from websockets.speedups import apply_mask
except ImportError:
    from websockets.utils import apply_mask

_BINARY_AND_WHOLE = 0x82
_MASKED = 0x80
_MASK_BYTES = 4
_LENGTH_OF_2_BYTES = 126
_LENGTH_OF_8_BYTES = 127
_SHORT = Struct("!BB")
_MIDDLE = Struct("!BBH")
_LONG = Struct("!BBQ")


def cut_messages(data: bytes, start: int, masked: bool, most_bytes: int) -> tuple[list[bytes], int]:
    """The messages that lie whole in ``data`` from ``start`` on, unmasked, and where they end.

    It stops before the first frame that is not all there, carries more than ``most_bytes``, is masked
    otherwise than ``masked`` says, or is anything but a whole binary message. Raises ValueError where
    ``start`` lies outside of ``data``.
    """
    if not 0 <= start <= len(data):
        raise ValueError("start lies outside of data")
    messages: list[bytes] = []
    while len(data) - start >= _SHORT.size:
        kind, length = _SHORT.unpack_from(data, start)
        if kind != _BINARY_AND_WHOLE or bool(length & _MASKED) is not masked:
            break
        length &= ~_MASKED
        begin = start + _SHORT.size
        if length in (_LENGTH_OF_2_BYTES, _LENGTH_OF_8_BYTES):
            layout = _MIDDLE if length == _LENGTH_OF_2_BYTES else _LONG
            if len(data) - start < layout.size:
                break
            length = layout.unpack_from(data, start)[2]
            begin = start + layout.size
        if masked:
            begin += _MASK_BYTES
        end = begin + length
        if length > most_bytes or end > len(data):
            break
        message = data[begin:end]
        messages.append(apply_mask(message, data[begin - _MASK_BYTES : begin]) if masked else message)
        start = end
    return messages, start


def frame_messages(messages: list[bytes], masks: bytes) -> bytes:
    """The messages as they go over the wire, one after the other.

    ``masks`` has four random bytes for each of them, as a client sends them, or none, as a server does.
    Raises ValueError where there are others.
    """
    if masks and len(masks) != len(messages) * _MASK_BYTES:
        raise ValueError("there are four bytes of mask for each message, or none")
    pieces: list[bytes] = []
    flag = _MASKED if masks else 0
    for number, message in enumerate(messages):
        length = len(message)
        if length < _LENGTH_OF_2_BYTES:
            pieces.append(_SHORT.pack(_BINARY_AND_WHOLE, flag | length))
        elif length < 1 << 16:
            pieces.append(_MIDDLE.pack(_BINARY_AND_WHOLE, flag | _LENGTH_OF_2_BYTES, length))
        else:
            pieces.append(_LONG.pack(_BINARY_AND_WHOLE, flag | _LENGTH_OF_8_BYTES, length))
        if masks:
            mask = masks[number * _MASK_BYTES : (number + 1) * _MASK_BYTES]
            pieces += (mask, apply_mask(message, mask))
        else:
            pieces.append(message)
    return b"".join(pieces)
