"""Reading a handshake payload's JSON object field by field; every complaint is HandshakeMalformed."""

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

import orjson

from shared.protocol.errors import HandshakeMalformed

MAX_INTEGER = 2**53 - 1
"""Largest integer that every JSON reader keeps exact."""

LIMIT_ENTRIES = 32
"""Entries of a ``limits`` object: four times what version 1 names."""

LIMIT_NAME_CHARS = 64


class Fields:
    """A JSON object whose members are read with their type and bounds. Unknown members are ignored."""

    def __init__(self, frame: str, value: object) -> None:
        if not isinstance(value, dict):
            raise HandshakeMalformed(f"{frame} is no JSON object")
        self._frame = frame
        self._value: dict[str, Any] = value

    @classmethod
    def parse(cls, frame: str, body: bytes) -> "Fields":
        """Read the JSON text ``body``; ``frame`` names it in complaints."""
        try:
            return cls(frame, orjson.loads(body))
        except orjson.JSONDecodeError as error:
            raise HandshakeMalformed(f"{frame} is no JSON") from error

    def text(self, name: str, max_chars: int) -> str:
        """A string of 1 to ``max_chars`` printable characters."""
        value = self._value.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= max_chars or not value.isprintable():
            raise self._wrong(name, f"a printable string of 1 to {max_chars} characters")
        return value

    def integer(self, name: str, least: int, most: int = MAX_INTEGER) -> int:
        """An integer within bounds, both allowed."""
        value = self._value.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(name, f"an integer from {least} to {most}")
        return value

    def seconds(self, name: str, least_s: float, most_s: float) -> float:
        """A finite number within bounds, both allowed."""
        value = self._value.get(name)
        if type(value) is int or type(value) is float:
            seconds = float(value)
            if math.isfinite(seconds) and least_s <= seconds <= most_s:
                return seconds
        raise self._wrong(name, f"a number from {least_s:g} to {most_s:g}")

    def octets(self, name: str, least: int, most: int) -> bytes:
        """Bytes in standard base64 with padding, the one way to write them."""
        value = self._value.get(name)
        if isinstance(value, str) and len(value) <= 4 * (most // 3 + 1):
            try:
                octets = base64.b64decode(value.encode("ascii"), validate=True)
            except (binascii.Error, UnicodeEncodeError):
                octets = b""
            if least <= len(octets) <= most and base64.b64encode(octets).decode("ascii") == value:
                return octets
        raise self._wrong(
            name, f"{least} to {most} bytes in base64" if least < most else f"{most} bytes in base64"
        )

    def versions(self, name: str) -> tuple[int, ...]:
        """A list of 1 to 16 protocol versions."""
        value = self._value.get(name)
        if (
            not isinstance(value, list)
            or not 1 <= len(value) <= 16
            or not all(type(item) is int and 1 <= item <= 255 for item in value)
        ):
            raise self._wrong(name, "a list of 1 to 16 protocol versions")
        return tuple(value)

    def limits(self, name: str) -> Mapping[str, int]:
        """An object of non-negative integers."""
        value = self._value.get(name)
        if (
            not isinstance(value, dict)
            or len(value) > LIMIT_ENTRIES
            or not all(len(key) <= LIMIT_NAME_CHARS and key.isprintable() for key in value)
            or not all(type(item) is int and 0 <= item <= MAX_INTEGER for item in value.values())
        ):
            raise self._wrong(name, f"an object of at most {LIMIT_ENTRIES} non-negative integers")
        return value

    def has(self, name: str) -> bool:
        """True when the member is there and not null."""
        return self._value.get(name) is not None

    def inner(self, name: str) -> "Fields":
        """The object that the member ``name`` is."""
        return Fields(f"{self._frame}.{name}", self._value.get(name))

    def _wrong(self, name: str, expected: str) -> HandshakeMalformed:
        return HandshakeMalformed(f"{self._frame}.{name} is not {expected}")


def write_octets(octets: bytes) -> str:
    """What ``Fields.octets`` reads."""
    return base64.b64encode(octets).decode("ascii")
