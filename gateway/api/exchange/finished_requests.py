"""Requests that end in one turn of the event loop are recorded together, behind it.

No client waits for its line in the log, its counts and its records. What these need is in the processor's
caches from the second request on, where each would push out what answers need.
"""

from collections.abc import Callable

import structlog

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.middleware import Observer
from gateway.domain.errors import RequestError

_log = structlog.get_logger("gateway.http")


class FinishedRequests:
    """An observer for :class:`gateway.api.exchange.middleware.RequestMiddleware` that tells another one
    later. Belongs to the event loop's thread."""

    def __init__(self, observe: Observer, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """``call_soon`` has something called once this turn of the event loop is over."""
        self._observe = observe
        self._call_soon = call_soon
        self._finished: list[tuple[HttpExchange, int, RequestError | None]] = []

    def __call__(self, exchange: HttpExchange, status: int, failure: RequestError | None) -> None:
        """Note that it is over, with its status (499 when the client left) and what went wrong."""
        if not self._finished:
            self._call_soon(self._tell)
        self._finished.append((exchange, status, failure))

    def _tell(self) -> None:
        finished, self._finished = self._finished, []
        for exchange, status, failure in finished:
            try:
                self._observe(exchange, status, failure)
            except Exception as error:  # the others are to be recorded all the same
                _log.error("request_not_recorded", id=exchange.id, exc_info=error)
