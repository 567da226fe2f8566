"""Changes members of JSON that the client wrote, without writing the rest of it anew.

Parsing and dumping would be shorter, but numbers beyond 64 bits, decimals beyond a double's and duplicate
keys would change their meaning on the way. So the places of values are found in the bytes, and only what
must change is replaced. The input is valid JSON; everything here relies on that.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.dispatch.recovery.errors import NotContinuable

MOST_TOKENS = 4096
"""Of a value whose places are found at once: of the message, or the item, that the answer goes on with. Those
of the request are found a slice at a time (:mod:`gateway.dispatch.recovery.outline`)."""

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
