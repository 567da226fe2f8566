"""Which paths clients may ask for and what each one means. Pure: strings in, endpoints out.

The built-in paths are constants, so nothing a client writes can turn one into another path of an engine.
``/engines/{model}/…`` reaches every other path of an engine. There the model is one path segment,
percent-encoded when it holds a slash (``/engines/meta-llama%2FLlama-3-8B/tokenize``), and what follows goes
to the engine byte for byte, after :func:`engine_target` has made sure that no reader of it could see another
path in it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

from gateway.domain.errors import BadRequest, PathTooLong
from gateway.domain.inference_paths import INFERENCE_MODELS, inference_path, read_inference_path
from gateway.domain.serving_paths import (
    EXPLANATIONS,
    PREDICTIONS,
    SERVED_MODELS,
    ServingPath,
    read_predictions_path,
    read_served_path,
)
from gateway.domain.workflow_paths import WORKFLOWS, read_workflow_path, workflow_path
from shared.identity.certificates import is_name
from shared.process.frozen import frozen
from shared.protocol.limits import MODEL_NAME_CHARS
from shared.protocol.routes import Dialect, Route, need_of

PATH_BYTES = 8192
"""Longest path and query that a tunnel carries (PROTOCOL §4.1)."""

ENGINES = "/engines/"
ENGINE_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""TRACE and CONNECT are for whoever is asked, not for somebody behind it."""
MODELS = "/v1/models"
FRONT = "/"
"""The gateway's own page, and where clients of TGI post, too."""
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


@frozen
class AddressedPath:
    """A model as one agent serves it: ``/engines/{model}@{agent}/…``."""

    model: str
    agent: str


@frozen
class EngineTarget:
    """What an engine is asked for: its path, with the query, and the model when the path names it."""

    path: str
    model: str | None = None
    base: str = ""
    """Before an engine's own path, what its client writes to reach the engine: ``/engines/{model}``."""
    addressed: AddressedPath | None = None
    """How else the model's segment can be read: as a model at an agent."""
    methods: tuple[str, ...] | None = None
    """Those that this path takes, where its endpoint has paths that take others."""


@dataclass(frozen=True, slots=True)
class SurfaceEndpoint:
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
    names_model: bool = False
    """Its paths name the model, and its bodies are passed on unread."""
    has_reads: bool = False
    """Some of its paths take GET, and no body."""
    is_read: bool = False
    """It takes GET, and no body."""
    has_writes: bool = False
    """Some of its paths take PUT, too."""
    streams_unasked: bool = False
    """It answers with a stream unless the request says ``"stream": false``."""
    upgrades: bool = False
    """A client may ask for a WebSocket there."""
    only_upgrades: bool = False
    """Nothing else is to be had there. The query names the model."""

    methods: tuple[str, ...] = field(init=False)
    """Those it takes."""
    fixed: EngineTarget | None = field(init=False)
    """What an engine is asked for where neither path nor query says more; None where the path does."""
    need: str | None = field(init=False)
    """What a deployment must be able to do for its requests (:mod:`shared.protocol.routes`); None where that
    depends on the path."""

    def __post_init__(self) -> None:
        set_once, fixed = object.__setattr__, self.path == "/" or not self.path.endswith("/")
        one_method = ("GET",) if self.only_upgrades or self.is_read else ("POST",)
        own = ("GET", "POST", *(("PUT",) if self.has_writes else ())) if self.has_reads else one_method
        set_once(self, "methods", ENGINE_METHODS if self.any_method else own)
        set_once(self, "fixed", EngineTarget(self.path) if fixed else None)
        set_once(self, "need", need_of(self.route, self.path) if fixed or self.names_model else None)


_OUTPUT_TOKENS = 256
"""The usual length of a written answer."""
_WRITES = frozenset(
    (
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/api/chat", "/api/generate", "/generate", "/generate_stream", "/"),
    )
)
"""Paths whose answers are text that a model writes."""
_ASKS_USAGE = frozenset((Route.CHAT, Route.COMPLETIONS))
_STREAMS_UNASKED = frozenset(("/api/chat", "/api/generate", "/generate_stream"))


def _endpoints(route: Route) -> Iterator[SurfaceEndpoint]:
    facts = route.facts
    for path in (facts.family,) if facts.family else (facts.main, *facts.others):
        if path is not None:
            yield SurfaceEndpoint(
                path,
                route.value,
                facts.dialect,
                asks_usage=route in _ASKS_USAGE,
                output_tokens=_OUTPUT_TOKENS if path in _WRITES else 0,
                streams_unasked=path in _STREAMS_UNASKED,
                has_reads=path == FRONT,
            )


ENGINE = SurfaceEndpoint(
    ENGINES, Route.ANY.value, any_method=True, names_model=True, output_tokens=_OUTPUT_TOKENS, upgrades=True
)
REALTIME = SurfaceEndpoint("/v1/realtime", Route.ANY.value, upgrades=True, only_upgrades=True)
WORKFLOW = SurfaceEndpoint(WORKFLOWS, Route.WORKFLOWS.value, names_model=True)
INFERENCE = SurfaceEndpoint(
    INFERENCE_MODELS,
    Route.INFER.value,
    Dialect.KSERVE,
    names_model=True,
    has_reads=True,
    output_tokens=_OUTPUT_TOKENS,
)
TENSORFLOW = SurfaceEndpoint(
    SERVED_MODELS,
    Route.PREDICT.value,
    Dialect.TENSORFLOW,
    names_model=True,
    has_reads=True,
    output_tokens=_OUTPUT_TOKENS,
)
TORCHSERVE = tuple(
    SurfaceEndpoint(
        path,
        Route.PREDICTIONS.value,
        Dialect.TORCHSERVE,
        names_model=True,
        has_reads=True,
        has_writes=True,
        output_tokens=_OUTPUT_TOKENS,
    )
    for path in (PREDICTIONS, EXPLANATIONS)
)
TGI_INFO = SurfaceEndpoint("/info", Route.GENERATE.value, Dialect.TGI, is_read=True)
ENDPOINTS = (
    *(endpoint for route in Route for endpoint in _endpoints(route)),
    *(TGI_INFO, *TORCHSERVE, TENSORFLOW, WORKFLOW, INFERENCE, ENGINE),
)
CHAT = next(_endpoints(Route.CHAT))

OLLAMA_MODELS = "/api/tags"
"""Ollama's list of models."""

FIXED = (
    MODELS,
    "/models",
    OLLAMA_MODELS,
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/repository/index",
    "/healthz",
    "/health",
    "/ping",
    "/readyz",
    "/version",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/",
)
"""Paths the gateway answers by itself."""


def target(endpoint: SurfaceEndpoint, path: str, raw_path: str, query: bytes) -> EngineTarget | None:
    """Where ``endpoint`` sends a request for ``path`` (decoded) and ``raw_path`` (as it was written).

    None when nothing is there. Raises :class:`BadRequest` for a path that could be read in two ways, and
    :class:`PathTooLong`.
    """
    fixed = endpoint.fixed
    if fixed is not None and not query:  # however it was written it is no longer than three times its path
        return fixed
    if len(raw_path) + len(query) >= PATH_BYTES:
        raise _too_long()
    if not _QUERY.match(query):
        raise BadRequest("The query string holds bytes that must be percent-encoded.", code="invalid_path")
    if endpoint.any_method:
        found = engine_target(raw_path)
    elif endpoint.names_model:
        if (named := _READERS[endpoint.path](raw_path)) is None:
            return None
        found = named
    elif fixed is not None:
        found = fixed
    else:
        if not _TAIL.match(path.removeprefix(endpoint.path)):
            return None
        found = EngineTarget(path)
    if query:
        found = replace(found, path=f"{found.path}?{query.decode('ascii')}")
    check_path(found.path)
    return found


def check_path(path: str) -> None:
    """``path`` with its query is what an agent is told, which ends its session over a longer one. A model's
    name in it may be written longer than its client wrote it. Raises :class:`PathTooLong`."""
    if len(path) > PATH_BYTES:
        raise _too_long()


def _too_long() -> PathTooLong:
    return PathTooLong(f"The path and its query may be {PATH_BYTES} bytes long at most.")


def model_in_query(path: str) -> str | None:
    """The model that the query of ``path`` names; None: none, or several. Raises :class:`BadRequest` for what
    cannot be a model's name."""
    found = [value for name, value in _query_of(path) if name == "model"]
    return check_model(found[0]) if len(found) == 1 else None


def with_model_in_query(path: str, model: str) -> str:
    """``path`` with ``model`` where its query names another one."""
    place, _, _ = path.partition("?")
    pairs = [(name, model if name == "model" else value) for name, value in _query_of(path)]
    return f"{place}?{urlencode(pairs)}"


def _query_of(path: str) -> list[tuple[str, str]]:
    query = path.partition("?")[2]
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=64)
    except ValueError:
        raise BadRequest("The query has too many parameters.", code="invalid_path") from None


def engine_target(raw_path: str) -> EngineTarget:
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
        reading = segment.encode()
        for _ in range(READINGS if "%25" in segment else 1):
            reading = unquote_to_bytes(reading)
            _check_segment(reading)
    return EngineTarget("/" + rest, model, ENGINES + model_segment, _addressed(model_segment))


def inference_target(raw_path: str) -> EngineTarget | None:
    """The model and the engine's path in ``/v2/models/{model}…``; None when nothing is there. Raises
    :class:`BadRequest` for what cannot be a model's name."""
    found = read_inference_path(raw_path)
    if found is None:
        return None
    model = read_model(found.model)
    return EngineTarget(inference_path(model, found.version, found.action), model, methods=found.methods)


def workflow_target(raw_path: str) -> EngineTarget | None:
    """The workflow in ``/v1/workflows/{model}``; None when nothing is there. Raises :class:`BadRequest` for
    what cannot be a model's name."""
    found = read_workflow_path(raw_path)
    if found is None:
        return None
    model = read_model(found)
    return EngineTarget(workflow_path(model), model, methods=("POST",))


def _serving_target(read: Callable[[str], ServingPath | None], raw_path: str) -> EngineTarget | None:
    """The model and the engine's path in a path of TensorFlow Serving or TorchServe; None when nothing is
    there. Raises :class:`BadRequest` for what cannot be a model's name."""
    found = read(raw_path)
    if found is None:
        return None
    model = read_model(found.model)
    return EngineTarget(found.of(model), model, methods=found.methods)


_READERS: Mapping[str, Callable[[str], EngineTarget | None]] = {
    WORKFLOWS: workflow_target,
    INFERENCE_MODELS: inference_target,
    SERVED_MODELS: partial(_serving_target, read_served_path),
    PREDICTIONS: partial(_serving_target, read_predictions_path),
    EXPLANATIONS: partial(_serving_target, read_predictions_path),
}
"""How paths are read that name their model, by what they begin with."""


def _addressed(segment: str) -> AddressedPath | None:
    """``{model}@{agent}`` as far as it can be that: an ``@`` that is part of a model's name may be
    escaped."""
    model, _, agent = segment.rpartition("@")
    if not model or not is_name(agent):
        return None
    return AddressedPath(read_model(unquote_to_bytes(model)), agent)


def _check_segment(segment: bytes) -> None:
    if segment.split(b";", 1)[0].strip(b" ") in (b".", b".."):
        raise _refused("'.' and '..' are not allowed")
    if b"/" in segment or b"\\" in segment or _ESCAPED_TWICE.search(segment):
        raise _refused("escaped slashes and backslashes are allowed only in the model's segment")
    if _CONTROL.search(segment):
        raise _refused("control characters are not allowed")


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


def is_model_name(name: str) -> bool:
    """Whether clients can ask for a model of this name."""
    try:
        check_model(name)
    except BadRequest:
        return False
    return True


def check_model(name: str) -> str:
    """``name`` if it can be a model's. Raises :class:`BadRequest`."""
    if not 0 < len(name) <= MODEL_NAME_CHARS or not name.isprintable() or " " in name:
        message = (
            f"A model's name has 1 to {MODEL_NAME_CHARS} characters, none of them blank or a control one."
        )
        raise BadRequest(message, param="model", code="invalid_model")
    return name
