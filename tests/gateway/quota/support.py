"""A surface in which a key and its tenant have limits, on a clock under the test's control."""

from dataclasses import replace

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.middleware import RequestMiddleware
from gateway.api.routes import build_router
from gateway.domain.errors import RequestError, Unauthenticated
from gateway.domain.quotas import Price, Rates, TenantLimits
from gateway.domain.request import Principal, Request
from gateway.pipeline.aliases import AliasResolver
from gateway.pipeline.pipeline import Pipeline
from gateway.quota import Limits, Spending
from gateway.quota.usage import UsageLedger
from gateway.storage.limits import LimitsAndPrices, LimitStore
from shared.protocol.messages import Trailers, Usage
from tests.gateway.api.support import KEY, FakeMetrics, FakeResponse, Surface, json_response

CHAT = "/v1/chat/completions"
MORNING_S = 1_795_219_200.0
"""2026-11-21, 00:00 UTC."""


class Source(LimitStore):
    """Limits and prices as the store has them."""

    def __init__(self) -> None:
        self.revision = 0
        self.terms = LimitsAndPrices({}, {})

    def changed_since(self, revision: int) -> tuple[int, LimitsAndPrices | None]:
        return self.revision, None if revision == self.revision else self.terms

    def set(self, tenant: TenantLimits | None = None, **prices: Price) -> None:
        self.revision += 1
        self.terms = LimitsAndPrices({} if tenant is None else {"acme": tenant}, prices)


class Keys:
    def __init__(self) -> None:
        self.principal = Principal("k1", "laptop", "acme")

    async def identify(self, presented: str) -> Principal:
        if presented != KEY:
            raise Unauthenticated("no such key")
        return self.principal


class Stage:
    """HTTP, pipeline, limits and ledger; the dispatcher does what the test says."""

    def __init__(self, rates: Rates | None = None, tenant: TenantLimits | None = None) -> None:
        self.now = 1000.0
        self.source, self.keys, self.surface = Source(), Keys(), Surface()
        self.dispatcher = self.surface.dispatcher
        self.source.set(tenant)
        self.keys.principal = replace(self.keys.principal, rates=rates)
        self.spending = Spending(MORNING_S)
        self.ledger = UsageLedger(self.wall, spending=self.spending)
        self.refusals: list[tuple[str, str]] = []
        self.finished: list[tuple[str, int]] = []
        """Model and status of each request, as the log has them."""
        self.limits = Limits(
            self.source,
            self.spending,
            self.bounds,
            lambda: self.now,
            self.wall,
            lambda model, code: self.refusals.append((model, code)),
        )
        self.ledger.price = self.limits.price
        self.name(None)

    def name(self, names: AliasResolver | None) -> None:
        """Look names up there from now on."""
        pipeline = Pipeline(self.keys, self.dispatcher.run, self.ledger, names, limits=self.limits)
        surface = self.surface
        router = build_router(
            pipeline, self.keys, surface.catalog, FakeMetrics(), surface.lifecycle, surface.settings
        )
        surface.app = RequestMiddleware(
            router, surface.settings, surface.budget, surface.lifecycle, self.note
        )

    def note(self, exchange: HttpExchange, status: int, error: RequestError | None) -> None:
        self.finished.append(("" if exchange.request is None else exchange.request.model, status))

    def wall(self) -> float:
        return MORNING_S + self.now - 1000.0

    def bounds(self, request: Request) -> tuple[int, int]:
        """Ten tokens of a prompt, and of an answer as many as are allowed, or 50."""
        return 10, 50 if request.most_tokens is None else request.most_tokens

    def answer(self, usage: Usage | None, status: int = 200) -> FakeResponse:
        """From now on, this, as an engine answers it."""

        async def serve(request: Request) -> FakeResponse:
            request.attempts.append("gpu/1")
            response = json_response(status=status)
            response.trailers = Trailers(usage=usage)
            return response

        self.dispatcher.serve = serve
        return json_response()

    def left(self) -> tuple[int | None, int | None]:
        """Requests and tokens that the key has left."""
        guard = self.limits.guard(self.keys.principal)
        assert guard is not None
        told = {name: int(value) for name, value in guard.headers() if b"remaining" in name}
        return told.get(b"x-ratelimit-remaining-requests"), told.get(b"x-ratelimit-remaining-tokens")
