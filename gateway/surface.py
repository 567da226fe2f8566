"""Which paths clients may ask for and what each one means (SURFACE, HTTP). Pure: strings in, endpoints out.

The built-in paths are constants, so nothing a client writes can turn one into another path of an engine.
``/engines/{model}/…`` reaches every other path of an engine. There the model is one path segment,
percent-encoded when it holds a slash (``/engines/meta-llama%2FLlama-3-8B/tokenize``), and what follows goes
to the engine byte for byte, after :func:`engine_target` has made sure that no reader of it could see another
path in it.
"""

import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import unquote_to_bytes

from gateway.errors import BadRequest, PathTooLong
from shared.frozen import frozen
from shared.limits import MODEL_NAME_CHARS

PATH_BYTES = 8192
"""Longest path and query that a tunnel carries (PROTOCOL §4.1)."""

ENGINES = "/engines/"
ENGINE_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""TRACE and CONNECT are for whoever is asked, not for somebody behind it."""
MODELS = "/v1/models"
TUNNEL = "/tunnel"

_TAIL = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*\Z")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPED_TWICE = re.compile(rb"%(2[ef]|5c)", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_DOTS = frozenset((".", ".."))
_QUERY = re.compile(rb"[\x21\x22\x24-\x5b\x5d-\x7e]*\Z")
"""Printable, without the backslash and the fragment's sign, which agents pass to no engine."""

READINGS = 3
"""So often a path may be decoded behind us: by a proxy, a framework and a handler."""


class Dialect(StrEnum):
    """Whose error shape and whose end of a stream a client expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path of the surface that is served by engines.

    A ``path`` that ends in a slash stands for everything below it.
    """

    path: str
    route: str
    """What a deployment must be able to do."""
    dialect: Dialect = Dialect.OPENAI
    asks_usage: bool = False
    """A streamed answer carries its usage only when ``stream_options.include_usage`` asks for it."""
    output_tokens: int = 0
    """Taken for the length of an answer when the request does not limit it."""
    any_method: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """Those it takes."""
        return ENGINE_METHODS if self.any_method else ("POST",)

    def takes(self, method: str) -> bool:
        return method in self.methods


CHAT = Endpoint("/v1/chat/completions", "chat", asks_usage=True, output_tokens=256)
ENGINE = Endpoint(ENGINES, "any", any_method=True)

ENDPOINTS = (
    CHAT,
    Endpoint("/v1/completions", "completions", asks_usage=True, output_tokens=256),
    Endpoint("/v1/responses", "responses", output_tokens=256),
    Endpoint("/v1/embeddings", "embeddings"),
    Endpoint("/v1/rerank", "rerank"),
    Endpoint("/v1/messages", "messages", Dialect.ANTHROPIC, output_tokens=256),
    Endpoint("/v1/messages/count_tokens", "messages", Dialect.ANTHROPIC),
    Endpoint("/v1/audio/", "audio"),
    Endpoint("/v1/images/", "images"),
    ENGINE,
)

FIXED = (MODELS, "/healthz", "/readyz", "/metrics", "/openapi.json")
"""Paths the gateway answers by itself."""

_KNOWN = (
    *(endpoint.path for endpoint in ENDPOINTS if not endpoint.path.endswith("/")),
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/engines/{model}/…",
    *FIXED,
)


@frozen
class Target:
    """What an engine is asked for: its path, with the query, and the model when the path names it."""

    path: str
    model: str | None = None
    base: str = ""
    """Before an engine's own path, what its client writes to reach the engine: ``/engines/{model}``."""


def target(endpoint: Endpoint, path: str, raw_path: str, query: bytes) -> Target | None:
    """Where ``endpoint`` sends a request for ``path`` (decoded) and ``raw_path`` (as it was written).

    None when nothing is there. Raises :class:`BadRequest` for a path that could be read in two ways, and
    :class:`PathTooLong`.
    """
    if len(raw_path) + len(query) >= PATH_BYTES:
        raise PathTooLong(f"The path and its query may be {PATH_BYTES} bytes long at most.")
    if not _QUERY.match(query):
        raise BadRequest("The query string holds bytes that must be percent-encoded.", code="invalid_path")
    if endpoint.any_method:
        found = engine_target(raw_path)
    elif endpoint.path.endswith("/"):
        if not _TAIL.match(path.removeprefix(endpoint.path)):
            return None
        found = Target(path)
    else:
        found = Target(endpoint.path)
    return replace(found, path=f"{found.path}?{query.decode('ascii')}") if query else found


def engine_target(raw_path: str) -> Target:
    """The model and the engine's path in ``/engines/{model}/…``. Raises :class:`BadRequest`.

    Refused are ``.`` and ``..`` however they are written, slashes, backslashes and control characters in
    escaped form, escapes of escapes of these, and empty segments: wherever one reader of the path (a proxy,
    the agent's client, the engine) could see another path than the next one. Whatever passes here an agent
    takes.
    """
    if not raw_path.startswith(ENGINES):
        raise _refused("the prefix /engines/ must be written out, not percent-encoded")
    if not raw_path.isascii() or _BAD_ESCAPE.search(raw_path):
        raise _refused("every % must be followed by two hexadecimal digits")
    model_segment, _, rest = raw_path.removeprefix(ENGINES).partition("/")
    model = read_model(unquote_to_bytes(model_segment))
    if not _DOTS.isdisjoint(model.split("/")):
        raise _refused("'.' and '..' are no parts of a model's name")
    segments = rest.split("/")
    for place, segment in enumerate(segments):
        if not segment and place < len(segments) - 1:
            raise _refused("empty segments (//) are not allowed")
        _check_segment(unquote_to_bytes(segment))
        if "%25" in segment:
            _check_readings(unquote_to_bytes(segment))
    return Target("/" + rest, model, ENGINES + model_segment)


def _check_segment(segment: bytes) -> None:
    if segment.split(b";", 1)[0].strip(b" ") in (b".", b".."):
        raise _refused("'.' and '..' are not allowed")
    if b"/" in segment or b"\\" in segment or _ESCAPED_TWICE.search(segment):
        raise _refused("escaped slashes and backslashes are allowed only in the model's segment")
    if _CONTROL.search(segment):
        raise _refused("control characters are not allowed")


def _check_readings(segment: bytes) -> None:
    """What is escaped more than once."""
    for _ in range(READINGS - 1):
        segment = unquote_to_bytes(segment)
        _check_segment(segment)


def _refused(why: str) -> BadRequest:
    message = (
        f"This /engines/{{model}}/… path is not passed on: {why}. Percent-encode slashes in the model's name."
    )
    return BadRequest(message, code="invalid_path")


def read_model(raw: bytes) -> str:
    """A model's name from a path or a header. Raises :class:`BadRequest`."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise BadRequest("The model's name is not UTF-8.", param="model", code="invalid_model") from None
    return check_model(name)


def check_model(name: str) -> str:
    """``name`` if it can be a model's. Raises :class:`BadRequest`."""
    if not name or len(name) > MODEL_NAME_CHARS or not name.isprintable() or " " in name:
        message = (
            f"A model's name has 1 to {MODEL_NAME_CHARS} characters, none of them blank or a control one."
        )
        raise BadRequest(message, param="model", code="invalid_model")
    return name


def nearest(path: str) -> str | None:
    """The known path most like ``path``; None when nothing is like it."""
    tried: Iterable[str] = (path[:100], "/v1" + path[:100], path[:100].removeprefix("/v1"))
    for attempt in tried:
        close: Collection[str] = difflib.get_close_matches(attempt, _KNOWN, n=1, cutoff=0.7)
        if close:
            return next(iter(close))
    return None
