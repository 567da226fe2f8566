"""Adds up in memory what finished requests used, until it is written down."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from gateway.domain.quotas import Price
from gateway.domain.request import Request
from gateway.storage.usage import Account, Amount
from shared.protocol.messages import Usage

_log = structlog.get_logger(__name__)

MOST_ACCOUNTS = 20_000
"""Sums kept in memory: keys times deployments that were busy since the last write, which is a second ago
unless the disk is full."""

MOST_TOKENS = 2**40
"""Counted for one request, whatever its engine says."""


class UsageLedger:
    """What was used and is not written yet. Bounded; belongs to the event loop's thread."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        most: int = MOST_ACCOUNTS,
        *,
        price: Callable[[str], Price] = lambda model: Price(),
        spent: Callable[[str, int, float, float, float], None] | None = None,
    ) -> None:
        """``wall`` gives Unix time: a request belongs to the day (UTC) on which it ended. ``price`` is a
        model's now. ``spent`` is told what budgets count: tenant, tokens, GPU-seconds, money, Unix time."""
        self.price = price
        self._spent = spent
        self._wall = wall
        self._most = most
        self._amounts: dict[Account, Amount] = {}
        self._day_ends_s = self._day_begins_s = 0.0
        self._day = ""
        self.dropped = 0
        """Requests that found no room."""

    def finished(self, request: Request, usage: Usage | None) -> None:
        """A request's answer is over; ``usage`` is what its engine counted, if it said so."""
        who = request.principal
        last = request.attempts[-1] if request.attempts else ""
        account = Account(self._today(), who.key_id, who.tenant, request.model, last)
        amount = Amount(1)
        if usage is not None:
            amount.prompt_tokens = _sane(usage.prompt_tokens)
            amount.completion_tokens = _sane(usage.completion_tokens)
            amount.cached_tokens = _sane(usage.cached_tokens)
            price = self.price(request.model)
            amount.cost = price.of_tokens(amount.prompt_tokens, amount.completion_tokens)
        self._count(account, amount)

    def ran(self, request: Request, deployment: str, gpu_s: float) -> None:
        """An attempt at a request is over in ``deployment``. Copies for a shadow are nobody's."""
        if request.shadow:
            return
        who = request.principal
        account = Account(self._today(), who.key_id, who.tenant, request.model, deployment)
        cost = gpu_s * self.price(request.model).gpu_second
        self._count(account, Amount(gpu_s=gpu_s, cost=cost))

    def take(self) -> dict[Account, Amount]:
        """What is there; it is not here any more."""
        taken, self._amounts = self._amounts, {}
        return taken

    def put_back(self, taken: dict[Account, Amount]) -> None:
        """What could not be written."""
        for account, amount in taken.items():
            self._add(account, amount)

    def _count(self, account: Account, amount: Amount) -> None:
        if self._spent is not None:
            tokens = amount.prompt_tokens + amount.completion_tokens
            self._spent(account.tenant, tokens, amount.gpu_s, amount.cost, self._wall())
        self._add(account, amount)

    def _add(self, account: Account, amount: Amount) -> None:
        sum_ = self._amounts.get(account)
        if sum_ is not None:
            sum_.add(amount)
        elif len(self._amounts) < self._most:
            self._amounts[account] = amount
        else:
            if not self.dropped:
                _log.error("usage_lost", accounts=self._most)
            self.dropped += amount.requests

    def _today(self) -> str:
        now_s = self._wall()
        if not self._day_begins_s <= now_s < self._day_ends_s:
            self._day_begins_s = now_s - now_s % 86_400
            self._day_ends_s = self._day_begins_s + 86_400
            self._day = datetime.fromtimestamp(now_s, UTC).date().isoformat()
        return self._day


def _sane(tokens: int) -> int:
    return min(max(tokens, 0), MOST_TOKENS)
