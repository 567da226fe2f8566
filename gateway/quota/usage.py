"""Adds up in memory what finished requests used, until it is written down; and the GPU-seconds of each.

A request that runs alone in a deployment for a second uses a GPU-second; of ``n`` that run at once each
uses ``1/n`` of one in a second. So all requests of a deployment together use exactly the time in which
it had any, whatever their number. A deployment counts as one, however many GPUs its engine spans. Time
in an engine is that from the opening of a stream until both ends have let go of it: every attempt
counts, those that failed, and the copies of hedged requests, too. It is kept as the virtual time of
processor sharing, which runs at ``1/n``: O(1) when a request comes or goes.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
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
        amount = Amount(1)
        if usage is not None:
            amount.prompt_tokens = _bounded(usage.prompt_tokens)
            amount.completion_tokens = _bounded(usage.completion_tokens)
            amount.cached_tokens = _bounded(usage.cached_tokens)
            price = self.price(request.model)
            amount.cost = price.of_tokens(amount.prompt_tokens, amount.completion_tokens)
        self._count(request, request.attempts[-1] if request.attempts else "", amount)

    def ran(self, request: Request, deployment: str, gpu_s: float) -> None:
        """An attempt at a request is over in ``deployment``. Copies for a shadow are nobody's."""
        if request.shadow:
            return
        cost = gpu_s * self.price(request.model).gpu_second
        self._count(request, deployment, Amount(gpu_s=gpu_s, cost=cost))

    def take(self) -> dict[Account, Amount]:
        """What is there; it is not here any more."""
        taken, self._amounts = self._amounts, {}
        return taken

    def put_back(self, taken: dict[Account, Amount]) -> None:
        """What could not be written."""
        for account, amount in taken.items():
            self._add(account, amount)

    def _count(self, request: Request, deployment: str, amount: Amount) -> None:
        who = request.principal
        if self._spent is not None:
            tokens = amount.prompt_tokens + amount.completion_tokens
            self._spent(who.tenant, tokens, amount.gpu_s, amount.cost, self._wall())
        self._add(Account(self._today(), who.key_id, who.tenant, request.model, deployment), amount)

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


def _bounded(tokens: int) -> int:
    return min(max(tokens, 0), MOST_TOKENS)


@dataclass(slots=True)
class _Clock:
    at_s: float
    virtual_s: float = 0.0
    running: int = 0

    def advance(self, now: float) -> None:
        if now > self.at_s:
            if self.running:
                self.virtual_s += (now - self.at_s) / self.running
            self.at_s = now


class GpuTimeMeter:
    """Who runs beside whom. One for a dispatcher; holds what runs and no more."""

    def __init__(self) -> None:
        self._clocks: dict[Hashable, _Clock] = {}
        self._began_s: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._began_s)

    def started(self, attempt: Hashable, deployment: Hashable, now: float) -> None:
        """``attempt`` runs in ``deployment`` from now on."""
        clock = self._clocks.get(deployment)
        if clock is None:
            clock = self._clocks[deployment] = _Clock(now)
        clock.advance(now)
        clock.running += 1
        self._began_s[attempt] = clock.virtual_s

    def ended(self, attempt: Hashable, deployment: Hashable, now: float) -> float:
        """It does so no more; the GPU-seconds it used. 0.0 for one that never came."""
        began_s = self._began_s.pop(attempt, None)
        if began_s is None:
            return 0.0
        clock = self._clocks[deployment]
        clock.advance(now)
        clock.running -= 1
        if not clock.running:
            del self._clocks[deployment]
        return clock.virtual_s - began_s
