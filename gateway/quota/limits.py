"""The stage that reserves from a request's limits and budgets what it may use, before it is admitted.

**What is reserved.** The estimated tokens of its prompt and the tokens of its answer. For the answer these
are as many as the request allows (``max_tokens`` and what else engines read, :mod:`gateway.quota.tokens`),
and where it does not say, what nine of ten unlimited answers of this model to this tenant stayed within; the
model's context while too few of them are known. When the answer is over, the reservation is replaced by what
the engine counted or, if it did not count, by what was seen of the answer.

**What is guaranteed.** Requests let in within any 60 s never have more tokens together than the limit,
however many run at once, as long as none uses more than was reserved for it. A request that does (its prompt
had more tokens than its size suggested, or it set no ``max_tokens``) is not cut short. The excess becomes
debt, which is taken from the following minutes before further requests are let in. So the mean never exceeds
the limit, and one minute exceeds it at most by what running requests used beyond their reservations.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.domain.errors import DeadlineExceeded, Forbidden, QuotaExceeded, RateLimited, RequestError
from gateway.domain.quotas import FREE, Price, TenantLimits
from gateway.domain.request import Principal, Request
from gateway.domain.surface import ENGINE
from gateway.observability.gauges import BudgetFigures
from gateway.quota.headers import HeaderList, limit_headers
from gateway.quota.lease_client import LeaseClient
from gateway.quota.limit_state import (
    RATES,
    Limit,
    LimitRefusal,
    LimitState,
    Reservation,
    affordable,
    longest,
    reserve,
    tokens_that_fit,
)
from gateway.quota.shared_state import Lacking, SharedLimitState, SharedParts
from gateway.quota.spending import Amounts, Spending
from gateway.quota.tokens import EVENTS, tokens_seen
from gateway.quota.usage import UsageLedger
from gateway.storage.limits import OTHER_MODELS, LimitsAndPrices, LimitStore
from shared.protocol.messages import Headers, Usage, UsageMode

MOST_IDLE = 4096
"""Keys in memory, at least, before those that hold nothing are looked for and forgotten."""

MOST_MODELS = 4096
GPU_WEIGHT = 0.05
"""Weight of the latest request in the mean GPU time of a token."""


class Limits:
    """Limits of keys and tenants, as fresh as the store is. Belongs to the event loop's thread."""

    def __init__(
        self,
        source: LimitStore,
        spending: Spending,
        bounds: Callable[[Request], tuple[int, int]],
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        refused: Callable[[str, str], None] = lambda model, code: None,
        shared: LeaseClient | None = None,
    ) -> None:
        """``bounds`` says how many tokens a request's prompt and its answer may have; ``clock`` is the event
        loop's, ``wall`` gives Unix time; ``refused`` is told model and code of each refusal.
        ``shared`` leases parts of limits that other gateways have too. Reads everything.
        Raises StateError."""
        self.spending = spending
        self.bounds = bounds
        self.clock = clock
        self.wall = wall
        self.refused = refused
        self.shared = shared
        self._parts = None if shared is None else SharedParts(shared.link, clock, wall, spending)
        self._source = source
        self._revision = -1
        self._terms = LimitsAndPrices({}, {})
        self._keys: dict[str, LimitState] = {}
        self._tenants: dict[str, LimitState] = {}
        self._most_keys = MOST_IDLE
        self._gpu_per_token: dict[str, float] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when limits or prices have changed."""
        self.refresh()

    # --- What there is ---

    def refresh(self) -> None:
        """Read limits and prices again if any has changed, in this thread. Raises StateError, and nothing has
        changed then."""
        self.read()()

    def read(self) -> Callable[[], None]:
        """Read limits and prices again if any has changed, in any thread; what is called, on the event loop,
        takes them up. Raises StateError."""
        revision, terms = self._source.changed_since(self._revision)
        return (lambda: None) if terms is None else (lambda: self._take(revision, terms))

    def _take(self, revision: int, terms: LimitsAndPrices) -> None:
        self._revision, self._terms = revision, terms
        limited = {name: each for name, each in terms.tenants.items() if each.rates or each.budgets}
        for name, holder in list(self._tenants.items()):
            if name not in limited:
                holder.limit(TenantLimits().rates)
                if holder.idle:
                    del self._tenants[name]
        for name, limits in limited.items():
            holder = self._tenants.get(name) or self._state(f"tenant {name!r}", name, f"tenant:{name}")
            self._tenants[name] = holder
            holder.limit(limits.rates, limits.budgets)
        self.changed()

    @property
    def weights(self) -> Mapping[str, float]:
        """Of the tenants that were given one."""
        return {name: each.weight for name, each in self._terms.tenants.items() if each.weight is not None}

    @property
    def queue_shares(self) -> Mapping[str, float]:
        """Of the tenants that were given one."""
        tenants = self._terms.tenants.items()
        return {name: each.queue_share for name, each in tenants if each.queue_share is not None}

    def budget_figures(self) -> Iterator[BudgetFigures]:
        """How far the budgets of tenants are used up, as far as this process knows."""
        wall_s = self.wall()
        for name, limits in self._terms.tenants.items():
            if limits.budgets:
                for period, spent in zip(("day", "month"), self.spending.of(name, wall_s), strict=True):
                    shares = limits.budgets.shares_used(period, spent.tokens, spent.gpu_s, spent.money)
                    if shares:
                        yield BudgetFigures(name, period, max(shares))

    def price(self, model: str) -> Price:
        """The current price of ``model``."""
        prices = self._terms.prices
        if not prices:
            return FREE
        return prices.get(model) or prices.get(OTHER_MODELS) or FREE

    # --- For the request path ---

    def guard(self, principal: Principal) -> "Guard | None":
        """The limits for requests of ``principal``; None: it has none."""
        if principal.rates is None and not self._tenants:
            return None
        holders = self.holders(principal, new=True)
        return Guard(self, holders) if holders else None

    def holders(self, principal: Principal, *, new: bool) -> tuple[LimitState, ...]:
        """Who answers for what ``principal`` asks now. To be asked again after anything was awaited, for one
        of which nothing counted may have been forgotten; ``principal`` is ``new`` only before that, and its
        rates are then the key's."""
        tenant = self._tenants.get(principal.tenant) if self._tenants else None
        if principal.rates is None:
            return () if tenant is None else (tenant,)
        key = self._keys.get(principal.key_id)
        if key is None or (new and key.rates is not principal.rates):
            key = self._limited(principal, key)
        return (key,) if tenant is None else (key, tenant)

    def need(self, request: Request, holders: tuple[LimitState, ...]) -> Amounts:
        """What to reserve for ``request``."""
        input_tokens, output_tokens = self.bounds(request)
        tokens, guessed = input_tokens + output_tokens, request.most_tokens is None
        if guessed:
            tokens = tokens_that_fit(holders, tokens, input_tokens)
        for holder in holders:
            if holder.budgets:
                break
        else:
            return Amounts(tokens)
        price = self.price(request.model)
        gpu_s = tokens * self._gpu_per_token.get(request.model, 0.0)
        money = price.of_tokens(input_tokens, tokens - input_tokens) + gpu_s * price.gpu_second
        need = Amounts(tokens, gpu_s, money)
        return affordable(need, holders, input_tokens, self.spending, self.wall()) if guessed else need

    def refusal_error(self, refusal: LimitRefusal, model: str) -> RequestError:
        """What the client is told, which is counted."""
        error = refusal_error(refusal)
        self.refused(model, error.code)
        return error

    def learn(self, request: Request, tokens: int) -> None:
        """``request`` is over and took so many tokens."""
        if not (tokens and request.gpu_s):
            return
        known, model, now = self._gpu_per_token, request.model, request.gpu_s / tokens
        if model in known:
            known[model] += GPU_WEIGHT * (now - known[model])
        elif len(known) < MOST_MODELS:
            known[model] = now

    def _limited(self, principal: Principal, key: LimitState | None) -> LimitState:
        """The key's holder, made or brought up to date."""
        assert principal.rates is not None
        if key is None:
            if len(self._keys) >= self._most_keys:
                now = self.clock()
                for holder in self._keys.values():
                    holder.advance(now)
                self._keys = {name: each for name, each in self._keys.items() if not each.idle}
                self._most_keys = max(MOST_IDLE, 2 * len(self._keys))
            key = self._state(f"API key {principal.key_name!r}", "", f"key:{principal.key_id}")
            self._keys[principal.key_id] = key
        key.limit(principal.rates)
        return key

    def _state(self, whose: str, tenant: str, scope: str) -> LimitState:
        """New; ``scope`` names it in all gateways."""
        if self._parts is None:
            return LimitState(whose, tenant)
        return SharedLimitState(whose, tenant, scope, self._parts)


@dataclass(slots=True, eq=False)
class Guard:
    """One request's: what its key and its tenant may have.

    A context manager around all of the request, its body included: from its head on it counts as one of those
    that they may have at once. Entering it raises RateLimited where these are too many.
    """

    _limits: Limits
    _holders: tuple[LimitState, ...]
    _arrived: tuple[LimitState, ...] = ()

    def lacking(self, request: Request | None = None) -> Lacking:
        """What is to be leased, where limits are shared, before this is entered or, with ``request``, before
        it reserves."""
        limits, now = self._limits, self._limits.clock()
        if request is None:
            return _flat(each.lacking_arrival(now) for each in _shared(self._holders))
        holders = limits.holders(request.principal, new=False)
        need = limits.need(request, holders)
        return _flat(each.lacking(need, now) for each in _shared(holders))

    def __enter__(self) -> "Guard":
        found = [refusal for holder in self._holders if (refusal := holder.concurrency_refusal()) is not None]
        if found:
            raise self._limits.refusal_error(longest(found), "")
        self._arrived = self._holders
        for holder in self._arrived:
            holder.arriving += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._admitted()

    def _admitted(self) -> None:
        """It is no longer on its way, whatever became of it."""
        arrived, self._arrived = self._arrived, ()
        for holder in arrived:
            holder.arriving -= 1

    def headers(self) -> HeaderList:
        """What is left at this moment."""
        return limit_headers(self._holders, self._limits.clock())

    def reserve(self, request: Request, accounts: UsageLedger | None = None) -> "ReservedUsage":
        """Set aside what ``request`` may use. Raises RateLimited and QuotaExceeded, and Forbidden for an
        engine's own path where the key's routes do not name such; nothing is then.

        Use it as a context manager around all that is done for the request; what it is found to have
        used without an engine having counted it is told to ``accounts``."""
        limits = self._limits
        self._admitted()
        self._holders = limits.holders(request.principal, new=False)
        if request.route == ENGINE.route:
            _check_named(request.principal, self._holders)
        need = limits.need(request, self._holders)
        outcome = reserve(self._holders, need, limits.clock(), limits.spending, limits.wall())
        if isinstance(outcome, LimitRefusal):
            raise limits.refusal_error(outcome, request.model)
        return ReservedUsage(limits, request, outcome, accounts)


@dataclass(slots=True, eq=False)
class ReservedUsage:
    """What is set aside for one request, until it is over."""

    _limits: Limits
    _request: Request
    _reservation: Reservation
    _accounts: UsageLedger | None
    _usage: Usage | None = None

    def set_request(self, request: Request) -> None:
        """``request`` is the one that is made of it: another than at first after a fallback."""
        self._request = request

    def used(
        self, request: Request, usage: Usage | None, status: int, attempts: int, headers: Headers = ()
    ) -> Usage | None:
        """What ``request``, the one that was answered, used: as its engine counted it, or else what it
        must have been, by an answer with ``headers``. Nothing where no engine was asked, or it refused."""
        self._request = request
        if usage is None and attempts and status < 400:
            content_type = next((value for name, value in headers if name == "content-type"), "")
            usage = estimated_usage(request, content_type)
        self._usage = usage or Usage(0, 0)
        return usage

    def __enter__(self) -> "ReservedUsage":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        request, usage, now = self._request, self._usage, self._limits.clock()
        counts = usage is not None
        if usage is None and request.was_worked_on and not _not_its_own(error, request, now):
            usage, counts = estimated_usage(request), True  # its client did not wait until anything was said
            if self._accounts is not None:
                self._accounts.finished(request, usage)
        tokens = 0 if usage is None else max(0, usage.prompt_tokens) + max(0, usage.completion_tokens)
        self._reservation.settle(tokens, now, counts=counts)
        self._limits.learn(request, tokens)


def estimated_usage(request: Request, content_type: str | None = None) -> Usage:
    """What ``request`` used of an engine that did not count: of a stream each event is taken for a token;
    of an answer in one piece nothing is seen, and it is taken to have come as far as was expected. At an
    engine's own path an answer of that ``content_type`` counts as it came; but not one that was only fetched.
    """
    if request.route == ENGINE.route and content_type is not None:
        seen = tokens_seen(content_type, request.seen_tokens, request.seen_bytes)
        fetched = not request.output_tokens and not content_type.startswith(EVENTS)
        return Usage(request.input_tokens, 0 if fetched else seen)
    output_tokens = request.seen_tokens if request.streaming else request.output_tokens
    return Usage(request.input_tokens, output_tokens)


def unreported_usage(request: Request, status: int, attempts: int) -> Usage | None:
    """What ``request`` used of an engine that was to tell it at its stream's end, and did not; None where
    none was asked to tell, and the answer counts as a request."""
    asked = request.usage is not UsageMode.NONE and status == 200 and attempts > 0
    return estimated_usage(request) if asked else None


def _shared(holders: tuple[LimitState, ...]) -> Iterator[SharedLimitState]:
    return (each for each in holders if isinstance(each, SharedLimitState))


def _flat(found: Iterable[Lacking]) -> Lacking:
    return [each for lacking in found for each in lacking]


def _check_named(principal: Principal, holders: tuple[LimitState, ...]) -> None:
    """Raises Forbidden for one held to tokens whose routes do not name engines' own paths."""
    scopes = principal.scopes
    named = scopes is not None and scopes.routes is not None and ENGINE.route in scopes.routes
    whose = [holder.whose for holder in holders if holder.counts_tokens]
    if whose and not named:
        raise Forbidden(
            f"{whose[0]} is limited in tokens, so this key may use /engines/… only when its routes name "
            f"{ENGINE.route!r} (trunkline key set NAME --routes any,chat,…): not every engine counts there.",
            code="route_not_allowed",
        )


def refusal_error(refusal: LimitRefusal) -> RequestError:
    """What the client is told."""
    limit, whose = refusal.limit, refusal.whose
    figures, share = f"{limit} of {whose}: limit {refusal.most:,.10g}", refusal.share
    if limit not in RATES:
        up_to = f"used {refusal.used:,.10g}, this request up to {refusal.needed:,.10g}."
        message = f"Over the budget of {figures}, {up_to}"
        if share is not None:
            message = (
                "What all gateways have spent of a budget cannot be looked up just now, and this one has "
                f"only {share:,.10g} left of its part of {figures}, {up_to}"
            )
        return QuotaExceeded(message, retry_after_s=refusal.wait_s, passing=refusal.passing)
    if share is not None:
        figures += f" (of which this gateway has {share:,.10g} while gateways cannot share it)"
    figures += f", used {refusal.used:,.10g}"
    kind = "tokens" if limit is Limit.TOKENS else "requests"
    if refusal.wait_s is None:
        message = (
            f"Request too large for the {limit} of {whose}: limit {refusal.most:,.10g}, requested "
            f"{refusal.needed:,.10g}. Shorten the prompt or lower max_tokens."
        )
        return RateLimited(message, kind=kind, should_retry=False)
    message = f"Rate limit reached: {figures}, requested {refusal.needed:,.10g}."
    if limit is not Limit.CONCURRENCY:
        message += f" Try again in {refusal.wait_s:.2f} s."
    return RateLimited(message, kind=kind, retry_after_s=refusal.wait_s)


def _not_its_own(error: BaseException | None, request: Request, now: float) -> bool:
    """Whether a request that got no answer failed through no doing of its client, or another one counts what
    was used. A client who says how long it waits has left when that is over."""
    if request.counted_later is not None and request.counted_later():
        return True
    if isinstance(error, DeadlineExceeded) and request.deadline_s is not None:
        return now < request.deadline_s
    return isinstance(error, RequestError) and error.status != 499
