"""What a process of a gateway is told of the requests that an agent runs for others (PROTOCOL §4.11)."""

import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Self

import orjson
from msgspec import Meta, Struct

from shared.protocol import limits
from shared.protocol.errors import FrameMalformed
from shared.protocol.structs import NOT_READ, Count, Name, Seconds, decoder_of, read_again

_LINK_BYTES = 8
"""Bytes of a fingerprint."""


def encode_fingerprints(chain: Sequence[int]) -> str:
    """The fingerprints of a prompt's first blocks, as the wire has them; of a longer chain its beginning."""
    beginning = chain[: limits.EXPECTED_FINGERPRINTS]
    return b64encode(struct.pack(f"<{len(beginning)}Q", *beginning)).decode()


def decode_fingerprints(prefix: str) -> tuple[int, ...]:
    """Reads what :func:`encode_fingerprints` wrote, or ValueError."""
    links = b64decode(prefix, validate=True)
    return struct.unpack(f"<{len(links) // _LINK_BYTES}Q", links) if len(links) % _LINK_BYTES == 0 else _odd()


def _odd() -> tuple[int, ...]:
    raise ValueError("must be whole fingerprints")


_PREFIX_CHARS = -(-limits.EXPECTED_FINGERPRINTS * _LINK_BYTES // 3) * 4
_Tokens = Annotated[int, Meta(ge=0, le=limits.EXPECTED_TOKENS)]
_Prefix = Annotated[str, Meta(max_length=_PREFIX_CHARS)]


class Expected(Struct, frozen=True, gc=False):
    """What a gateway expects a request to take."""

    input_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    prefix: _Prefix = ""
    """See :func:`encode_fingerprints`."""

    @classmethod
    def of(cls, input_tokens: int, output_tokens: int, chain: Sequence[int]) -> Self:
        """What is expected of a prompt with these fingerprints; what is too large is cut."""
        most = limits.EXPECTED_TOKENS
        prefix = encode_fingerprints(chain) if chain else ""
        return cls(min(input_tokens, most), min(output_tokens, most), prefix)

    @property
    def fingerprints(self) -> tuple[int, ...]:
        """The chain of its prompt's first whole blocks."""
        return decode_fingerprints(self.prefix) if self.prefix else ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; ``prefix`` only where there is one."""
        said: dict[str, Any] = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return said | {"prefix": self.prefix} if self.prefix else said


NOTHING_EXPECTED = Expected()
"""Of a request whose gateway said nothing."""


def check_expected(expected: Expected) -> None:
    """Raises :class:`FrameMalformed` for a prefix that holds no fingerprints."""
    if expected.prefix:
        try:
            decode_fingerprints(expected.prefix)
        except ValueError as error:
            raise FrameMalformed(f"member 'expected.prefix': {error}") from None


class OtherRequest(Struct, frozen=True, gc=False):
    """A request of another process that began."""

    number: Count
    """The agent's; different for each request of all its sessions."""
    deployment: Name
    age_s: Seconds = 0.0
    """Seconds since it began."""
    read: bool = False
    """Its first token has come."""
    expected: Expected = NOTHING_EXPECTED

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, without members at their defaults."""
        said: dict[str, Any] = {"number": self.number, "deployment": self.deployment}
        if self.age_s:
            said["age_s"] = round(self.age_s, 3)
        if self.read:
            said["read"] = True
        if self.expected is not NOTHING_EXPECTED:
            said["expected"] = self.expected.to_dict()
        return said


_Numbers = Annotated[tuple[Count, ...], Meta(max_length=limits.OTHERS_NUMBERS)]


class Others(Struct, frozen=True, gc=False):
    """OTHERS: what has changed since the one before it. The members take effect in this order."""

    began: Annotated[tuple[OtherRequest, ...], Meta(max_length=limits.OTHERS_BEGAN)] = ()
    first: _Numbers = ()
    """Numbers of requests whose first token has come."""
    ended: _Numbers = ()
    """Numbers of requests that have left their engine."""

    def to_dict(self) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if self.began:
            said["began"] = [each.to_dict() for each in self.began]
        if self.first:
            said["first"] = self.first
        if self.ended:
            said["ended"] = self.ended
        return said

    def to_payload(self) -> bytes:
        return orjson.dumps(self.to_dict())

    @staticmethod
    def from_payload(payload: bytes) -> "Others":
        """What OTHERS says. Raises :class:`FrameMalformed`."""
        try:
            others = _decode(payload)
        except NOT_READ:
            others = read_again(Others, payload)
        for request in others.began:
            check_expected(request.expected)
        return others


_decode = decoder_of(Others)
