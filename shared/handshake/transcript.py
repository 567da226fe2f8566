"""Signed payloads and the transcript they are signed over (PROTOCOL §8.2)."""

import hashlib
import struct
from collections.abc import Callable

from shared.handshake.messages import MAX_PAYLOAD_BYTES
from shared.identity.keys import signature_holds
from shared.protocol.errors import HandshakeMalformed, SignatureInvalid
from shared.protocol.frames import FrameType

SIGNATURE_BYTES = 64
DOMAIN = b"trunkline.1 "
_ENTRY = struct.Struct(">BI")


class Transcript:
    """Every handshake payload so far, in order, as a running SHA-256.

    An entry is the frame's type (u8), its payload's length (u32) and the payload, signature included; so
    no two conversations have the same bytes.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def append(self, frame: FrameType, payload: bytes) -> None:
        """Add a payload, as sent or as received."""
        self._hash.update(_ENTRY.pack(frame, len(payload)) + payload)

    def digest(self) -> bytes:
        """SHA-256 of all entries so far, 32 bytes."""
        return self._hash.digest()

    def seal(self, frame: FrameType, body: bytes, sign: Callable[[bytes], bytes]) -> bytes:
        """The payload that carries ``body`` next, signed; also appended."""
        assert SIGNATURE_BYTES + len(body) <= MAX_PAYLOAD_BYTES, len(body)
        payload = sign(self._signed(frame, body)) + body
        self.append(frame, payload)
        return payload

    def verify(self, frame: FrameType, payload: bytes, public_key: bytes) -> None:
        """Check the signature of a payload that comes next. Raises SignatureInvalid. Appends nothing."""
        signature, body = payload[:SIGNATURE_BYTES], payload[SIGNATURE_BYTES:]
        if not signature_holds(public_key, signature, self._signed(frame, body)):
            raise SignatureInvalid(
                f"the signature of {frame.name} does not verify: the handshake was altered on its way, "
                "or the sender does not hold the key it shows"
            )

    def _signed(self, frame: FrameType, body: bytes) -> bytes:
        return DOMAIN + frame.name.encode("ascii") + b"\0" + self._hash.digest() + body


def body_of(payload: bytes) -> bytes:
    """The JSON half of a payload of allowed size. Raises HandshakeMalformed."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise HandshakeMalformed(f"handshake payload of {len(payload)} bytes, limit {MAX_PAYLOAD_BYTES}")
    if len(payload) <= SIGNATURE_BYTES:
        raise HandshakeMalformed(f"handshake payload of {len(payload)} bytes: too short to be one")
    return payload[SIGNATURE_BYTES:]
