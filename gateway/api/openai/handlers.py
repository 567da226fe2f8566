"""What the gateway does with the requests of each path. Every handler is a plain ASGI application."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from gateway.api.exchange.exchange import EXCHANGE, HttpExchange, exchange_of
from gateway.api.exchange.inbound import Receive
from gateway.api.exchange.reply import Send
from gateway.domain.errors import (
    Forbidden,
    MethodNotAllowed,
    ModelNotFound,
    RouteNotFound,
    UpgradeRequired,
)
from gateway.domain.nearest_path import nearest
from gateway.domain.request import Principal
from gateway.domain.slices import in_slices
from gateway.domain.surface import SurfaceEndpoint, check_model
from gateway.fleet.registry import ServedModel
from gateway.pipeline.aliases import AliasCatalog
from gateway.pipeline.pipeline import KeyAuthenticator, Pipeline
from gateway.runtime.lifecycle import Lifecycle, LifecyclePhase
from shared.protocol.routes import Route

Scope = MutableMapping[str, Any]
Json = dict[str, Any]
JSON = b"application/json"
PREFER = b"prefer"
PATH_CHARS = 200
"""How many characters of a path an error quotes."""

Respond = Callable[[HttpExchange, Mapping[str, str]], Awaitable[None]]
"""Answers one request. The mapping holds the names in its path."""

KeyedHandler = Callable[[HttpExchange, Principal, str], Awaitable[None]]
"""Answers one request of a key. The text is the id in its path, or empty."""


class LaterAnswers(Protocol):
    """Answers requests by jobs; :class:`gateway.api.jobs.respond_async.AsyncRequests`."""

    def takes(self, exchange: HttpExchange) -> bool: ...
    def __call__(self, exchange: HttpExchange) -> Coroutine[Any, Any, None]: ...

    def in_background(
        self, exchange: HttpExchange, answer: Coroutine[Any, Any, None]
    ) -> Coroutine[Any, Any, None]:
        """``answer``, unless the request asks for a background response."""
        ...


class Proxied:
    """A path served by engines."""

    def __init__(
        self,
        endpoint: SurfaceEndpoint,
        pipeline: Pipeline,
        lifecycle: Lifecycle,
        later: "LaterAnswers | None" = None,
    ) -> None:
        """``later`` takes requests whose clients prefer so; None: all are answered at once."""
        self._later = later
        self._stores = endpoint.route == Route.RESPONSES and later is not None
        self.endpoint = endpoint
        self._methods = endpoint.methods
        self._pipeline = pipeline
        self._lifecycle = lifecycle

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Raises what is wrong with the path or the method at once; whoever awaits the rest gets it too."""
        exchange: HttpExchange = scope[EXCHANGE]
        if not exchange.set_endpoint(self.endpoint):
            raise not_found(exchange)
        head = exchange.head
        allowed = head.target.methods or self._methods
        if exchange.method not in allowed:
            raise wrong_method(exchange, allowed)
        if self._lifecycle.draining:
            self._lifecycle.check()
        asks_upgrade = head.upgrade is not None
        if self.endpoint.only_upgrades and not asks_upgrade:
            raise UpgradeRequired("Open a WebSocket here; there is nothing for other requests.")
        later = self._later
        if later is None or asks_upgrade:
            return self._pipeline.serve(exchange)
        takes = PREFER in exchange.fields and later.takes(exchange)
        answer = later(exchange) if takes else self._pipeline.serve(exchange)
        return later.in_background(exchange, answer) if self._stores else answer


class PartlyProxied(Proxied):
    """A path served by engines of which the gateway answers some reads itself."""

    def __init__(
        self,
        endpoint: SurfaceEndpoint,
        pipeline: Pipeline,
        lifecycle: Lifecycle,
        later: "LaterAnswers | None",
        page: "ReadPage",
        names: Callable[[str], Mapping[str, str] | None],
    ) -> None:
        """``page`` answers GET and HEAD at paths for which ``names`` gives the names in them; None: engines
        do."""
        super().__init__(endpoint, pipeline, lifecycle, later)
        self._page = page
        self._names = names

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """See :meth:`Proxied.__call__`."""
        if scope["method"] in ("GET", "HEAD") and (names := self._names(scope["path"])) is not None:
            scope["path_params"] = names
            return self._page(scope, receive, send)
        return super().__call__(scope, receive, send)


@dataclass(frozen=True)
class ReadPage:
    """A path that is only read: it takes GET and HEAD."""

    route: str
    """What logs and metrics call the path."""
    respond: Respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        exchange.route = self.route
        if exchange.method not in ("GET", "HEAD"):
            raise wrong_method(exchange, ("GET", "HEAD"))
        await self.respond(exchange, scope["path_params"])


@dataclass(frozen=True)
class KeyedPage:
    """A path for keys, which is no inference: the handlers of its methods."""

    route: str
    """What logs and metrics call the path."""
    keys: KeyAuthenticator
    translated: Callable[[], AbstractContextManager[None]]
    """Inside, what the store refuses becomes what the client reads."""
    methods: Mapping[str, KeyedHandler]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        exchange.route = self.route
        handler = self.methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            raise wrong_method(exchange, tuple(self.methods))
        principal = await exchange.identify(self.keys)
        with self.translated():
            await handler(exchange, principal, scope["path_params"].get("id", ""))


@dataclass(frozen=True)
class ModelsHandler:
    """``GET /v1/models``, ``GET /v1/models/{id}`` and, in Ollama's form, ``GET /api/tags``.

    The list holds what can be used now, or is loaded when it is asked for, whatever engine serves it, and no
    model beyond the key's scopes, as if there were none of that name. A single model is found as long as it
    was ever served; its ``ready`` says whether it can be used at once.
    """

    keys: KeyAuthenticator
    catalog: AliasCatalog
    describe: Callable[[ServedModel], Json]
    """Makes the form of one model."""
    list_of: Callable[[Sequence[Json]], Json]
    """Makes that of a list of such forms."""

    async def __call__(self, exchange: HttpExchange, names: Mapping[str, str]) -> None:
        principal = await exchange.identify(self.keys)
        name = names.get("id")
        shows = _everything if principal.scopes is None else principal.scopes.shows
        found = await self._list(shows) if name is None else self._one(name, shows)
        await exchange.reply.whole(200, JSON, orjson.dumps(found))

    async def _list(self, shows: Callable[[str], bool]) -> Json:
        every = in_slices(self.catalog.each_model())
        there = (info async for info in every if (info.ready or info.loadable) and shows(info.id))
        return self.list_of([self.describe(info) async for info in there])

    def _one(self, name: str, shows: Callable[[str], bool]) -> Json:
        info = self.catalog.model(check_model(name))
        if info is None or not shows(name):
            message = f"The model '{name}' is not served here. GET /v1/models lists those that are."
            raise ModelNotFound(message, param="model")
        return self.describe(info)


def _everything(model: str) -> bool:
    return True


def openai_model(info: ServedModel) -> Json:
    """A model as OpenAI's and Anthropic's SDKs both read it."""
    return {
        "id": info.id,
        "object": "model",
        "created": info.created_s,
        "owned_by": info.owned_by,
        "ready": info.ready,
        "type": "model",
        "display_name": info.id,
        "context_length": info.context_tokens,
        "max_input_tokens": info.context_tokens,
        "capabilities": info.capabilities,
        "routes": info.routes,
        "translated_routes": info.translated,
    }


def openai_models(found: Sequence[Json]) -> Json:
    """The list of models as OpenAI's and Anthropic's SDKs both read it."""
    first, last = (found[0]["id"], found[-1]["id"]) if found else (None, None)
    return {"object": "list", "data": found, "has_more": False, "first_id": first, "last_id": last}


def ollama_model(info: ServedModel) -> Json:
    """A model as Ollama describes it. Its files are not known here: sizes are 0, digests empty."""
    details = {"parent_model": "", "format": "", "family": "", "families": list[str]()}
    return {
        "name": info.id,
        "model": info.id,
        "modified_at": datetime.fromtimestamp(info.created_s, UTC).isoformat().replace("+00:00", "Z"),
        "size": 0,
        "digest": "",
        "details": {**details, "parameter_size": "", "quantization_level": ""},
    }


def ollama_models(found: Sequence[Json]) -> Json:
    return {"models": found}


async def liveness(exchange: HttpExchange, names: Mapping[str, str]) -> None:
    """``GET /healthz``: the process answers. Open to everybody."""
    await exchange.reply.whole(200, JSON, b'{"status":"ok"}')


def readiness(lifecycle: Lifecycle, catalog: AliasCatalog) -> Respond:
    """``GET /readyz``: requests are taken. Open to everybody.

    Without agents the gateway is ready all the same: it must be reachable for agents to dial in, and it
    answers clients with what is missing. The body says how many are connected, for whoever wants to wait for
    them.
    """

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        phase, agents = lifecycle.phase, catalog.agents_connected
        ready = phase is LifecyclePhase.SERVING
        body = orjson.dumps({"status": "ready" if ready else str(phase), "agents": agents})
        await exchange.reply.whole(200 if ready else 503, JSON, body)

    return respond


class Exposition(Protocol):
    """Of :class:`gateway.observability.metrics.Metrics`, of this process or of all workers."""

    CONTENT_TYPE: str
    exemplars: bool
    """There is one with exemplars, too, for who takes OpenMetrics."""

    async def render(self) -> bytes: ...
    async def render_exemplars(self) -> bytes: ...


_OPEN_METRICS = b"application/openmetrics-text"


def metrics_page(keys: KeyAuthenticator, metrics: Exposition, *, public: bool) -> Respond:
    """``GET /metrics``: for holders of a key.

    Any client key without scopes, or with a role, will do (Prometheus sends one with ``authorization``).
    Coming from loopback opens nothing: behind a TLS terminator on the same host everybody does. ``public``
    opens it on purpose.
    """

    async def respond(exchange: HttpExchange, names: Mapping[str, str]) -> None:
        principal = None if public else await exchange.identify(keys)
        if principal is not None and principal.scopes is not None and principal.role is None:
            raise Forbidden(
                "The metrics tell of all models and tenants; a key with limits of its own needs a role "
                "to read them (trunkline key create --role viewer).",
                code="role_required",
            )
        if metrics.exemplars and _OPEN_METRICS in exchange.fields.get(b"accept", b""):
            kind = _OPEN_METRICS + b"; version=1.0.0; charset=utf-8"
            await exchange.reply.whole(200, kind, await metrics.render_exemplars())
            return
        await exchange.reply.whole(200, metrics.CONTENT_TYPE.encode("ascii"), await metrics.render())

    return respond


class TunnelPage:
    """A plain request to ``/tunnel``; those that ask for a WebSocket never come here."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise UpgradeRequired("Agents open their WebSocket here; there is nothing for other clients.")


async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found(exchange_of(scope))


def not_found(exchange: HttpExchange) -> RouteNotFound:
    near = nearest(exchange.path)
    hint = f"Did you mean {near}?" if near else "GET /docs lists the paths there are."
    return RouteNotFound(f"There is nothing at {exchange.method} {exchange.raw_path[:PATH_CHARS]}. {hint}")


def wrong_method(exchange: HttpExchange, allowed: tuple[str, ...]) -> MethodNotAllowed:
    message = f"{exchange.raw_path[:PATH_CHARS]} takes {' or '.join(allowed)}, not {exchange.method}."
    return MethodNotAllowed(message, allowed)
