"""Puts a model's own name in place of the one the client asked for, and leaves all else byte for byte. Pure.

A body is not parsed a second time: the member is found by its name. Engines must not see an alias, which they
would refuse.
"""

import re
from collections.abc import Iterator

import orjson
from python_multipart.multipart import parse_options_header

from gateway.domain import Request
from gateway.scheduling.base import ANY_ROUTE
from shared.limits import MIB

UNPARSED_BYTES = MIB
"""A body that nobody has parsed is looked through up to here."""

_KEY = b'"model"'
_ESCAPED = b"\\u006"
"""How every letter of the key begins when it is written as an escape."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_VALUE = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(" + _STRING + rb")", re.DOTALL)


def rename(request: Request, model: str) -> None:
    """Have ``request``, as it is now, ask for ``model``: its body, its length, its ``model``.

    Where the body does not name the model (it came in the path or in ``x-model``) nothing is changed in it.
    """
    before, body = request.model, request.body
    if model == before:
        return
    request.model = model
    kind = next((value for name, value in request.headers if name == "content-type"), "").strip()
    if kind.lower().startswith("multipart/form-data"):
        prefix = form_renamed(body.prefix, kind.encode("latin-1"), before, model)
    elif body.rest is not None or body.prefix.lstrip()[:1] != b"{":
        return
    elif request.route != ANY_ROUTE:
        prefix = json_renamed(body.prefix, before, model)
    elif len(body.prefix) <= UNPARSED_BYTES:
        prefix = _replaced(body.prefix, before, model, _members(body.prefix, len(body.prefix)))
    else:
        return
    longer = len(prefix) - len(body.prefix)
    body.prefix = prefix
    if longer and body.size_bytes is not None:
        body.size_bytes += longer
        request.headers = tuple(
            (name, str(body.size_bytes) if name == "content-length" else value)
            for name, value in request.headers
        )


def json_renamed(body: bytes, before: str, after: str) -> bytes:
    """``body``, a JSON object, with ``after`` wherever its own member ``model`` is the string ``before``."""
    if _ESCAPED in body:
        return _replaced(body, before, after, _members(body, len(body)))
    if body.count(_KEY) != 1:
        return _replaced(body, before, after, _members(body, body.rfind(_KEY) + len(_KEY)))
    # The one place where the key is written is where it is a key, for it is one somewhere.
    return _replaced(body, before, after, iter((body.index(_KEY) + len(_KEY),)))


def _replaced(body: bytes, before: str, after: str, places: Iterator[int]) -> bytes:
    """``after`` for every string ``before`` that is the value of a key which ends at one of ``places``."""
    pieces, position, quoted = [], 0, orjson.dumps(after)
    for place in places:
        value = _VALUE.match(body, place)
        if value is not None and _reads(value[1], before):
            pieces += [body[position : value.start(1)], quoted]
            position = value.end(1)
    return b"".join((*pieces, body[position:])) if pieces else body


def _members(body: bytes, end: int) -> Iterator[int]:
    """Where the strings ``model`` at the top of the object end, looking no further than ``end``."""
    depth = 0
    for token in _TOKEN.finditer(body, 0, end):
        kind = token[0]
        if kind in (b"{", b"["):
            depth += 1
        elif kind in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and (kind == _KEY or (b"\\" in kind and _reads(kind, "model"))):
            yield token.end()


def _reads(quoted: bytes, text: str) -> bool:
    """Whether a JSON string reads ``text``."""
    try:
        return bool(orjson.loads(quoted) == text)
    except orjson.JSONDecodeError:
        return False


def form_renamed(body: bytes, content_type: bytes, before: str, after: str) -> bytes:
    """``body``, the beginning of a multipart form, with ``after`` in place of ``before`` in its fields
    ``model``."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    pieces, position = [], 0
    for start, end in _fields(body, b"--" + boundary):
        if body[start:end] == before.encode():
            pieces += [body[position:start], after.encode()]
            position = end
    return b"".join((*pieces, body[position:]))


def _fields(body: bytes, delimiter: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of the value of every field ``model`` that is there whole (RFC 2046 §5.1.1)."""
    position = body.find(delimiter)
    while position >= 0:
        head = position + len(delimiter)
        start = body.find(b"\r\n\r\n", head) + 4
        end = body.find(b"\r\n" + delimiter, start - 2)
        if start < 4 or end < 0:
            return
        if _is_field(body[head : start - 4]):
            yield start, end
        position = end + 2


def _is_field(head: bytes) -> bool:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            options = parse_options_header(value.strip())[1]
            return options.get(b"name") == b"model" and not options.keys() & {b"filename", b"filename*"}
    return False
