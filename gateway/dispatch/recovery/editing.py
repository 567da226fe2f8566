"""Changes members of JSON that the client wrote, without writing the rest of it anew.

Parsing and dumping would be shorter, but numbers beyond 64 bits, decimals beyond a double's and duplicate
keys would change their meaning on the way. So the places of values are found in the bytes, and only what
must change is replaced. The input is valid JSON; everything here relies on that.
"""

import re
from collections.abc import Iterator, Mapping

import orjson


class NotContinuable(Exception):
    """The answer so far, or what was asked for, does not let another engine go on with it soundly.

    Its text is the reason.
    """


TOKEN = re.compile(rb'"[^"]*+"|[{}\[\]:,]')
"""A string, or one character of structure; what lies between are blanks, numbers and literals. For what
:func:`unescaped` gives."""


def unescaped(raw: bytes) -> bytes:
    """As long as ``raw``, with strings in the same places and no escaped quote in them."""
    return raw.replace(b"\\\\", b"__").replace(b'\\"', b"__")


TOKENS = 4096
"""JSON tokens that are parsed in one slice, which takes a millisecond."""

TOKENS_US = 1200

BYTES_PER_US = 300
"""Bytes per microsecond for strings that are all escapes; escapes are replaced first."""

Place = tuple[int, int]
"""Start and end, in bytes."""

MOST_PLACES = 256
"""At which a request may name what is changed, each of some twelve names once."""

_QUOTE, _ARRAY, _COMMA = b'"[,'
_OPENING, _CLOSING = b"{[", b"}]"
_MOST_NAME_BYTES = 200
"""Longer than any of the names, be every letter written as an escape."""


class Outline:
    """Where the members ``names`` of one valid JSON object are, duplicates included; for a member that is an
    array also where its last element is."""

    def __init__(self, raw: bytes, names: frozenset[str]) -> None:
        self._raw = raw
        self._names = names
        self._members: list[tuple[str, int, int]] = []
        self._lasts: dict[str, Place | None] = {}
        """The place of the last element, by member; None for an empty array. Of duplicates the last
        counts."""
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
        """The object with these members, which are among the ``names``: replaced where they are, every
        duplicate too, or put in front."""
        assert changes.keys() <= self._names
        raw, found = self._raw, {name for name, _, _ in self._members}
        added = b",".join(orjson.dumps(name) + b":" + changes[name] for name in changes if name not in found)
        start = raw.index(b"{") + 1
        pieces = [raw[:start], added, b"," if added and (found or self._more) else b""]
        for name, begin, end in self._members:
            if name in changes:
                pieces += [raw[start:begin], changes[name]]
                start = end
        return b"".join((*pieces, raw[start:]))

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


def outline_at_once(raw: bytes, name: str) -> Outline:
    """The outline of a message, or of a part of one, that the answer goes on with. Raises
    :class:`NotContinuable` for one of more than ``TOKENS``."""
    outline = Outline(raw, frozenset({name}))
    for slices, _ in enumerate(outline.find()):
        if slices:
            raise NotContinuable("the message that the answer belongs to has too many values")
    return outline
