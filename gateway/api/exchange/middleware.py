"""The outermost ASGI applications: every request gets an id, an answer, one log line and one count.

Where proxies are trusted or web pages let in, :class:`OriginMiddleware` settles what follows from that before
a request is routed.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import structlog

from gateway.api.errors import internal_error
from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.exchange import HttpExchange, HttpSettings, exchange_of
from gateway.api.exchange.inbound import Receive
from gateway.api.exchange.reply import Send
from gateway.api.server.client_addresses import PerAddressLimiter
from gateway.domain.errors import (
    BadRequest,
    BuffersFull,
    ClientGone,
    Forbidden,
    RequestError,
    StateUnavailable,
)
from gateway.pipeline.bodies.reader import BodyReader
from gateway.runtime.lifecycle import Lifecycle
from gateway.storage.errors import BadValue, ObjectStorageError, StateError

App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_OPEN = frozenset(("/healthz", "/readyz"))
"""Asked by load balancers themselves, over plain HTTP."""

_NO_PAGES = ("/admin/", "/cluster/")
"""Below them web pages are not let in, whatever their origin."""


def with_origin_checks(router: App, settings: HttpSettings) -> App:
    """``router``, behind an :class:`OriginMiddleware` if anything needs one."""
    return (
        router if settings.proxies is None and settings.cors is None else OriginMiddleware(router, settings)
    )


class OriginMiddleware:
    """An ASGI application around the router. Raises Forbidden, BuffersFull."""

    def __init__(self, router: App, settings: HttpSettings) -> None:
        self._router = router
        self._settings = settings
        self._places = (
            PerAddressLimiter() if settings.proxies is None else PerAddressLimiter(settings.requests_per_ip)
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        exchange, cors = exchange_of(scope), self._settings.cors
        if cors is not None and not exchange.path.startswith(_NO_PAGES):
            answer = cors.preflight(exchange.method, exchange.fields)
            if answer is not None:
                exchange.route = "preflight"
                await exchange.reply.start(204, answer)
                await exchange.reply.end()
                return
        self._check_scheme(exchange)
        group = self._take_place(exchange)
        try:
            await self._router(scope, receive, send)
        finally:
            self._places.leave(group)

    def _check_scheme(self, exchange: HttpExchange) -> None:
        plain = exchange.scheme == "http" and exchange.path not in _OPEN
        if self._settings.refuse_plain and plain:
            raise Forbidden(
                "This request came to the proxy in front over plain HTTP, so others may have read its key: "
                "make a new one, and use https.",
                code="https_required",
            )

    def _take_place(self, exchange: HttpExchange) -> str:
        """For those that proxies speak for; others are counted by their connections."""
        address = exchange.address
        group = "" if address == exchange.peer else self._places.group(address)
        if not self._places.take(group):
            message = "Your address has as many requests running here as it may; wait for some to end."
            raise BuffersFull(message, code="too_many_connections")
        return group


Observer = Callable[[HttpExchange, int, RequestError | None], None]
"""Called once for every finished exchange with its status (499 when the client left) and what went wrong."""

_log = structlog.get_logger("gateway.http")


@dataclass(frozen=True)
class RequestMiddleware:
    """Wraps the router. The handlers behind it raise; only this turns what they raise into answers."""

    router: App
    settings: HttpSettings
    budget: BufferBudget
    lifecycle: Lifecycle
    observe: Observer
    reader: BodyReader | None = None
    """Reads long JSON bodies; without one they are read on the event loop."""
    begin_trace: Callable[[HttpExchange], None] | None = None
    """Gives a request its trace; None: nothing is traced."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server handles lifespan and WebSockets itself"
        lifecycle = self.lifecycle
        closing = lifecycle.draining
        exchange = HttpExchange(scope, receive, send, self.settings, self.budget, closing, self.reader)
        if self.begin_trace is not None:
            self.begin_trace(exchange)
        failure: RequestError | None = None
        lifecycle.enter()
        try:
            await self.router(scope, receive, send)
        except Exception as error:
            failure = await self._failed(exchange, error)
        finally:
            lifecycle.leave()
            exchange.ended_s = monotonic()
            status = failure.status if failure is not None else exchange.reply.status
            exchange.close()
            self.observe(exchange, status, failure)

    async def _failed(self, exchange: HttpExchange, error: Exception) -> RequestError:
        """Answer with what went wrong."""
        if isinstance(error, ClientGone):
            return _without_history(error)
        if isinstance(error, RequestError):
            failure = error
        elif isinstance(error, StateError):
            _log.error("state_failed", id=exchange.id, error=str(error))
            failure = StateUnavailable(_UNAVAILABLE[isinstance(error, ObjectStorageError)])
        elif isinstance(error, BadValue):
            failure = BadRequest(
                "A text in this request cannot be stored; it may hold a NUL.", code="invalid_value"
            )
        else:
            _log.error("request_failed", id=exchange.id, method=exchange.method, exc_info=error)
            failure = internal_error(exchange.id)
        await exchange.reply.fail(failure)
        return _without_history(failure)


_UNAVAILABLE = {
    False: "This gateway cannot check API keys just now; send the request again.",
    True: "This gateway cannot reach its object store just now; send the request again.",
}
"""Whether it is the place of files and results that fails."""


def _without_history(error: RequestError) -> RequestError:
    """Its traceback and the frames of the request refer to each other, so without this they would stay until
    the next search for cycles."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
