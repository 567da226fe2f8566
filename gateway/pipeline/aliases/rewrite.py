"""Puts a model's own name in place of the one the client asked for, and leaves all else byte for byte. Pure.

A body is not parsed a second time: the member is found by its name. Engines must not see an alias, which they
would refuse.
"""

from collections.abc import Iterator

import orjson
from python_multipart.multipart import parse_options_header

from gateway.domain.inference_paths import with_model
from gateway.domain.json_members import Edit, count_candidates, model_edits
from gateway.domain.request import Request, RequestBody
from gateway.domain.serving_paths import with_served_model
from gateway.domain.surface import check_path, model_in_query, with_model_in_query
from gateway.domain.workflow_paths import workflow_path
from shared.protocol.limits import KIB, MIB
from shared.protocol.routes import Route

UNPARSED_BYTES = MIB
UNPARSED_QUOTES = 32_768
UNPARSED_NAMES = 1024
"""A body of which nobody has found where it names its model is looked through if it is no longer, has no
more strings, and names the model no more often at any depth. That takes 3 ms."""

FORM_PARTS = 128
PART_HEAD_BYTES = 8 * KIB
"""Of a form so many parts are looked at, and only those with a head that is no longer."""


def rename(request: Request, model: str) -> None:
    """Have ``request``, as it is now, ask for ``model``: its body, its length, its ``model``.

    Where the body does not name the model (it came in the path or in ``x-model``) nothing is changed in it.
    Raises PathTooLong.
    """
    before, body = request.model, request.body
    if model == before:
        return
    request.model = model
    path = _renamed_path(request, before, model)
    if path is not None:
        check_path(path)
        request.path = path
    if request.route in _NAMED_IN_PATHS:
        return
    kind = next((value for name, value in request.headers if name == "content-type"), "").strip()
    before_bytes = body.held_bytes
    if kind.lower().startswith("multipart/form-data"):
        body.edit(form_edits(body.prefix, kind.encode("latin-1"), before, model))
    elif body.models is not None:
        body.edit([(start, end, orjson.dumps(model)) for start, end in body.models])
    elif body.rest is None and _readable(body):
        body.edit(model_edits(body.prefix, before, model))
    if body.held_bytes != before_bytes and body.size_bytes is not None:
        request.headers = tuple(
            (name, str(body.size_bytes) if name == "content-length" else value)
            for name, value in request.headers
        )


_NAMED_IN_PATHS = frozenset((Route.INFER, Route.PREDICT, Route.PREDICTIONS, Route.WORKFLOWS))
"""Routes whose paths name the model; their bodies do not."""


def _renamed_path(request: Request, before: str, model: str) -> str | None:
    """The request's path with ``model`` in it; None: it names none."""
    path = request.path
    if request.route == Route.INFER:
        return with_model(path, model)
    if request.route in (Route.PREDICT, Route.PREDICTIONS):
        return with_served_model(path, model)
    if request.route == Route.WORKFLOWS:
        _, mark, query = path.partition("?")
        return workflow_path(model) + mark + query
    if request.upgrade and "?" in path and model_in_query(path) == before:
        return with_model_in_query(path, model)
    return None


def _readable(body: RequestBody) -> bool:
    """Whether the body may be an object, and one that is soon looked through."""
    if body.held_bytes > UNPARSED_BYTES or body.prefix.lstrip()[:1] != b"{":
        return False
    return body.prefix.count(b'"') <= UNPARSED_QUOTES and count_candidates(body.prefix) <= UNPARSED_NAMES


def form_edits(body: bytes, content_type: bytes, before: str, after: str) -> list[Edit]:
    """What puts ``after`` in place of ``before`` in the fields ``model`` of ``body``, the beginning of a
    multipart form."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    fields = _fields(body, b"--" + boundary)
    return [(start, end, after.encode()) for start, end in fields if body[start:end] == before.encode()]


def _fields(body: bytes, delimiter: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of the value of every field ``model`` that is there whole (RFC 2046 §5.1.1)."""
    position = body.find(delimiter)
    for _ in range(FORM_PARTS):
        head = position + len(delimiter)
        start = body.find(b"\r\n\r\n", head) + 4
        end = body.find(b"\r\n" + delimiter, start - 2)
        if position < 0 or start < 4 or end < 0:
            return
        if start - head <= PART_HEAD_BYTES and _is_field(body[head : start - 4]):
            yield start, end
        position = end + 2


def _is_field(head: bytes) -> bool:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            options = parse_options_header(value.strip())[1]
            return options.get(b"name") == b"model" and not options.keys() & {b"filename", b"filename*"}
    return False
