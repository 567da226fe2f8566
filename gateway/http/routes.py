"""Which handler answers which path."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.routing import Route, Router

from gateway.http.admin import Page
from gateway.http.exchange import HttpSettings
from gateway.http.handlers import (
    OLLAMA_FORM,
    OPENAI_FORM,
    Alive,
    Catalog,
    Description,
    Exposition,
    MetricsPage,
    Models,
    Proxied,
    Ready,
    tunnel_without_upgrade,
    unknown_path,
)
from gateway.http.openapi import document
from gateway.http.pages import DocsPage, RootPage, VersionPage
from gateway.lifecycle import Lifecycle
from gateway.pipeline import Keys, Pipeline
from gateway.surface import ENDPOINTS, ENGINES, MODELS, OLLAMA_MODELS, TUNNEL, Endpoint
from shared.version import program_version


def build_router(
    pipeline: Pipeline,
    keys: Keys,
    catalog: Catalog,
    metrics: Exposition,
    lifecycle: Lifecycle,
    settings: HttpSettings,
    admin: Sequence[Route] = (),
) -> Router:
    """Routes in the order of their use: the router tries them one after the other.

    They match the decoded path. That is safe because none of them passes it on: an engine gets a constant, or
    for ``/engines/`` what :func:`gateway.surface.engine_target` makes of the path as it was written.
    """
    models = Models(keys, catalog, OPENAI_FORM)
    pages = {each.path_format: _page(each) for each in admin}
    described = document(
        {path: page.summaries() for path, page in pages.items()},
        {path: page.query for path, page in pages.items()},
    )
    return Router(
        [
            *(_route(_pattern(endpoint), Proxied(endpoint, pipeline, lifecycle)) for endpoint in ENDPOINTS),
            _route(MODELS, models),
            _route(MODELS + "/{id:path}", models),
            _route("/models", models),
            _route("/models/{id:path}", models),
            _route(OLLAMA_MODELS, Models(keys, catalog, OLLAMA_FORM)),
            _route("/", RootPage()),
            _route("/healthz", Alive()),
            _route("/health", Alive()),
            _route("/version", VersionPage(keys, program_version())),
            _route("/readyz", Ready(lifecycle, catalog)),
            _route("/metrics", MetricsPage(keys, metrics, public=settings.metrics_public)),
            _route("/openapi.json", Description(described)),
            _route("/docs", DocsPage(described)),
            _route(TUNNEL, _Plain(tunnel_without_upgrade)),
            *admin,
        ],
        redirect_slashes=False,
        default=unknown_path,
    )


def _page(of: Route) -> Page:
    page: object = of.endpoint
    assert isinstance(page, Page)
    return page


def _route(path: str, handler: object) -> Route:
    return Route(path, endpoint=_as_asgi(handler))


def _as_asgi(handler: object) -> Callable[..., Any]:
    """Starlette takes a callable object for an ASGI application, a function for ``request -> response``."""
    assert callable(handler)
    return handler


class _Plain:
    """A function as an ASGI application."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    async def __call__(self, *asgi: Any) -> None:
        await self._function(*asgi)


def _pattern(endpoint: Endpoint) -> str:
    if endpoint.path == ENGINES:
        return endpoint.path + "{rest:path}"
    return endpoint.path + "{tail:path}" if endpoint.path.endswith("/") else endpoint.path
