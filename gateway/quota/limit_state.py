"""What one key or one tenant may have, and has now. Pure; nothing here waits or knows a request."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gateway.domain.quotas import Budgets, Rates
from gateway.quota.spending import Amounts, Spending
from gateway.quota.window import MinuteWindow, WindowSlot

MOST_WAIT_S = 120.0
LEAST_WAIT_S = 0.05
HOLD_WEIGHT = 0.1
"""Weight of the latest request in the mean duration of requests."""

NO_END = 1 << 60
"""More tokens than any budget has."""

NO_BUDGETS = Budgets()


class Limit(StrEnum):
    """What stands against a request, in words for its client."""

    REQUESTS = "requests per minute"
    TOKENS = "tokens per minute"
    CONCURRENCY = "requests at once"
    DAY_TOKENS = "tokens per day"
    MONTH_TOKENS = "tokens per month"
    DAY_GPU = "GPU-seconds per day"
    MONTH_GPU = "GPU-seconds per month"
    DAY_MONEY = "money per day"
    MONTH_MONEY = "money per month"


RATES = frozenset({Limit.REQUESTS, Limit.TOKENS, Limit.CONCURRENCY})


class _Budget(NamedTuple):
    """One budget that a tenant has."""

    limit: Limit
    amount: str
    """The field of :class:`Amounts` that it limits."""
    of_month: bool
    most: float


_BUDGETS = {
    "tokens_per_day": (Limit.DAY_TOKENS, "tokens", False),
    "tokens_per_month": (Limit.MONTH_TOKENS, "tokens", True),
    "gpu_seconds_per_day": (Limit.DAY_GPU, "gpu_s", False),
    "gpu_seconds_per_month": (Limit.MONTH_GPU, "gpu_s", True),
    "money_per_day": (Limit.DAY_MONEY, "money", False),
    "money_per_month": (Limit.MONTH_MONEY, "money", True),
}
"""What each field of :class:`Budgets` limits."""


@dataclass(frozen=True, slots=True)
class LimitRefusal:
    """Which limit of whom stands against a request. ``wait_s``: when it may come back; None: never, as
    it is. For budgets ``used`` is what is spent and reserved."""

    limit: Limit
    whose: str
    most: float
    used: float
    """By all gateways that share the limit, as far as is known; with a ``share`` by this one."""
    needed: float
    wait_s: float | None
    share: float | None = None
    """What this gateway may use of the limit while it cannot be shared; None: there is no such bound."""
    passing: bool = False
    """Of a budget: the request would fit beside what is spent. What it lacks is reserved for requests that
    run, here or in another process, or leased by one, and some of that may be free when they are over."""

    @property
    def away_s(self) -> float:
        """For how long it keeps the request away."""
        return float("inf") if self.wait_s is None else self.wait_s


@dataclass(slots=True)
class ReservedShare:
    """What one holder set aside for one request."""

    holder: "LimitState"
    requests: tuple[MinuteWindow, WindowSlot] | None
    tokens: tuple[MinuteWindow, WindowSlot] | None
    budgeted: bool
    """It is in what the holder has ``reserved``."""
    began_s: float


class LimitState:
    """One key's, or one tenant's. Its limits may change at any time, and count from then on: requests
    that run stay, and what the last minute took while there was a limit counts against the new one."""

    def __init__(self, whose: str, tenant: str = "") -> None:
        """``whose`` is for people. Budgets are those of ``tenant``."""
        self.whose = whose
        self._tenant = tenant
        self.rates = Rates()
        self.budgets: tuple[_Budget, ...] = ()
        self.requests: MinuteWindow | None = None
        self.tokens: MinuteWindow | None = None
        self.running = 0
        self.arriving = 0
        """Requests whose body is being read: they count as requests at once, and for nothing else yet."""
        self.reserved = Amounts()
        """What is reserved from the budgets for running requests."""
        self._hold_s = 1.0

    def limit(self, rates: Rates, budgets: Budgets = NO_BUDGETS) -> None:
        """Its limits from now on."""
        self.rates = rates
        self.requests = _window(self.requests, rates.rpm)
        self.tokens = _window(self.tokens, rates.tpm)
        self.budgets = tuple(
            _Budget(*budget, most)
            for name, budget in _BUDGETS.items()
            if (most := getattr(budgets, name)) is not None
        )

    @property
    def counts_tokens(self) -> bool:
        """Whether something of it is held to tokens, or to money, which is paid for them."""
        return self.rates.tpm is not None or any(budget.amount != "gpu_s" for budget in self.budgets)

    def left(self, spending: Spending, wall_s: float) -> Amounts:
        """What is left of its budgets after what was spent and reserved; no end where it has no budget."""
        left = Amounts(NO_END, float("inf"), float("inf"))
        if self.budgets:
            reserved, spent = self.reserved, spending.of(self._tenant, wall_s)
            for _, amount, of_month, most in self.budgets:
                rest = most - getattr(spent[of_month], amount) - getattr(reserved, amount)
                if rest < getattr(left, amount):
                    setattr(left, amount, rest)
        return left

    @property
    def idle(self) -> bool:
        """Nothing of it would be lost with it."""
        windows = (self.requests, self.tokens)
        return not (self.running or self.arriving) and all(each is None or each.empty for each in windows)

    def advance(self, now: float) -> None:
        """Let go of what is a minute old."""
        for window in (self.requests, self.tokens):
            if window is not None:
                window.advance(now)

    def refusal(self, need: Amounts, now: float, spending: Spending, wall_s: float) -> LimitRefusal | None:
        """What stands against one more request that needs so much; of several limits the one that does
        so for longest. Nothing has changed."""
        requests, tokens, most = self.requests, self.tokens, self.rates.concurrency
        fits = (
            (requests is None or requests.fits(1, now))
            and (tokens is None or tokens.fits(need.tokens, now))
            and (most is None or self.running + self.arriving < most)
        )
        found = [] if fits else list(self._rate_refusals(need, now))
        if self.budgets:
            found += self._budget_refusals(need, spending, wall_s)
        return longest(found) if found else None

    def _rate_refusals(self, need: Amounts, now: float) -> Iterator[LimitRefusal]:
        for limit, window, amount in (
            (Limit.REQUESTS, self.requests, 1),
            (Limit.TOKENS, self.tokens, need.tokens),
        ):
            if window is not None and not window.fits(amount, now):
                used, wait_s, share = window.used_by_all(now), window.wait_s(amount, now), window.share(now)
                yield LimitRefusal(limit, self.whose, window.limit, used, amount, wait_s, share)
        crowded = self.concurrency_refusal()
        if crowded is not None:
            yield crowded

    def _budget_refusals(self, need: Amounts, spending: Spending, wall_s: float) -> list[LimitRefusal]:
        found = []
        reserved, spent = self.reserved, spending.of(self._tenant, wall_s)
        for limit, amount, of_month, most in self.budgets:
            used = getattr(spent[of_month], amount) + getattr(reserved, amount)
            needed = getattr(need, amount)
            if used + needed > most or used >= most:
                end_s = spending.month_ends_s if of_month else spending.day_ends_s
                wait_s = None if needed > most else max(1.0, end_s - wall_s)
                passing = self._only_reserved(amount, used, needed, most)
                found.append(LimitRefusal(limit, self.whose, most, used, needed, wait_s, passing=passing))
        return found

    def _only_reserved(self, amount: str, used: float, needed: float, most: float) -> bool:
        """Whether ``needed`` would fit if the requests that run here used nothing of what they have
        reserved."""
        reserved = getattr(self.reserved, amount)
        spent = used - reserved
        return bool(reserved > 0 and spent < most and spent + needed <= most)

    @property
    def at_once(self) -> int:
        """Requests that count against the limit of concurrency."""
        return self.running + self.arriving

    def concurrency_refusal(self) -> LimitRefusal | None:
        """What stands against one more request at once."""
        most = self.rates.concurrency
        if most is None or self.at_once < most:
            return None
        wait_s = min(max(self._hold_s / most, LEAST_WAIT_S), MOST_WAIT_S)
        return LimitRefusal(Limit.CONCURRENCY, self.whose, most, self.at_once, 1, wait_s)

    def take(self, need: Amounts, now: float) -> ReservedShare:
        """Set it aside. Ask :meth:`refusal` first."""
        self.running += 1
        budgeted = bool(self.budgets)
        if budgeted:
            self.reserved.add(need)
        requests, tokens = self.requests, self.tokens
        return ReservedShare(
            self,
            None if requests is None else (requests, requests.take(1, now)),
            None if tokens is None else (tokens, tokens.take(need.tokens, now)),
            budgeted,
            now,
        )

    def give_back(
        self, share: ReservedShare, need: Amounts, tokens: int, now: float, *, counts: bool
    ) -> None:
        """The request is over and took so many tokens; ``counts``: it counts as a request."""
        self.running -= 1
        if share.budgeted:
            self.reserved.subtract(need)
            if not self.running:
                self.reserved = Amounts()  # what sums of fractions leave
        if share.requests is not None and not counts:
            window, slot = share.requests
            window.settle(slot, 1, 0, now)
        if share.tokens is not None:
            window, slot = share.tokens
            window.settle(slot, need.tokens, tokens, now)
        self._hold_s += HOLD_WEIGHT * (now - share.began_s - self._hold_s)


@dataclass(slots=True, eq=False)
class Reservation:
    """What a request may use, set aside with all who answer for it. Settled exactly once: the first
    counts."""

    _shares: tuple[ReservedShare, ...]
    need: Amounts

    def settle(self, tokens: int, now: float, *, counts: bool = True) -> None:
        """It took so many tokens in truth. ``counts`` False: it never began, and is no request
        either."""
        shares, self._shares = self._shares, ()
        for share in shares:
            share.holder.give_back(share, self.need, tokens, now, counts=counts)


def longest(refusals: Iterable[LimitRefusal]) -> LimitRefusal:
    """The one that keeps a request away for longest."""
    return max(refusals, key=lambda refusal: refusal.away_s)


def reserve(
    holders: tuple[LimitState, ...], need: Amounts, now: float, spending: Spending, wall_s: float
) -> Reservation | LimitRefusal:
    """Set ``need`` aside with all ``holders``, or say what stands against it; then nothing has
    changed."""
    found = [
        refusal for holder in holders if (refusal := holder.refusal(need, now, spending, wall_s)) is not None
    ]
    if found:
        return longest(found)
    return Reservation(tuple([holder.take(need, now) for holder in holders]), need)


def tokens_that_fit(holders: tuple[LimitState, ...], tokens: int, least: int) -> int:
    """A guess of ``tokens``, cut to what the holders could ever take, but not below ``least``: a guess
    alone makes no request impossible."""
    for holder in holders:
        if holder.tokens is not None and tokens > holder.tokens.limit:
            tokens = max(least, holder.tokens.limit)
    return tokens


def affordable(
    guess: Amounts, holders: tuple[LimitState, ...], least: int, spending: Spending, wall_s: float
) -> Amounts:
    """A guess cut to half of what is left of each budget, and ``least`` tokens at least: a guess alone uses
    up no budget, however many requests come at once."""
    tokens, gpu_s, money = guess.tokens, guess.gpu_s, guess.money
    for holder in holders:
        left = holder.left(spending, wall_s)
        tokens = min(tokens, max(least, left.tokens // 2))
        gpu_s = min(gpu_s, max(0.0, left.gpu_s / 2))
        money = min(money, max(0.0, left.money / 2))
    return Amounts(tokens, gpu_s, money)


def _window(before: MinuteWindow | None, limit: int | None) -> MinuteWindow | None:
    if limit is None:
        return None
    if before is None:
        return MinuteWindow(limit)
    before.limit = limit
    return before
