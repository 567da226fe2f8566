"""Adds up in memory what finished requests used, until it is written down; and the GPU-seconds of each.

A request that runs alone in a deployment for a second uses a GPU-second; of ``n`` that run at once each
uses ``1/n`` of one in a second. So all requests of a deployment together use exactly the time in which
it had any, whatever their number. A deployment counts as one, however many GPUs its engine spans. Time
in an engine is that from the opening of a stream until both ends have let go of it: every attempt
counts, those that failed, and the copies of hedged requests, too. A gateway that is one of several
processes sees only a part of what runs at a deployment, so what the agent measured counts, where it does.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import structlog

from gateway.domain.quotas import FREE, Price
from gateway.domain.request import Request
from gateway.observability.gauges import SpentFigures
from gateway.quota.spending import Amounts, Spending
from gateway.storage.usage import Account, Amount
from shared.protocol.messages import Usage

_log = structlog.get_logger(__name__)

MOST_ACCOUNTS = 20_000
"""Sums kept in memory: keys times deployments that were busy since the last write, which is a second ago
unless the disk is full."""

_MOST_BITS = 40
MOST_TOKENS = 2**_MOST_BITS
"""Counted for one request, whatever its engine says."""


class _OpenAccount:
    """Where it is added up what one key uses of one model in one deployment in the present day."""

    __slots__ = ("day", "month", "sums")

    def __init__(self, sums: Amount, day: Amounts, month: Amounts) -> None:
        self.sums = sums
        """To be written down."""
        self.day = day
        """All that the tenant uses in the present day, which its budgets hold against it; and below, in the
        present month."""
        self.month = month


class UsageLedger:
    """What was used and is not written yet. Bounded; belongs to the event loop's thread."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        most: int = MOST_ACCOUNTS,
        *,
        price: Callable[[str], Price] = lambda model: FREE,
        spending: Spending | None = None,
    ) -> None:
        """``wall`` gives Unix time: a request belongs to the day (UTC) on which it ended. ``price`` is a
        model's now. ``spending`` gets what budgets count, from this ledger alone."""
        self.price = price
        self._spending = Spending(wall()) if spending is None else spending
        self._wall = wall
        self._most = most
        self._amounts: dict[Account, Amount] = {}
        self._lost = Amount()
        """What found no room in ``_amounts``."""
        self._open: dict[tuple[str, str, str, str], _OpenAccount] = {}
        """Those of ``_amounts`` that are of the present day, by key, tenant, model and deployment."""
        self._spending.on_new_day = self._open.clear
        self._gpu_s: dict[str, float] = defaultdict(float)
        self._costs: dict[str, float] = defaultdict(float)
        """What requests took since the start, by model; only models that were served come here."""

    @property
    def dropped(self) -> int:
        """Requests that were not counted because there were too many sums."""
        return self._lost.requests

    def finished(self, request: Request, usage: Usage | None) -> None:
        """A request's answer is over; ``usage`` is what its engine counted, if it said so."""
        attempts = request.attempts
        account = self._account(request, attempts[-1] if attempts else "")
        sums = account.sums
        sums.requests += 1
        if usage is None:
            return
        prompt_tokens, completion_tokens = usage.prompt_tokens, usage.completion_tokens
        cached_tokens = usage.cached_tokens
        if (prompt_tokens | completion_tokens | cached_tokens) >> _MOST_BITS:  # one is larger, or below zero
            prompt_tokens, completion_tokens, cached_tokens = _bounded(usage)
        sums.prompt_tokens += prompt_tokens
        sums.completion_tokens += completion_tokens
        if cached_tokens:
            sums.cached_tokens += cached_tokens
        tokens = prompt_tokens + completion_tokens
        account.day.tokens += tokens
        account.month.tokens += tokens
        price = request.price or self.price(request.model)
        if price is not FREE and (cost := price.of_tokens(prompt_tokens, completion_tokens)):
            self._charge(account, request.model, cost)

    def ran(self, request: Request, deployment: str, gpu_s: float) -> None:
        """An attempt of ``request`` at ``deployment`` has ended. Copies for a shadow are charged to
        nobody."""
        if request.shadow:
            return
        model = request.model
        price = request.price = self.price(model)
        account = self._account(request, deployment)
        self._gpu_s[model] += gpu_s
        account.sums.gpu_s += gpu_s
        account.day.gpu_s += gpu_s
        account.month.gpu_s += gpu_s
        if price is not FREE and (cost := gpu_s * price.gpu_second):
            self._charge(account, model, cost)

    def figures(self) -> Mapping[str, SpentFigures]:
        """What requests took since the start, by model."""
        models = self._gpu_s.keys() | self._costs.keys()
        return {name: SpentFigures(self._gpu_s.get(name, 0.0), self._costs.get(name, 0.0)) for name in models}

    def take(self) -> dict[Account, Amount]:
        """Return all sums and begin anew, so that the caller can write them to the store."""
        taken, self._amounts = self._amounts, {}
        self._open.clear()
        return taken

    def _charge(self, account: _OpenAccount, model: str, cost: float) -> None:
        self._costs[model] += cost
        account.sums.cost += cost
        account.day.money += cost
        account.month.money += cost

    def _account(self, request: Request, deployment: str) -> _OpenAccount:
        """What to add to what ``request`` used just now in ``deployment``."""
        now_s, spending, who = self._wall(), self._spending, request.principal
        if not spending.day_begins_s <= now_s < spending.day_ends_s:
            spending.begin_day(now_s)
        place = who.key_id, who.tenant, request.model, deployment
        return self._open.get(place) or self._opened(place)

    def _opened(self, place: tuple[str, str, str, str]) -> _OpenAccount:
        """A new one, which is not kept when there is no room."""
        account, sums_of_tenant = Account(self._spending.day, *place), self._spending.sums(place[1])
        sums = self._amounts.get(account)
        if sums is None:
            if len(self._amounts) >= self._most:
                if not self.dropped:
                    _log.error("usage_lost", accounts=self._most)
                return _OpenAccount(self._lost, *sums_of_tenant)
            sums = self._amounts[account] = Amount()
        opened = self._open[place] = _OpenAccount(sums, *sums_of_tenant)
        return opened


def _bounded(usage: Usage) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer, and of the prompt those that were cached."""
    tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    prompt, completion, cached = (min(max(each, 0), MOST_TOKENS) for each in tokens)
    return prompt, completion, cached


SHARE_WEIGHT = 0.1
"""Weight of the latest request in :attr:`GpuShare.share`."""


class GpuShare:
    """Which part of the GPU-seconds that this gateway sees at a deployment its requests really use, because
    requests of other gateways run beside them. For an agent that measures them."""

    __slots__ = ("share",)

    def __init__(self) -> None:
        self.share = 1.0
        """Of late, from 0 to 1."""

    def used_s(self, seen_s: float, told_s: float | None) -> float:
        """What a request used that this gateway saw use ``seen_s``, in GPU-seconds. ``told_s`` is what its
        agent measured, which is never more: nobody can be charged for more than was seen. None: the stream
        was reset, by either side, and requests of late are what is known."""
        if told_s is None or seen_s <= 0.0:
            return seen_s * self.share
        used_s = min(told_s, seen_s)
        self.share += (used_s / seen_s - self.share) * SHARE_WEIGHT
        return used_s
