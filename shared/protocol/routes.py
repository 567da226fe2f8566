"""The known paths of engines, and what an engine needs to answer each. Pure data.

A *route* is a kind of request, as scopes, metrics and agents' states name it: ``chat``, ``rerank``, … Several
paths may belong to one route, and an engine may have one of them and not the others. A *need* names one path:
the route alone for its main path (``rerank`` for ``/v1/rerank``), the route and the path for any other
(``rerank/v2/rerank`` for ``/v2/rerank``). ``any`` is the route of all paths below ``/engines/{model}/``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Dialect(StrEnum):
    """Whose error shape and whose end of a stream the clients of a route expect."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"
    KSERVE = "kserve"
    TENSORFLOW = "tensorflow"
    TORCHSERVE = "torchserve"
    TGI = "tgi"


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """What is known of one route."""

    main: str | None = None
    """Its main path."""
    others: tuple[str, ...] = ()
    """Its other known paths."""
    family: str | None = None
    """What stands for everything below it; ends in a slash."""
    dialect: Dialect = Dialect.OPENAI
    continued: bool = False
    """Its streamed answers can go on at another engine (PROTOCOL §4.7)."""


_NOTHING_MORE = RouteFacts()


class Route(StrEnum):
    """Every route there is. A member equals its name, which is what messages, logs and metrics hold."""

    facts: RouteFacts

    def __new__(cls, name: str, facts: RouteFacts = _NOTHING_MORE) -> "Route":
        member = str.__new__(cls, name)
        member._value_ = name
        member.facts = facts
        return member

    CHAT = "chat", RouteFacts("/v1/chat/completions", continued=True)
    COMPLETIONS = "completions", RouteFacts("/v1/completions", continued=True)
    RESPONSES = "responses", RouteFacts("/v1/responses", continued=True)
    EMBEDDINGS = "embeddings", RouteFacts("/v1/embeddings")
    RERANK = "rerank", RouteFacts("/v1/rerank", ("/rerank", "/v2/rerank"))
    SCORE = "score", RouteFacts("/v1/score", ("/score",))
    CLASSIFY = "classify", RouteFacts("/v1/classify", ("/classify",))
    POOLING = "pooling", RouteFacts("/pooling")
    TOKENIZE = "tokenize", RouteFacts("/tokenize", ("/detokenize",))
    MESSAGES = (
        "messages",
        RouteFacts("/v1/messages", ("/v1/messages/count_tokens",), dialect=Dialect.ANTHROPIC, continued=True),
    )
    AUDIO = (
        "audio",
        RouteFacts(
            others=("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
            family="/v1/audio/",
        ),
    )
    IMAGES = (
        "images",
        RouteFacts(
            others=("/v1/images/generations", "/v1/images/edits", "/v1/images/variations"),
            family="/v1/images/",
        ),
    )
    VIDEOS = "videos", RouteFacts("/v1/videos")
    MODERATIONS = "moderations", RouteFacts("/v1/moderations")
    OLLAMA = (
        "ollama",
        RouteFacts(
            others=("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"),
            dialect=Dialect.OLLAMA,
        ),
    )
    INFER = "infer"
    """Below ``/v2/models/``, of KServe's Open Inference Protocol. The path names the model."""
    PREDICT = "predict"
    """Below ``/v1/models/``, of TensorFlow Serving's API and KServe's first protocol
    (``/v1/models/{model}:predict``). The path names the model."""
    PREDICTIONS = "predictions"
    """Below ``/predictions/`` and ``/explanations/``, of TorchServe's API. The path names the model."""
    GENERATE = "generate", RouteFacts("/generate", ("/generate_stream", "/"), dialect=Dialect.TGI)
    """TGI's own API. Its requests need name no model."""
    WORKFLOWS = "workflows"
    """``/v1/workflows/{model}``: a stored workflow with declared inputs. The path names it."""
    ANY = "any"
    """All paths below ``/engines/{model}/``."""


ANY_ROUTE = Route.ANY.value
"""The route of an engine's own paths. A deployment with no other takes requests of every route."""

UPGRADE_NEED = f"{ANY_ROUTE}/websocket"
"""The need of a request for a WebSocket. A deployment whose agent says no ``upgrades`` lacks it."""

ROUTES: tuple[str, ...] = tuple(route.value for route in Route)

CONTINUED_ROUTES: tuple[str, ...] = tuple(route.value for route in Route if route.facts.continued)
"""Routes whose streamed answers can go on at another engine."""

FAMILIES: Mapping[str, str] = {each.facts.family: each.value for each in Route if each.facts.family}
"""What stands for everything below it → its route."""

_WHOLE = frozenset(
    (*(Route.INFER.value, Route.PREDICT.value, Route.PREDICTIONS.value), Route.WORKFLOWS.value, ANY_ROUTE)
)
"""Routes whose paths name models, so that no need names one of them."""

_MAIN = {route.value: route.facts.main for route in Route if route.facts.main}

PATHS: Mapping[str, str] = {
    **{path: route for route, path in _MAIN.items()},
    **{path: route.value for route in Route for path in route.facts.others},
}
"""Every known path → its route."""

LACKED = 64
"""Needs that a deployment may say it lacks."""

NEED_CHARS = 128
"""Longest need; a longer path below one of :data:`FAMILIES` counts as any other of its route."""


def need_of(route: str, path: str) -> str:
    """The need of a request of ``route`` for ``path``; a query does not count."""
    path = path.partition("?")[0]
    if route in _WHOLE or _MAIN.get(route) == path:
        return route
    need = f"{route}{path}"
    return need if len(need) <= NEED_CHARS else route


def need_of_path(path: str) -> str | None:
    """The need of a known path; None for all others."""
    bare = path.partition("?")[0]
    route = PATHS.get(bare)
    return None if route is None else need_of(route, bare)


def route_of(need: str) -> str:
    """The route that a need belongs to."""
    return need.partition("/")[0]


def offered(paths: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The routes of an engine that has these paths and no others, and what it lacks of them; None when none
    of the paths is known."""
    there = {path for path in paths if path in PATHS}
    if not there:
        return None
    routes = {PATHS[path] for path in there}
    lacked = (need_of(route, path) for path, route in PATHS.items() if route in routes and path not in there)
    return (*(route for route in ROUTES if route in routes), ANY_ROUTE), tuple(lacked)
