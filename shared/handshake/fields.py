"""The members of handshake payloads, as types that pydantic validates (PROTOCOL §8.2)."""

import base64
import binascii
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, Strict

from shared.identity.certificates import CERTIFICATE_BYTES
from shared.identity.keys import PUBLIC_KEY_BYTES
from shared.protocol.errors import HandshakeMalformed
from shared.protocol.members import adapter_of, read

T = TypeVar("T")

MAX_INTEGER = 2**53 - 1
"""Largest integer that every JSON reader keeps exact."""

LIMIT_ENTRIES = 32
"""Entries of a ``limits`` object: four times what version 1 names."""

LIMIT_NAME_CHARS = 64


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


def _read_octets(value: Any) -> bytes:
    """Bytes in standard base64 with padding, the one way to write them."""
    try:
        octets = base64.b64decode(value.encode("ascii"), validate=True)
    except (AttributeError, binascii.Error, UnicodeEncodeError):
        raise ValueError("must be bytes in base64") from None
    if write_octets(octets) != value:
        raise ValueError("must be bytes in base64, written in the canonical way")
    return octets


def write_octets(octets: bytes) -> str:
    """What is read as ``Octets``."""
    return base64.b64encode(octets).decode("ascii")


Text = Annotated[str, Field(min_length=1), AfterValidator(_check_printable)]
HexId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
Integer = Annotated[int, Strict(), Field(ge=0, le=MAX_INTEGER)]
Version = Annotated[int, Strict(), Field(ge=1, le=255)]
Seconds = Annotated[float, Strict(), AllowInfNan(False)]
Octets = Annotated[bytes, BeforeValidator(_read_octets)]
PublicKey = Annotated[Octets, Field(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
Signature = Annotated[Octets, Field(min_length=64, max_length=64)]
Certificate = Annotated[Octets, Field(min_length=1, max_length=CERTIFICATE_BYTES)]
Limits = Annotated[
    dict[Annotated[str, Field(max_length=LIMIT_NAME_CHARS), AfterValidator(_check_printable)], Integer],
    Field(max_length=LIMIT_ENTRIES),
]


def read_body(kind: type[T], frame: str, body: bytes) -> T:
    """What the JSON text ``body`` of a frame says. Raises HandshakeMalformed."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HandshakeMalformed(f"{frame} is no JSON") from error
    return read_fields(kind, frame, value)


def read_fields(kind: type[T], frame: str, value: object) -> T:
    """What a JSON object says; ``frame`` names it in complaints. Raises HandshakeMalformed."""
    return read(adapter_of(kind), value, lambda complaint: HandshakeMalformed(f"{frame}: {complaint}"))
