"""Asks for usage in a JSON body that the client wrote, without writing the rest of it anew (SURFACE, HTTP).

Numbers, key order, blanks and duplicate keys of the client's body stay byte for byte as they were.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

_ASK = b'"stream_options":{"include_usage":true},'
_KEY = b"stream_options"
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]', re.DOTALL)
"""A string, or one character of structure; what lies between are blanks, numbers and literals."""


def with_usage(body: bytes, options: Mapping[str, Any] | None, *, present: bool) -> bytes:
    """``body`` with ``stream_options.include_usage`` true and all else as it is.

    ``body`` is a valid, non-empty JSON object, ``options`` the value of its ``stream_options`` (None for
    null) and ``present`` says whether it has that member at all. Without it the option is put in front, which
    costs one copy; with it the value is found and replaced, which costs a scan.
    """
    if not present:
        start = body.index(b"{") + 1
        return b"".join((body[:start], _ASK, body[start:]))
    asked = orjson.dumps({**(options or {}), "include_usage": True})
    pieces, position = [], 0
    for start, end in _member_values(body):
        pieces += [body[position:start], asked]
        position = end
    return b"".join((*pieces, body[position:]))


def without_usage(body: bytes) -> bytes | None:
    """``body`` as it was before :func:`with_usage` put the option in front of it; None if it did not."""
    start = body.find(b"{") + 1
    return body[:start] + body[start + len(_ASK) :] if start and body.startswith(_ASK, start) else None


def _member_values(body: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of every value of the member ``stream_options`` at the top of the object ``body``."""
    depth, key, start = 0, b"", -1
    for token in _TOKEN.finditer(body):
        kind = token[0]
        if depth == 1 and kind in (b",", b"}") and start >= 0:
            yield start, token.start()
            start = -1
        if kind in (b"{", b"["):
            depth += 1
        elif kind in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and kind == b":":
            start = token.end() if _is_key(key) else -1
        elif depth == 1 and kind[:1] == b'"' and start < 0:
            key = kind


def _is_key(quoted: bytes) -> bool:
    """Whether a quoted key is ``stream_options``, also when it is written with escapes."""
    return quoted[1:-1] == _KEY or (b"\\" in quoted and bool(orjson.loads(quoted) == _KEY.decode()))
