"""One record in the audit log for every finished request of somebody who is known."""

import time
from collections.abc import Callable

from gateway.api.exchange.exchange import HttpExchange
from gateway.domain.errors import EngineRefused, RequestError
from gateway.domain.quotas import Price
from gateway.observability.audit import RequestFacts

_UNRECORDED = frozenset({"health", "metrics", "models", "openapi"})
"""Nothing runs anywhere for these."""


class RequestAudit:
    """Puts together what is known of a request at its end. Costs the event loop a microsecond or two."""

    def __init__(
        self,
        add: Callable[[RequestFacts], None],
        price: Callable[[str], Price] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``price`` is a model's now."""
        self._add = add
        self._price = price
        self._wall = wall

    def __call__(
        self, exchange: HttpExchange, status: int, failure: RequestError | None, total_s: float
    ) -> None:
        who = exchange.principal
        if who is None or exchange.route in _UNRECORDED:
            return
        request, response, first_s = exchange.request, exchange.response, exchange.reply.first_byte_s
        trailers = response.trailers if response is not None else None
        self._add(
            RequestFacts(
                self._wall(),
                exchange.id,
                status,
                None if failure is None else _code(failure),
                who.key_id,
                who.tenant,
                exchange.route,
                request.model if request is not None else None,
                request.alias if request is not None else None,
                request.target if request is not None else "",
                response.version if response is not None else None,
                request.tier if request is not None else None,
                request.attempts if request is not None else (),
                request.troubles if request is not None else None,
                response.queue_s if response is not None else None,
                None if first_s is None else first_s - exchange.began_s,
                total_s,
                trailers.usage if trailers is not None else None,
                request.gpu_s if request is not None else 0.0,
                None if request is None or self._price is None else self._price(request.model),
            )
        )


def _code(failure: RequestError) -> str:
    """An engine's own may be anything, and is left out."""
    return EngineRefused.code if isinstance(failure, EngineRefused) else failure.code
