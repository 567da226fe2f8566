"""A request's way through the gateway: the order of the stages, and nothing else."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from gateway.domain.request import Principal, Request
from gateway.pipeline.aliases import VERSION, AliasResolution, AliasResolver
from gateway.pipeline.cache import CacheLookup, CacheStage
from gateway.pipeline.classify import OnlyModel, classify
from gateway.pipeline.client_body import ClientBody
from gateway.pipeline.client_head import ClientHead
from gateway.pipeline.relay import ClientReply, HeaderList, Response, Run, relay
from gateway.pipeline.upgraded_relay import UpgradingReply, relay_upgraded
from gateway.quota import Limits, ReservedUsage, unreported_usage
from gateway.quota.usage import UsageLedger
from shared.protocol.messages import UPGRADED


class KeyAuthenticator(Protocol):
    """Who holds a key; :class:`gateway.auth.keys.KeyRing`."""

    async def identify(self, presented: str) -> Principal: ...


class ClientExchange(Protocol):
    """One client's request and answer; :class:`gateway.api.exchange.exchange.HttpExchange`."""

    @property
    def head(self) -> ClientHead: ...
    @property
    def reply(self) -> ClientReply: ...
    @property
    def upgrading(self) -> UpgradingReply | None:
        """Gives a client its WebSocket that asked for one."""

    def credential(self) -> str: ...
    def set_principal(self, principal: Principal) -> None: ...
    def set_limit_headers(self, headers: Callable[[], HeaderList]) -> None: ...
    async def body(self) -> ClientBody: ...
    def set_request(self, request: Request) -> None: ...
    def waiting(self, request: Request) -> AbstractContextManager[object]: ...
    def set_response(self, request: Request, response: Response) -> None: ...


class Pipeline:
    """Takes exchanges, raises :class:`gateway.domain.errors.RequestError`."""

    def __init__(
        self,
        keys: KeyAuthenticator,
        dispatch: Run,
        ledger: UsageLedger | None = None,
        aliases: AliasResolver | None = None,
        cache: CacheStage | None = None,
        limits: Limits | None = None,
        *,
        facts: bool = True,
        gate: Callable[[], None] | None = None,
        knows: Callable[[str], bool] = lambda name: False,
        only: OnlyModel = lambda route, shows: None,
    ) -> None:
        """``dispatch`` has a request answered by an engine; ``facts``: answers say what answered; ``gate``
        raises while nobody is to be served; ``knows`` and ``only`` are as in
        :func:`gateway.pipeline.classify.classify`."""
        self._keys = keys
        self._dispatch = dispatch
        self._ledger = ledger
        self._aliases = aliases
        self._cache = cache
        self._limits = limits
        self._leases = None if limits is None else limits.shared
        self._facts = facts
        self._gate = gate
        self._knows = knows
        self._only = only

    async def serve(self, exchange: ClientExchange) -> None:
        # who
        principal = await self._keys.identify(exchange.credential())
        exchange.set_principal(principal)
        if self._gate is not None:
            self._gate()
        guard = self._limits.guard(principal) if self._limits is not None else None
        if guard is None:
            request, alias, lookup = self._classify(exchange, await exchange.body(), principal)
            await self._answer(exchange, request, alias, lookup, None)
            return
        exchange.set_limit_headers(guard.headers)
        leases = self._leases
        if leases is not None and (lacking := guard.lacking()):
            await leases.obtain(lacking)
        with guard:  # it counts as one of its key's from here on, however slowly its body comes
            request, alias, lookup = self._classify(exchange, await exchange.body(), principal)

            # other gateways have the same limits: what is not leased here yet is asked for
            if leases is not None and (lacking := guard.lacking(request)):
                await leases.obtain(lacking)

            # what it may use is set aside, and what it did not use given back
            with guard.reserve(request, self._ledger) as reserved:
                await self._answer(exchange, request, alias, lookup, reserved)

    def _classify(
        self, exchange: ClientExchange, body: ClientBody, principal: Principal
    ) -> tuple[Request, AliasResolution | None, CacheLookup | None]:
        # what, and how dear
        head = exchange.head
        request = classify(head, body, principal, self._knows, self._only)
        exchange.set_request(request)

        # which model and version the name stands for, and what may answer instead
        alias, aliases = None, self._aliases
        if aliases is not None and (request.model in aliases.aliases.choices or VERSION in head.fields):
            alias = aliases.resolve(head.fields, request)

        # an answer may be there already
        cache = self._cache
        lookup = cache.lookup(head, body) if cache is not None and cache.on else None
        return request, alias, lookup

    async def _answer(
        self,
        exchange: ClientExchange,
        request: Request,
        alias: AliasResolution | None,
        lookup: CacheLookup | None,
        reserved: ReservedUsage | None,
    ) -> None:
        # from here on a client that leaves takes its request along, and one that waits hears from us
        reply = exchange.reply
        try:
            with exchange.waiting(request):
                # now, later or no; where; there
                run = self._dispatch if lookup is None else partial(lookup.run, run=self._dispatch)
                headers: HeaderList = []
                if alias is None:
                    response = await run(request)
                else:
                    try:
                        response = await alias.run(run)
                    finally:  # on whose account, if its client leaves: whoever was asked last
                        request = alias.request
                        exchange.set_request(request)
                        if reserved is not None:
                            reserved.set_request(request)
                    headers += alias.headers(response, facts=self._facts)
                if lookup is not None:
                    headers += lookup.headers()
                exchange.set_response(request, response)

                # and back, on whose account
                try:
                    target = exchange.head.target
                    if response.status == UPGRADED and (upgrading := exchange.upgrading) is not None:
                        await relay_upgraded(response, upgrading, facts=self._facts, more=headers)
                    else:
                        await relay(response, reply, self._facts, headers, target)
                finally:
                    self._settle(request, response, reserved)
        finally:
            if reply.tells_waiting:
                await reply.end_waiting()

    def _settle(self, request: Request, response: Response, reserved: ReservedUsage | None) -> None:
        """Account for what was used, as far as the engine says it, or estimate it."""
        if request.counted_later is not None and request.counted_later():
            return
        trailers = response.trailers
        usage = trailers.usage if trailers is not None else None
        if reserved is not None:
            usage = reserved.used(request, usage, response.status, response.attempts, response.headers)
        elif usage is None and trailers is not None:
            usage = unreported_usage(request, response.status, response.attempts)
        if self._ledger is not None:
            self._ledger.finished(request, usage)
