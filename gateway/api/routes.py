"""Which handler answers which path."""

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import cache, partial
from inspect import isfunction
from types import MappingProxyType
from typing import Any

import orjson
from starlette.routing import Route, Router

from gateway.api import pages
from gateway.api.admin.process_page import ROUTE, ProcessPage
from gateway.api.admin.routes import AdminPage
from gateway.api.exchange.exchange import HttpSettings
from gateway.api.kserve import kserve_pages
from gateway.api.model_servers import SERVED_PATTERNS, listed_models, names_of_model, ping
from gateway.api.openai import handlers
from gateway.api.openai.handlers import (
    JSON,
    Exposition,
    KeyedPage,
    LaterAnswers,
    ModelsHandler,
    PartlyProxied,
    Proxied,
    ReadPage,
)
from gateway.api.openapi import document
from gateway.api.ui.files import ui_pages
from gateway.domain.serving_paths import SERVED_MODELS
from gateway.domain.surface import (
    ENDPOINTS,
    ENGINES,
    FRONT,
    MODELS,
    OLLAMA_MODELS,
    REALTIME,
    TUNNEL,
    SurfaceEndpoint,
)
from gateway.pipeline.aliases import AliasCatalog
from gateway.pipeline.pipeline import KeyAuthenticator, Pipeline
from gateway.runtime.lifecycle import Lifecycle
from shared.process.startup import program_version


class PathRouter(Router):
    """Finds paths that are written out in a dictionary; all others as starlette does."""

    def __init__(self, routes: Sequence[Route], unknown: Any) -> None:
        super().__init__(routes, redirect_slashes=False, default=unknown)
        self._exact: dict[str, Any] = {}
        patterns: list[re.Pattern[str]] = []
        for route in routes:
            if route.param_convertors:
                patterns.append(route.path_regex)
            elif route.path not in self._exact and not any(each.match(route.path) for each in patterns):
                app: Any = route.app  # its method is called faster
                self._exact[route.path] = app if isfunction(app) else app.__call__

    def __call__(self, scope: Any, receive: Any, send: Any) -> Coroutine[Any, Any, None]:
        found = self._exact.get(scope["path"])
        if found is None:
            return super().__call__(scope, receive, send)
        scope["path_params"] = {}
        handled: Coroutine[Any, Any, None] = found(scope, receive, send)
        return handled


def build_router(
    pipeline: Pipeline,
    keys: KeyAuthenticator,
    catalog: AliasCatalog,
    metrics: Exposition,
    lifecycle: Lifecycle,
    settings: HttpSettings,
    admin: Mapping[str, AdminPage] = MappingProxyType({}),
    processes: ProcessPage | None = None,
    files: Mapping[str, KeyedPage] = MappingProxyType({}),
    later: LaterAnswers | None = None,
) -> Router:
    """Routes in the order of their use: the router tries them one after the other. ``processes`` answers
    other processes of the gateway; None: there are none. A page of ``files`` answers in place of the engines.

    They match the decoded path. That is safe because none of them passes it on: an engine gets a constant, or
    for ``/engines/`` what :func:`gateway.domain.surface.engine_target` makes of the path as it was written.
    """
    models = ReadPage("models", ModelsHandler(keys, catalog, handlers.openai_model, handlers.openai_models))
    ollama = ReadPage("models", ModelsHandler(keys, catalog, handlers.ollama_model, handlers.ollama_models))
    health, version = ReadPage("health", handlers.liveness), program_version()

    front = ReadPage("front", pages.root_page())
    own = {FRONT: (front, lambda path: {}), SERVED_MODELS: (models, names_of_model(catalog))}
    engines_page = partial(_engines_page, pipeline, lifecycle, later, own)

    described = cache(partial(_described, admin))
    read_only: dict[str, Callable[..., Awaitable[None]]] = ui_pages() | {
        MODELS: models,
        MODELS + "/{id:path}": models,
        "/models": ReadPage("models", ModelsHandler(keys, catalog, handlers.openai_model, listed_models)),
        "/models/{id:path}": models,
        OLLAMA_MODELS: ollama,
        "/healthz": health,
        "/health": health,
        "/ping": ReadPage("health", ping(lifecycle)),
        "/version": ReadPage("version", pages.version_page(keys, version)),
        "/readyz": ReadPage("health", handlers.readiness(lifecycle, catalog)),
        "/metrics": ReadPage("metrics", handlers.metrics_page(keys, metrics, public=settings.metrics_public)),
        "/openapi.json": ReadPage("openapi", pages.page_made_once(JSON, lambda: orjson.dumps(described()))),
        "/docs": ReadPage(
            "docs", pages.page_made_once(pages.HTML, lambda: pages.docs_page(described()), pages.PAGE_HEADERS)
        ),
        TUNNEL: handlers.TunnelPage(),
    }
    return PathRouter(
        [  # those of KServe first: the path of a model's metadata would take them, too
            *(Route(path, page) for path, page in kserve_pages(keys, catalog, lifecycle, version).items()),
            *(
                Route(pattern, endpoint=engines_page(each))
                for each in (*ENDPOINTS, REALTIME)
                if each.path not in files  # else it is answered by jobs
                for pattern in _patterns(each)
            ),
            *(Route(path, endpoint=page) for path, page in (read_only | dict(files) | dict(admin)).items()),
            *([] if processes is None else [Route(ROUTE, endpoint=processes)]),
        ],
        handlers.unknown_path,
    )


def _described(admin: Mapping[str, AdminPage]) -> Mapping[str, Any]:
    from gateway.api.admin.description import describe_page  # makes the models of bodies

    written = {path.replace(":path}", "}"): page for path, page in admin.items()}
    return document({path: describe_page(path, page) for path, page in written.items()})


OwnReads = Mapping[str, tuple[ReadPage, Callable[[str], Mapping[str, str] | None]]]


def _engines_page(
    pipeline: Pipeline,
    lifecycle: Lifecycle,
    later: LaterAnswers | None,
    own: OwnReads,
    endpoint: SurfaceEndpoint,
) -> Proxied:
    """What engines answer at ``endpoint``, but for what is read there of the gateway itself."""
    if (answered := own.get(endpoint.path)) is not None:
        return PartlyProxied(endpoint, pipeline, lifecycle, later, *answered)
    return Proxied(endpoint, pipeline, lifecycle, later)


def _patterns(endpoint: SurfaceEndpoint) -> tuple[str, ...]:
    if endpoint.path == ENGINES:
        return (endpoint.path + "{rest:path}",)
    if endpoint.path == SERVED_MODELS:
        return SERVED_PATTERNS
    return (endpoint.path + "{tail:path}" if endpoint.fixed is None else endpoint.path,)
