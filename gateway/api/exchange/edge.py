"""What is settled before a request is routed, where proxies are trusted or web pages let in."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.api.exchange.exchange import HttpExchange, HttpSettings, exchange_of
from gateway.api.exchange.inbound import Receive
from gateway.api.exchange.reply import Send
from gateway.api.server.per_address_limiter import PerAddressLimiter
from gateway.domain.errors import BuffersFull, Forbidden

App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_OPEN = frozenset(("/healthz", "/readyz"))
"""Asked by load balancers themselves, over plain HTTP."""

_NO_PAGES = "/admin/"
"""Below it web pages are not let in, whatever their origin."""


def edge(router: App, settings: HttpSettings) -> App:
    """``router``, behind an :class:`Edge` if anything needs one."""
    return router if settings.proxies is None and settings.cors is None else Edge(router, settings)


class Edge:
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
        plain = exchange.origin.scheme == "http" and exchange.path not in _OPEN
        if self._settings.refuse_plain and plain:
            raise Forbidden(
                "This request came to the proxy in front over plain HTTP, so others may have read its key: "
                "make a new one, and use https.",
                code="https_required",
            )

    def _take_place(self, exchange: HttpExchange) -> str:
        """For those that proxies speak for; others are counted by their connections."""
        address = exchange.origin.address
        group = "" if address == exchange.peer else self._places.group(address)
        if not self._places.take(group):
            message = "Your address has as many requests running here as it may; wait for some to end."
            raise BuffersFull(message, code="too_many_connections")
        return group
