"""Changes members of JSON that the client wrote, without writing the rest of it anew.

Parsing and dumping would be shorter, but numbers beyond 64 bits, decimals beyond a double's and duplicate
keys would change their meaning on the way. So the places of values are found in the bytes, and only what
must change is replaced. The input is valid JSON; everything here relies on that.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.dispatch.recovery.interface import NotContinuable

MOST_TOKENS = 4096
"""Of a value whose places are found at once: of the message, or the item, that the answer goes on with. Those
of the request are found a slice at a time (:class:`Outline`)."""

TOKEN = re.compile(rb'"[^"]*+"|[{}\[\]:,]')
"""A string, or one character of structure; what lies between are blanks, numbers and literals. For what
:func:`unescaped` gives."""


def unescaped(raw: bytes) -> bytes:
    """As long as ``raw``, with strings in the same places and no escaped quote in them."""
    return raw.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def values(raw: bytes) -> list[tuple[str | None, int, int]]:
    """Key, start and end of every value at the top of an object; of an array, with None for the key.

    Raises :class:`NotContinuable` for more than ``MOST_TOKENS``.
    """
    found: list[tuple[str | None, int, int]] = []
    depth, start, key, in_object = 0, -1, b"", False
    for count, token in enumerate(TOKEN.finditer(unescaped(raw))):
        if count > MOST_TOKENS:
            raise NotContinuable("the message that the answer belongs to has too many values")
        kind = token[0]
        if depth == 1 and start >= 0 and kind in (b",", b"}", b"]"):
            if raw[start : token.start()].strip():
                found.append((orjson.loads(key) if in_object else None, start, token.start()))
            start = -1 if in_object else token.end()
        if kind in (b"{", b"["):
            depth += 1
            if depth == 1:
                in_object = kind == b"{"
                start = -1 if in_object else token.end()
        elif kind in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and in_object and kind == b":" and start < 0:
            start = token.end()
        elif depth == 1 and in_object and start < 0 and kind[:1] == b'"':
            key = raw[token.start() : token.end()]
    return found


def member(raw: bytes, name: str) -> bytes:
    """The value of the member ``name``, which the object has; the last one counts."""
    return next(raw[start:end] for key, start, end in reversed(values(raw)) if key == name)


def with_members(raw: bytes, changes: Mapping[str, bytes]) -> bytes:
    """The object with these members: replaced where they are, every duplicate too, or put in front."""
    return with_members_at(raw, changes, values(raw))


def with_members_at(
    raw: bytes,
    changes: Mapping[str, bytes],
    places: Sequence[tuple[str | None, int, int]],
    *,
    more: bool = False,
) -> bytes:
    """The same, where the ``places`` of those of its members are known that are changed; ``more``: it may
    have others."""
    missing = [name for name in changes if all(key != name for key, _, _ in places)]
    start = raw.index(b"{") + 1
    added = b",".join(orjson.dumps(name) + b":" + changes[name] for name in missing)
    pieces = [raw[:start], added, b"," if added and (places or more) else b""]
    for key, begin, end in places:
        if key is not None and key in changes:
            pieces += [raw[start:begin], changes[key]]
            start = end
    return b"".join((*pieces, raw[start:]))


def with_last(raw: bytes, element: bytes) -> bytes:
    """The array, its last element replaced."""
    _, start, end = values(raw)[-1]
    return raw[:start] + element + raw[end:]


def with_another(raw: bytes, element: bytes) -> bytes:
    """The array with one more element."""
    end = raw.rindex(b"]")
    return raw[:end] + (b"," if values(raw) else b"") + element + raw[end:]


def last(raw: bytes) -> bytes:
    """The array's last element, as it is written. The array has one."""
    _, start, end = values(raw)[-1]
    return raw[start:end]


def dumped(value: Any) -> bytes:
    return orjson.dumps(value)


TOKENS = 4096
"""Of JSON between two slices: a millisecond."""

TOKENS_US = 1200

BYTES_PER_US = 300
"""Of strings that are all escapes, which are replaced before."""

Place = tuple[int, int]
"""Start and end, in bytes."""

MOST_PLACES = 256
"""At which a request may name what is changed, each of some twelve names once."""

_QUOTE, _ARRAY, _COMMA = b'"[,'
_OPENING, _CLOSING = b"{[", b"}]"
_MOST_NAME_BYTES = 200
"""Longer than any of the names, be every letter written as an escape."""


class Outline:
    """Of one JSON object, which is valid: the places of the members ``names``, every duplicate too, and in
    each of them that is an array the place of its last element."""

    def __init__(self, raw: bytes, names: frozenset[str]) -> None:
        self._raw = raw
        self._names = names
        self._members: list[tuple[str, int, int]] = []
        self._lasts: dict[str, Place | None] = {}
        """By member; None for an empty array. The last of its duplicates counts."""
        self._more = False
        """It has members of other names."""
        self._depth = 0
        self._key: str | None = None
        self._start = -1
        """Where the value of the member begins that is being read; below zero before its colon."""
        self._in_array = False
        """At depth 2."""
        self._element = 0
        self._last: Place | None = None

    def find(self) -> Iterator[int]:
        """To be gone through once, before anything is asked. Gives after each slice some microseconds that it
        took. Raises NotContinuable for a request that names a member too often."""
        raw = self._raw
        flat = unescaped(raw)
        yield 1 + len(raw) // BYTES_PER_US
        for count, token in enumerate(TOKEN.finditer(flat), 1):
            kind, at = raw[token.start()], token.start()
            if kind == _QUOTE:
                if self._depth == 1 and self._start < 0:
                    self._key = self._name(raw[at : token.end()])
            elif kind in _OPENING:
                self._open(kind, at)
            elif kind in _CLOSING:
                self._close(at)
            elif self._depth == 2:
                self._element = at + 1 if kind == _COMMA else self._element
            elif self._depth == 1 and kind == _COMMA:
                self._note(at)
            elif self._depth == 1:
                self._start = at + 1
            if count % TOKENS == 0:
                yield TOKENS_US

    def with_members(self, changes: Mapping[str, bytes]) -> bytes:
        """The object with these members, which are among the ``names``; see :func:`with_members`."""
        assert changes.keys() <= self._names
        return with_members_at(self._raw, changes, self._members, more=self._more)

    def last(self, name: str) -> bytes:
        """The last element of the array that the member ``name`` is, as it is written. It has one."""
        place = self._lasts[name]
        assert place is not None
        return self._raw[slice(*place)]

    def with_last(self, name: str, element: bytes) -> bytes:
        """The array with another last element."""
        start, end = self._place(name)
        place = self._lasts[name]
        assert place is not None
        return self._raw[start : place[0]] + element + self._raw[place[1] : end]

    def with_another(self, name: str, element: bytes) -> bytes:
        """The array with one more element."""
        start, end = self._place(name)
        closing = self._raw.rindex(b"]", start, end)
        comma = b"" if self._lasts[name] is None else b","
        return self._raw[start:closing] + comma + element + self._raw[closing:end]

    def _place(self, name: str) -> Place:
        return next((start, end) for key, start, end in reversed(self._members) if key == name)

    def _name(self, quoted: bytes) -> str | None:
        """The name of a member if it is one of those looked for."""
        if len(quoted) > _MOST_NAME_BYTES:
            return None
        name = orjson.loads(quoted) if b"\\" in quoted else quoted[1:-1].decode()
        return name if name in self._names else None

    def _open(self, kind: int, at: int) -> None:
        self._depth += 1
        if self._depth == 2:
            self._in_array, self._element = kind == _ARRAY, at + 1

    def _close(self, at: int) -> None:
        if self._depth == 2 and self._in_array and self._raw[self._element : at].strip():
            self._last = self._element, at
        self._depth -= 1
        if not self._depth and self._start >= 0:
            self._note(at)

    def _note(self, end: int) -> None:
        """A member's value ends."""
        if self._key is None:
            self._more = True
        elif len(self._members) >= MOST_PLACES:
            raise NotContinuable(f"the request names {self._key!r} too often")
        else:
            self._members.append((self._key, self._start, end))
            self._lasts[self._key] = self._last
        self._key, self._start, self._last = None, -1, None
