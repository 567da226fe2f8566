"""Members of JSON objects, found and replaced in the bytes that the client wrote. Pure.

Numbers, key order, blanks and duplicate keys of the client's body stay byte for byte as they were. Names are
searched for by compiled expressions, and how deep one stands is counted in what is left between them when the
strings are taken out. What a continuation changes is found otherwise, a slice at a time
(:mod:`gateway.dispatch.recovery.editing`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from gateway.domain.errors import BadRequest

OPTIONS = "stream_options"
MOST_TOKENS = 4096
"""In the value of ``stream_options``, which has some four members where it is meant."""

MOST_REPEATED = 16
"""So often a body may name ``stream_options`` or ``model``, of which engines read one."""

BEGINNING_BYTES = 64 * 1024
"""How many bytes at the beginning of a body are searched for an option."""

_ASK = b'"stream_options":{"include_usage":true}'

STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'

_STRING = re.compile(STRING, re.DOTALL)
_TOKEN = re.compile(STRING + rb"|[{}\[\],]", re.DOTALL)
_MODEL = b'"model"'
_ESCAPE = b"\\"
"""Looked for by a method of the body: ``in`` would try it as a number first, and raise within."""

_ESCAPED_LETTER = b"\\u006"
"""How each of its letters begins that is written as an escape."""

_MEMBER_VALUE = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(" + STRING + rb")", re.DOTALL)
_TEXT_VALUE = re.compile(rb"[ \t\r\n]*(" + STRING + rb")", re.DOTALL)

_CANDIDATES = (b'"model"', b'"stream_options"', b"\\u005", b"\\u006", b"\\u007")
"""Every place where one of these two names stands has one of these in it, also where letters are escapes."""

Place = tuple[int, int]
"""Start and end, in bytes."""

Edit = tuple[int, int, bytes]
"""Start and end of some bytes, and what is to stand there."""


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


def with_members(body: bytes, values: Mapping[str, bytes]) -> bytes:
    """``body``, an object with at least one member, with these members instead of its own of these names. All
    else is as it was written. Raises BadRequest for a value that has more in it than anybody means."""
    edits: list[Edit] = []
    front = b""
    for name, value in values.items():
        starts = top_values(body, name)
        if not starts:
            front += b'"%b":%b,' % (name.encode("ascii"), value)
        for start in starts:
            end = value_end(body, start, MOST_TOKENS)
            if end is None:
                raise BadRequest(f"'{name}' must be true or false.", param=name, code="invalid_type")
            edits.append((start, end, value))
    opening = body.index(b"{") + 1
    pieces, at = [body[:opening], front], opening
    for start, end, value in sorted(edits):
        pieces += [body[at:start], value]
        at = end
    return b"".join((*pieces, body[at:]))


def text_places(body: bytes, starts: Iterable[int], text: str) -> list[Place]:
    """The places, quotes included, of the strings that read ``text`` and begin at one of ``starts`` or behind
    blanks there."""
    values = (_TEXT_VALUE.match(body, start) for start in starts)
    return [value.span(1) for value in values if value is not None and _reads(value[1], text)]


def names_model_once(body: bytes) -> bool:
    """Whether exactly one string of some JSON reads ``model``; False where it takes more to find out."""
    if body.find(_ESCAPE) >= 0 and body.rfind(_ESCAPED_LETTER) >= 0:
        return False
    return body.count(_MODEL) == 1


def only_model(body: bytes) -> Place | None:
    """The place, quotes included, of the value of the member ``model`` that the JSON object ``body`` has at
    its top, where that is a string and no other string reads ``model``; None where it takes more to find
    it."""
    if body.find(_ESCAPE) >= 0 and body.rfind(_ESCAPED_LETTER) >= 0:
        return None
    name = body.find(_MODEL)
    if body.rfind(_MODEL) != name:  # searching from the end is the quicker way
        return None
    value = _MEMBER_VALUE.match(body, name + len(_MODEL))
    return None if value is None else value.span(1)


def _reads(quoted: bytes, text: str) -> bool:
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


def option_places(body: bytes) -> list[Place]:
    """Start and end of every value of the member ``stream_options`` at the top of the object ``body``, which
    has one. Raises BadRequest for more of it than anybody means."""
    places: list[Place] = []
    for start in value_starts(body, OPTIONS):
        end = value_end(body, start, MOST_TOKENS)
        if end is None:
            raise BadRequest(f"{OPTIONS!r} has more than {MOST_TOKENS} values.", param=OPTIONS)
        places.append((start, end))
    return places


def value_starts(body: bytes, member: str) -> list[int]:
    """Where the values of a member that the object has at its top begin. Raises BadRequest for too many."""
    starts = top_values(body, member, known=True)
    if len(starts) > MOST_REPEATED:
        raise BadRequest(f"The body names {member!r} more than {MOST_REPEATED} times.", param=member)
    return starts


def usage_edits(
    start: int, *, empty: bool, options: Mapping[str, Any] | None, places: Sequence[Place]
) -> list[Edit]:
    """What makes ``stream_options.include_usage`` true in an object and leaves all else as it is.

    ``start`` is behind the object's opening brace, ``empty`` says whether it has no member, ``options`` is
    the value of its ``stream_options`` (None for null) and ``places`` where that stands; without any the
    option is put in front. Raises BadRequest.
    """
    if not places:
        return [(start, start, _ASK + (b"" if empty else b","))]
    try:
        wanted = orjson.dumps({**(options or {}), "include_usage": True})
    except orjson.JSONEncodeError:
        raise nested_too_deep(OPTIONS) from None
    return [(begin, end, wanted) for begin, end in places]


def nested_too_deep(param: str) -> BadRequest:
    """JSON that is nested deeper than it can be written again."""
    message = f"'{param}' is nested too deeply: JSON may have some 250 levels."
    return BadRequest(message, param=param, code="invalid_json")


def option_in_front(pieces: Sequence[bytes]) -> Place | None:
    """The place of the option that :func:`usage_edits` put in front of a body's members, with the comma
    behind it; None if it did not."""
    begins = b""
    for piece in pieces:
        begins += piece
        if len(begins) > BEGINNING_BYTES:
            break
    start = begins.find(b"{") + 1
    end = start + len(_ASK)
    if not start or not begins.startswith(_ASK, start):
        return None
    return start, end + (begins[end : end + 1] == b",")


def without_usage(body: bytes) -> bytes | None:
    """``body`` without the option that was put in front of it; None if none was."""
    place = option_in_front([body])
    return None if place is None else body[: place[0]] + body[place[1] :]


def model_edits(body: bytes, before: str, after: str) -> list[Edit]:
    """What puts ``after`` wherever the JSON object's own member ``model`` is the string ``before``; nothing
    in a body that names it more than ``MOST_REPEATED`` times, which nobody has parsed."""
    starts = top_values(body, "model")
    if len(starts) > MOST_REPEATED:
        return []
    return [(start, end, orjson.dumps(after)) for start, end in text_places(body, starts, before)]
