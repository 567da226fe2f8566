"""The paths of engines that are known by name, and what an engine must be able to do to answer each. Pure
data.

A *route* is a kind of request, as scopes, metrics and agents' states name it: ``chat``, ``rerank``, … Several
paths may belong to one route, and an engine may have one of them and not the others. A *need* names one path:
the route alone for its main path (``rerank`` for ``/v1/rerank``), the route and the path for any other
(``rerank/v2/rerank`` for ``/v2/rerank``). ``any`` is the route of all paths below ``/engines/{model}/``.
"""

from collections.abc import Iterable, Mapping

ANY = "any"

_MAIN = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "score": "/v1/score",
    "classify": "/v1/classify",
    "pooling": "/pooling",
    "tokenize": "/tokenize",
    "messages": "/v1/messages",
}

_OTHERS = {
    "rerank": ("/rerank", "/v2/rerank"),
    "score": ("/score",),
    "classify": ("/classify",),
    "tokenize": ("/detokenize",),
    "messages": ("/v1/messages/count_tokens",),
    "audio": ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
    "images": ("/v1/images/generations", "/v1/images/edits", "/v1/images/variations"),
    "ollama": ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"),
}

FAMILIES: Mapping[str, str] = {"/v1/audio/": "audio", "/v1/images/": "images"}
"""What stands for everything below it → its route."""

ROUTES: tuple[str, ...] = (*_MAIN, *(route for route in _OTHERS if route not in _MAIN), ANY)
"""Every route there is."""

PATHS: Mapping[str, str] = {
    **{path: route for route, path in _MAIN.items()},
    **{path: route for route, paths in _OTHERS.items() for path in paths},
}
"""Every known path → its route."""

LACKED = 64
"""Needs that a deployment may say it lacks."""

NEED_CHARS = 128
"""Longest need; a longer path below one of :data:`FAMILIES` counts as any other of its route."""


def need_of(route: str, path: str) -> str:
    """What a request of ``route`` for ``path`` (a query does not count) asks of a deployment."""
    path = path.partition("?")[0]
    if route == ANY or _MAIN.get(route) == path:
        return route
    need = f"{route}{path}"
    return need if len(need) <= NEED_CHARS else route


def need_of_path(path: str) -> str | None:
    """The need of a known path, whoever asks for it; None for all others."""
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
    return (*(route for route in ROUTES if route in routes), ANY), tuple(lacked)
