"""Where members stand in the bytes of a JSON object. Pure.

No loop in Python goes over tokens: names are searched for by compiled expressions, and how deep one stands is
counted in what is left between them when the strings are taken out.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

import orjson

STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'

_STRING = re.compile(STRING, re.DOTALL)
_TOKEN = re.compile(STRING + rb"|[{}\[\],]", re.DOTALL)
_TEXT_VALUE = re.compile(rb"[ \t\r\n]*(" + STRING + rb")", re.DOTALL)

_CANDIDATES = (b'"model"', b'"stream_options"', b"\\u005", b"\\u006", b"\\u007")
"""Every place where one of these two names stands has one of these in it, also where letters are escapes."""

Place = tuple[int, int]
"""Start and end, in bytes."""


def count_candidates(piece: bytes) -> int:
    """In how many places of JSON ``model`` or ``stream_options`` may be named at the most: each costs
    :func:`top_values` 2 µs."""
    return sum(map(piece.count, _CANDIDATES))


def top_values(body: bytes, name: str, *, known: bool = False) -> list[int]:
    """Where the values of the members ``name`` at the top of the object begin, behind their colons.

    ``body`` is valid JSON; of anything else what is found may be wrong, but is found as soon. ``known``: it
    has such a member at its top.
    """
    found = [match for match in _keys(name, b"\\u" in body).finditer(body) if _opens(body, match.start())]
    if known and len(found) == 1:
        return [found[0].end()]
    return [match.end() for match, depth in _with_depths(body, found) if depth == 1]


def value_end(body: bytes, start: int, most_tokens: int) -> int | None:
    """Where the value that begins at ``start``, behind a colon, ends; None if it has more tokens."""
    depth = 0
    for count, token in enumerate(_TOKEN.finditer(body, start)):
        if count > most_tokens:
            return None
        kind = token[0]
        if depth == 0 and kind in (b",", b"}"):
            return token.start()
        depth += kind in (b"{", b"[")
        depth -= kind in (b"}", b"]")
    return None


def text_place(body: bytes, start: int, text: str) -> Place | None:
    """The place of the string that begins at ``start``, or behind blanks, with its quotes; None if there is
    none, or it does not read ``text``."""
    value = _TEXT_VALUE.match(body, start)
    return value.span(1) if value is not None and reads(value[1], text) else None


def reads(quoted: bytes, text: str) -> bool:
    """Whether a JSON string reads ``text``."""
    try:
        return bool(orjson.loads(quoted) == text)
    except orjson.JSONDecodeError:
        return False


@lru_cache(maxsize=16)
def _keys(name: str, escaped: bool) -> re.Pattern[bytes]:
    """A key ``name`` and its colon, also where letters are written as escapes."""
    letters = (rf"(?:{re.escape(each)}|\\u{_hexadecimal(ord(each))})" for each in name)
    written = "".join(letters) if escaped else re.escape(name)
    return re.compile(rf'"{written}"[ \t\r\n]*+:'.encode())


def _hexadecimal(code: int) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{code:04x}")


def _opens(body: bytes, place: int) -> bool:
    """Whether the quote at ``place`` begins a string: before one inside a string stand backslashes, an odd
    number of them."""
    before = body[body.rfind(b'"', 0, place) + 1 : place]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


def _with_depths(body: bytes, found: list[re.Match[bytes]]) -> Iterator[tuple[re.Match[bytes], int]]:
    depth, position = 0, 0
    for match in found:
        between = _STRING.sub(b"", body[position : match.start()])
        depth += between.count(b"{") + between.count(b"[") - between.count(b"}") - between.count(b"]")
        position = match.end()
        yield match, depth
