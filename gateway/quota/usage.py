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
        """Requests that were not counted because there were too many sums."""

    def finished(self, request: Request, usage: Usage | None) -> None:
        """A request's answer is over; ``usage`` is what its engine counted, if it said so."""
        attempts, now_s = request.attempts, self._wall()
        sums = self._sums(request, attempts[-1] if attempts else "", now_s)
        if sums is None:
            self.dropped += 1
            sums = Amount()
        sums.requests += 1
        if usage is None:
            return
        prompt_tokens, completion_tokens, cached_tokens = _bounded(usage)
        cost = self.price(request.model).of_tokens(prompt_tokens, completion_tokens)
        sums.prompt_tokens += prompt_tokens
        sums.completion_tokens += completion_tokens
        sums.cached_tokens += cached_tokens
        sums.cost += cost
        if self._spent is not None:
            self._spent(request.principal.tenant, prompt_tokens + completion_tokens, 0.0, cost, now_s)

    def ran(self, request: Request, deployment: str, gpu_s: float) -> None:
        """An attempt of ``request`` at ``deployment`` has ended. Copies for a shadow are charged to
        nobody."""
        if request.shadow:
            return
        cost, now_s = gpu_s * self.price(request.model).gpu_second, self._wall()
        sums = self._sums(request, deployment, now_s)
        if sums is not None:
            sums.gpu_s += gpu_s
            sums.cost += cost
        if self._spent is not None:
            self._spent(request.principal.tenant, 0, gpu_s, cost, now_s)

    def take(self) -> dict[Account, Amount]:
        """Return all sums and begin anew, so that the caller can write them to the store."""
        taken, self._amounts = self._amounts, {}
        return taken

    def put_back(self, taken: dict[Account, Amount]) -> None:
        """Add ``taken`` again, because it could not be written."""
        for account, amount in taken.items():
            sums = self._amounts.get(account) or self._new(account)
            if sums is None:
                self.dropped += amount.requests
            else:
                sums.add(amount)

    def _sums(self, request: Request, deployment: str, now_s: float) -> Amount | None:
        """What to add to what ``request`` used just now in ``deployment``; None: there is no room."""
        if not self._day_begins_s <= now_s < self._day_ends_s:
            self._day_begins_s = now_s - now_s % 86_400
            self._day_ends_s = self._day_begins_s + 86_400
            self._day = datetime.fromtimestamp(now_s, UTC).date().isoformat()
        who = request.principal
        account = self._day, who.key_id, who.tenant, request.model, deployment
        found = self._amounts.get(account)  # type: ignore[call-overload]  # an Account is equal to it
        return found or self._new(Account(*account))

    def _new(self, account: Account) -> Amount | None:
        if len(self._amounts) >= self._most:
            if not self.dropped:
                _log.error("usage_lost", accounts=self._most)
            return None
        sums = self._amounts[account] = Amount()
        return sums


def _bounded(usage: Usage) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer, and of the prompt those that were cached."""
    tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
    for each in tokens:
        if not 0 <= each <= MOST_TOKENS:
            prompt, completion, cached = (min(max(each, 0), MOST_TOKENS) for each in tokens)
            return prompt, completion, cached
    return tokens


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
            self._clocks[deployment] = _Clock(now, running=1)
            self._began_s[attempt] = 0.0
            return
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
