"""Which handler answers which path."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.routing import Route, Router

from gateway.api.admin.description import describe_page
from gateway.api.admin.routes import AdminPage
from gateway.api.exchange.exchange import HttpSettings
from gateway.api.openai.handlers import (
    OLLAMA_FORM,
    OPENAI_FORM,
    Catalog,
    Description,
    Exposition,
    LivenessHandler,
    MetricsPage,
    ModelsHandler,
    Proxied,
    ReadinessHandler,
    tunnel_without_upgrade,
    unknown_path,
)
from gateway.api.openapi import document
from gateway.api.pages import DocsPage, RootPage, VersionPage
from gateway.domain.surface import ENDPOINTS, ENGINES, MODELS, OLLAMA_MODELS, TUNNEL, SurfaceEndpoint
from gateway.pipeline.pipeline import KeyAuthenticator, Pipeline
from gateway.runtime.lifecycle import Lifecycle
from shared.process.startup import program_version


def build_router(
    pipeline: Pipeline,
    keys: KeyAuthenticator,
    catalog: Catalog,
    metrics: Exposition,
    lifecycle: Lifecycle,
    settings: HttpSettings,
    admin: Sequence[Route] = (),
) -> Router:
    """Routes in the order of their use: the router tries them one after the other.

    They match the decoded path. That is safe because none of them passes it on: an engine gets a constant, or
    for ``/engines/`` what :func:`gateway.domain.surface.engine_target` makes of the path as it was written.
    """
    models = ModelsHandler(keys, catalog, OPENAI_FORM)
    described = document({each.path_format: describe_page(each.path_format, _page(each)) for each in admin})
    return Router(
        [
            *(_route(_pattern(endpoint), Proxied(endpoint, pipeline, lifecycle)) for endpoint in ENDPOINTS),
            _route(MODELS, models),
            _route(MODELS + "/{id:path}", models),
            _route("/models", models),
            _route("/models/{id:path}", models),
            _route(OLLAMA_MODELS, ModelsHandler(keys, catalog, OLLAMA_FORM)),
            _route("/", RootPage()),
            _route("/healthz", LivenessHandler()),
            _route("/health", LivenessHandler()),
            _route("/version", VersionPage(keys, program_version())),
            _route("/readyz", ReadinessHandler(lifecycle, catalog)),
            _route("/metrics", MetricsPage(keys, metrics, public=settings.metrics_public)),
            _route("/openapi.json", Description(described)),
            _route("/docs", DocsPage(described)),
            _route(TUNNEL, _Plain(tunnel_without_upgrade)),
            *admin,
        ],
        redirect_slashes=False,
        default=unknown_path,
    )


def _page(of: Route) -> AdminPage:
    page: object = of.endpoint
    assert isinstance(page, AdminPage)
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


def _pattern(endpoint: SurfaceEndpoint) -> str:
    if endpoint.path == ENGINES:
        return endpoint.path + "{rest:path}"
    return endpoint.path + "{tail:path}" if endpoint.path.endswith("/") else endpoint.path
