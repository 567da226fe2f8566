"""A request's way through the gateway: the order of the stages, and nothing else (ARCHITECTURE)."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from gateway.domain.request import Principal, Request
from gateway.pipeline.aliases import AliasResolution
from gateway.pipeline.cache import Reuse, Use
from gateway.pipeline.classify import classify
from gateway.pipeline.client_body import ClientBody
from gateway.pipeline.client_head import ClientHead
from gateway.pipeline.relay import ClientReply, HeaderList, Response, relay
from gateway.quota import Guard, Held, Limits, unreported_usage
from shared.protocol.messages import Usage


class KeyAuthenticator(Protocol):
    """Who holds a key; :class:`gateway.auth.keys.KeyRing`."""

    async def identify(self, presented: str) -> Principal: ...


class RequestDispatcher(Protocol):
    """Admission, queue, scheduler, dispatch; :class:`gateway.dispatch.dispatcher.Dispatcher`."""

    async def run(self, request: Request) -> Response: ...


class AliasResolver(Protocol):
    """What names stand for; :class:`gateway.pipeline.aliases.Versions`."""

    def way(self, fields: Mapping[bytes, bytes], request: Request) -> AliasResolution | None: ...


class ClientExchange(Protocol):
    """One client's request and answer; :class:`gateway.api.exchange.exchange.HttpExchange`."""

    @property
    def head(self) -> ClientHead: ...
    @property
    def reply(self) -> ClientReply: ...
    def credential(self) -> str: ...
    def identified(self, principal: Principal) -> None: ...
    def limited(self, headers: Callable[[], HeaderList]) -> None: ...
    async def body(self) -> ClientBody: ...
    def asked(self, request: Request) -> None: ...
    def waiting(self, request: Request) -> AbstractAsyncContextManager[object]: ...
    def answered(self, request: Request, response: Response) -> None: ...


class UsageRecorder(Protocol):
    """Who used what; :class:`gateway.quota.usage.UsageLedger`."""

    def finished(self, request: Request, usage: Usage | None) -> None: ...


class Pipeline:
    """Takes exchanges, raises :class:`gateway.domain.errors.RequestError`."""

    def __init__(
        self,
        keys: KeyAuthenticator,
        dispatcher: RequestDispatcher,
        accounts: UsageRecorder | None = None,
        names: AliasResolver | None = None,
        reuse: Reuse | None = None,
        limits: Limits | None = None,
        *,
        facts: bool = True,
        gate: Callable[[], None] | None = None,
        knows: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """``gate`` raises while nobody is to be served; ``knows`` says whether there is a model or an alias
        of a name."""
        self._keys = keys
        self._dispatcher = dispatcher
        self._accounts = accounts
        self._names = names
        self._reuse = reuse
        self._limits = limits
        self._facts = facts
        self._gate = gate
        self._knows = knows

    async def __call__(self, exchange: ClientExchange) -> None:
        # who
        principal = await self._keys.identify(exchange.credential())
        exchange.identified(principal)
        if self._gate is not None:
            self._gate()
        guard = self._limits.guard(principal) if self._limits is not None else None
        if guard is None:
            await self._take(exchange, principal, None)
        else:
            exchange.limited(guard.headers)
            with guard:  # it counts as one of its key's from here on, however slowly its body comes
                await self._take(exchange, principal, guard)

    async def _take(self, exchange: ClientExchange, principal: Principal, guard: Guard | None) -> None:
        # what, and how dear
        body = await exchange.body()
        request = classify(exchange.head, body, principal, self._knows)
        exchange.asked(request)

        # which model and version the name stands for, and what may answer instead
        way = self._names.way(exchange.head.fields, request) if self._names is not None else None

        # an answer may be there already
        reuse = self._reuse
        use = reuse.use(exchange.head, body) if reuse is not None and reuse.on else None

        # what it may use is set aside, and what it did not use given back
        if guard is None:
            await self._answer(exchange, request, way, use, None)
        else:
            with guard.reserve(request, self._accounts) as held:
                await self._answer(exchange, request, way, use, held)

    async def _answer(
        self,
        exchange: ClientExchange,
        request: Request,
        way: AliasResolution | None,
        use: Use | None,
        held: Held | None,
    ) -> None:
        # from here on a client that leaves takes its request along, and one that waits hears from us
        async with exchange.waiting(request):
            # now, later or no; where; there
            run = self._dispatcher.run if use is None else use.around(self._dispatcher.run)
            if way is None:
                response, more = await run(request), HeaderList()
            else:
                try:
                    response = await way.run(run)
                finally:  # on whose account, if its client leaves: whoever was asked last
                    request = way.request
                    exchange.asked(request)
                    if held is not None:
                        held.set_request(request)
                more = way.headers(response, facts=self._facts)
            if use is not None:
                more = [*more, *use.headers()]
            exchange.answered(request, response)

            # and back, on whose account
            try:
                target = exchange.head.target
                await relay(response, exchange.reply, facts=self._facts, more=more, target=target)
            finally:
                usage = response.trailers.usage if response.trailers is not None else None
                if held is not None:
                    usage = held.used(request, usage, response.status, response.attempts, response.headers)
                elif usage is None and response.trailers is not None:
                    usage = unreported_usage(request, response.status, response.attempts)
                if self._accounts is not None:
                    self._accounts.finished(request, usage)
