"""The outermost ASGI application: every request gets an id, an answer, one log line and one count."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from gateway.api.errors import internal_error
from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.exchange import HttpExchange, HttpSettings, put_exchange
from gateway.api.exchange.inbound import Receive
from gateway.api.exchange.reply import Send
from gateway.domain.errors import ClientGone, RequestError, StateUnavailable
from gateway.pipeline.bodies import BodyReader
from gateway.runtime.lifecycle import Lifecycle
from gateway.storage.errors import StateError

App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Observer = Callable[[HttpExchange, int, RequestError | None], None]
"""Called once for every finished exchange with its status (499 when the client left) and what went wrong."""

_log = structlog.get_logger("gateway.http")


class RequestMiddleware:
    """Wraps the router. The handlers behind it raise; only this turns what they raise into answers."""

    def __init__(
        self,
        router: App,
        settings: HttpSettings,
        budget: BufferBudget,
        lifecycle: Lifecycle,
        observe: Observer,
        reader: BodyReader | None = None,
    ) -> None:
        """``reader`` reads long JSON bodies; without one they are read on the event loop."""
        self._router = router
        self._settings = settings
        self._budget = budget
        self._lifecycle = lifecycle
        self._observe = observe
        self._reader = reader

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server handles lifespan and WebSockets itself"
        lifecycle = self._lifecycle
        exchange = HttpExchange(
            *(scope, receive, send, self._settings, self._budget),
            closing=lifecycle.draining,
            reader=self._reader,
        )
        put_exchange(scope, exchange)
        failure: RequestError | None = None
        lifecycle.enter()
        try:
            failure = await self._answer(exchange, scope, receive, send)
        finally:
            lifecycle.leave()
            status = failure.status if failure is not None else exchange.reply.status
            self._observe(exchange, status, failure)
            exchange.close()

    async def _answer(
        self, exchange: HttpExchange, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> RequestError | None:
        try:
            await self._router(scope, receive, send)
            return None
        except ClientGone as gone:
            return _without_history(gone)
        except RequestError as error:
            failure = error
        except StateError as error:
            _log.error("state_failed", id=exchange.id, error=str(error))
            failure = StateUnavailable("This gateway cannot check API keys just now; send the request again.")
        except Exception:
            _log.exception("request_failed", id=exchange.id, method=exchange.method)
            failure = internal_error(exchange.id)
        await exchange.reply.fail(failure)
        return _without_history(failure)


def _without_history(error: RequestError) -> RequestError:
    """Where it came from is known to frames that know the request, and they to it: all would stay until
    cycles are looked for."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
