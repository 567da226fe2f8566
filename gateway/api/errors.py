"""The one place where errors become HTTP: a head and a body, or the last event of a stream."""

import math
import re
from collections.abc import Mapping

import orjson

from gateway.domain.errors import InternalError, MethodNotAllowed, RangeNotSatisfiable, RequestError
from gateway.domain.remembered import Remembered
from gateway.domain.surface import FRONT
from shared.protocol.routes import Dialect

_ANTHROPIC, _TGI, _OPENAI = Dialect.ANTHROPIC, Dialect.TGI, Dialect.OPENAI
"""Members of enumerations for the path of every request: a global is found faster."""

HeaderList = list[tuple[bytes, bytes]]

RETRY_AFTER_MAX_S = 120.0
"""SDKs ignore longer waits and fall back to their own short ones."""

_KSERVE_PATHS = ("/v2/models/", "/v2/health/", "/v2/repository/")

_TENSORFLOW = re.compile(
    r"/v1/models/.+(:(predict|classify|regress|explain)|/metadata|/versions/[0-9]+|/labels/[^/]+)\Z",
    re.DOTALL,
)
_OTHER_PATHS = (
    *(("/predictions/", Dialect.TORCHSERVE), ("/explanations/", Dialect.TORCHSERVE)),
    *(("/ping", Dialect.TORCHSERVE), ("/generate", Dialect.TGI), ("/info", Dialect.TGI)),
)
"""What paths begin with, and the server whose clients ask there."""
_OTHERS = ("/v1/models/", *(beginning for beginning, _ in _OTHER_PATHS))

_TORCHSERVE_TYPES = {
    400: "BadRequestException",
    401: "InvalidKeyException",
    404: "ModelNotFoundException",
    405: "MethodNotAllowedException",
    503: "ServiceUnavailableException",
}

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def dialect_of(path: str, fields: Mapping[bytes, bytes]) -> Dialect:
    """Anthropic's shape on Anthropic's paths and for whoever says to be an Anthropic client, another server's
    on the paths of its API, and OpenAI's elsewhere."""
    return _ANTHROPIC if b"anthropic-version" in fields else _DIALECTS[path]


def _dialect_of_path(path: str) -> Dialect:
    if path.startswith("/v1/messages"):
        return _ANTHROPIC
    if path.startswith("/api/"):
        return Dialect.OLLAMA
    if path.startswith("/v2") and (path == "/v2" or path.startswith(_KSERVE_PATHS)):
        return Dialect.KSERVE
    if path.startswith(_OTHERS):
        return _dialect_of_others(path)
    return _TGI if path == FRONT else _OPENAI


_DIALECTS = Remembered(_dialect_of_path, 256)
"""Clients ask for few paths, and for the same again and again."""


def _dialect_of_others(path: str) -> Dialect:
    """Of a path that begins as another server's, and may be OpenAI's path of a model."""
    for beginning, dialect in _OTHER_PATHS:
        if path.startswith(beginning):
            return dialect
    return Dialect.TENSORFLOW if _TENSORFLOW.match(path) else Dialect.OPENAI


def http_error(error: RequestError, dialect: Dialect, request_id: str) -> tuple[HeaderList, bytes]:
    """Headers (all but the request's id) and body of the answer; its status is ``error.status``."""
    body = _body(error, dialect, request_id)
    headers: HeaderList = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode("ascii")),
    ]
    if error.retry_after_s is not None:
        wait_s = min(max(error.retry_after_s, 0.001), RETRY_AFTER_MAX_S)
        headers.append((b"retry-after", str(math.ceil(wait_s)).encode("ascii")))
        headers.append((b"retry-after-ms", str(math.ceil(wait_s * 1000)).encode("ascii")))
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode("ascii")))
    if isinstance(error, RangeNotSatisfiable):
        headers.append((b"content-range", b"bytes */%d" % error.size_bytes))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers, body


def id_headers(dialect: Dialect, request_id: str) -> HeaderList:
    """``x-request-id`` for everybody, and ``request-id`` where Anthropic's SDKs look for it."""
    value = request_id.encode("ascii")
    if dialect is _ANTHROPIC:
        return [(b"x-request-id", value), (b"request-id", value)]
    return [(b"x-request-id", value)]


def error_line(error: RequestError) -> bytes:
    """The line that ends a stream of JSON lines (Ollama's) which has begun and cannot go on."""
    return orjson.dumps({"error": error.message}) + b"\n"


def error_event(error: RequestError, dialect: Dialect, request_id: str) -> bytes:
    """The event that ends a stream which has begun and cannot go on."""
    event = b"event: error\n" if dialect is Dialect.ANTHROPIC else b""
    return b"".join((event, b"data: ", _body(error, dialect, request_id), b"\n\n"))


def internal_error(request_id: str) -> InternalError:
    """For anything unexpected: says where to look, and nothing of what happened."""
    return InternalError(
        f"The gateway failed on this request. Its log says why under the request id {request_id}."
    )


def _body(error: RequestError, dialect: Dialect, request_id: str) -> bytes:
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(error.status)
        kind = kind or ("invalid_request_error" if error.status < 500 else "api_error")
        detail = {"type": kind, "message": error.message}
        return orjson.dumps({"type": "error", "error": detail, "request_id": request_id})
    if dialect in (Dialect.OLLAMA, Dialect.KSERVE, Dialect.TENSORFLOW):
        return orjson.dumps({"error": error.message})
    if dialect is Dialect.TGI:
        return orjson.dumps({"error": error.message, "error_type": _tgi_type(error.status)})
    if dialect is Dialect.TORCHSERVE:
        other = "BadRequestException" if error.status < 500 else "InternalServerException"
        kind = _TORCHSERVE_TYPES.get(error.status, other)
        return orjson.dumps({"code": error.status, "type": kind, "message": error.message})
    return orjson.dumps(error.openai_body())


def _tgi_type(status: int) -> str:
    """The ``error_type`` that TGI's clients know."""
    if status in (429, 503):
        return "overloaded"
    return "validation" if status < 500 else "generation"
