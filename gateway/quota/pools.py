"""What this process has of limits that several processes share. Pure; ``now`` in seconds of a clock that does
not go back.

A pool is this process's part of one limit: it takes from what is leased without asking anybody, says with a
statement what was used, and is granted more. While the engine is away, rates and requests at once fall back
to this process's share of the limit; all shares together are the limit. Budgets have what is still leased.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.storage.leases.rules import LeaseGrant, LeaseStatement

STOCK_TTL_S = 15.0
"""For how long a lease of requests at once, or of a budget, may be used without being renewed."""

CHUNK_SHARE = 8
"""A chunk is at most this part of a process's share, while half of the limit is left."""

REFUSED_S = 0.1
"""For so long a refusal is repeated without asking again."""

SCARCE_IDLE_S, IDLE_S = 0.5, 2.5
"""After so long without use a lease is given back: when less than half of the limit is left, and else."""

SETTLE_S = 0.25
"""What was given back or found to be more is said at most so often, if nothing else is to be said."""


class ProcessCount(Protocol):
    """How many gateways share the limits."""

    @property
    def count(self) -> int:
        """Of processes that run now, this one included; 1 or more."""
        ...

    @property
    def index(self) -> int:
        """This process's place among them, from 0."""
        ...


@dataclass(frozen=True, slots=True)
class StaticProcessCount:
    """As many as the settings say."""

    count: int = 1
    index: int = 0


class EngineLink:
    """Whether the engine is there, and this process's share while it is not."""

    def __init__(self, processes: ProcessCount, activate: Callable[["Pool"], None]) -> None:
        """``activate`` is told each pool that has something to say, soon or later."""
        self.processes = processes
        self.activate = activate
        self.away_s: float | None = None
        """Since when it is away, or late; None: it is there."""
        self.shares_from_s = 0.0
        """From when on shares hold while it is away: one that is only late still leases to others."""
        self.reserve_share = 0.0
        """The part of each budget that is kept in the SQL store and not here."""
        self.rejoins_s = float("-inf")
        """Until when shares hold on after it is back, so that all have said before what they used."""
        self.heard = False
        """The engine has answered this process."""
        self.sequence = 0
        """Of the latest statement. A limit that was taken away and is given again has another pool, and the
        engine takes up what that says of it after what the former one said."""

    def local(self, now: float) -> bool:
        """Whether this process's share holds, in place of leases."""
        return now < self.rejoins_s or (self.away_s is not None and now >= self.shares_from_s)

    def late(self, now: float) -> bool:
        """Whether an answer is overdue, and the engine not yet taken to be away."""
        return self.away_s is not None and now < self.shares_from_s

    def share(self, limit: int) -> int:
        """This process's part of ``limit``."""
        count = max(1, self.processes.count)
        return limit // count + (self.processes.index < limit % count)


class Pool(ABC):
    """One process's part of one shared limit: its lease, and what it has to say of it."""

    window_s = 0.0
    ttl_s = STOCK_TTL_S

    def __init__(self, key: str, limit: float, link: EngineLink) -> None:
        self.key = key
        self.most = limit
        self.link = link
        self.held = 0.0
        self.ends_s = float("-inf")
        """Until when what is held may be used."""
        self.dirty = False
        """Something changed that the engine has not heard."""
        self.unsaid = False
        """Something leased was used. The engine counts it as held, and for longer, until it hears when."""
        self.seen_used = 0.0
        self.seen_s = float("-inf")
        """When the engine said last what all processes use."""
        self.seeded = True
        self.seed: float | None = None
        self._needs: list[float] = []
        self._asked: list[float] = []
        self._said_s = float("-inf")
        self._used_s = float("-inf")
        self._refused = float("inf")
        self._refused_until_s = self._waits_until_s = float("-inf")
        self._sent: tuple[float, float, float] = (0.0, 0.0, 0.0)

    # --- To be taken from ---

    def lacks(self, amount: float, now: float) -> bool:
        """Whether a lease is to be asked for before ``amount`` can be taken."""
        link = self.link
        if self.has(amount, now) or amount > self.most or link.away_s is not None or link.local(now):
            return False
        return amount < self._refused or now >= self._refused_until_s

    @abstractmethod
    def has(self, amount: float, now: float) -> bool:
        """Whether ``amount`` may be taken now."""

    def ask(self, amount: float) -> None:
        """Ask for a lease of ``amount`` with the next statement."""
        self._needs.append(amount)
        self.link.activate(self)

    @property
    def asks(self) -> bool:
        """Whether somebody waits for a lease that no statement has asked for yet."""
        return bool(self._needs)

    def touch(self, now: float) -> None:
        """Something of it was used just now."""
        self._used_s = now
        self.link.activate(self)

    def refused_wait_s(self, now: float) -> float:
        """When to come back, as the engine said, or soon."""
        return max(REFUSED_S, self._waits_until_s - now)

    # --- To be stated ---

    def drop_needs(self) -> None:
        """Nobody waits any more for what was asked."""
        self._needs = []

    def restate(self) -> None:
        """Say everything again at once: the engine may know nothing of it."""
        self.dirty, self._said_s = True, float("-inf")
        self.link.activate(self)

    @abstractmethod
    def _keep(self, now: float) -> float:
        """What is used and held, and goes on to be."""

    @abstractmethod
    def _in_use(self) -> float:
        """What of it cannot be given back now."""

    def _terms(self, now: float) -> dict[str, object]:
        """What else the statement says."""
        return {}

    def _spent(self) -> float:
        return 0.0

    @property
    def in_use(self) -> bool:
        """Whether there is anything that an engine without memory has to hear."""
        return self.held > 0 or self._in_use() > 0

    def due(self, now: float) -> bool:
        """Whether to make a statement now."""
        if self._needs:
            return True
        if (self.held > 0 or self.unsaid) and now >= self.ends_s - self.ttl_s / 2:
            return True
        if self.held > 0 and self._idle(now):
            return True
        return self.dirty and now >= self._said_s + SETTLE_S

    @property
    def finished(self) -> bool:
        """Nothing is to be said until something is used again."""
        return not (self._needs or self.dirty or self.unsaid or self.held > 0 or self._in_use() > 0)

    def _idle(self, now: float) -> bool:
        scarce = self.seen_used * 2 > self.most
        if self.held <= self._in_use():
            return False
        return now >= (self._said_s + SCARCE_IDLE_S if scarce else max(self._used_s, self._said_s) + IDLE_S)

    def give_back(self) -> None:
        """Hold no more than is in use, before a statement says so."""
        self.held = self._in_use()

    def statement(self, now: float) -> LeaseStatement:
        """All there is to say. :meth:`granted` takes the answer; without one, a later statement says it
        again."""
        if self.held > 0 and not self._needs and self._idle(now):
            self.give_back()
        needs, self._needs = self._needs, []
        self._asked = needs
        keep, spent = self._keep(now), self._spent()
        free = keep - self._in_use()
        need = max(0.0, sum(needs) - free) if needs else 0.0
        least = self._least(max(0.0, min(needs) - free)) if needs else 0.0
        self.link.sequence += 1
        self._sent = (keep, max(min(needs), free) if needs else 0.0, spent)
        self._said_s, self.dirty, self.unsaid = now, False, False
        return LeaseStatement(
            self.key,
            float(self.most),
            self.window_s,
            self.ttl_s,
            self.link.sequence,
            keep,
            need,
            least,
            self._chunk(),
            seed=self.seed,
            spent=spent,
            **self._terms(now),  # type: ignore[arg-type]
        )

    def _least(self, missing: float) -> float:
        """The least that is of use where ``missing`` is lacking for what was asked."""
        return missing

    def _chunk(self) -> float:
        return float(self.most // (CHUNK_SHARE * max(1, self.link.processes.count)))

    def granted(self, grant: LeaseGrant, sent_s: float, now: float) -> None:
        """The engine answered the latest statement, which was made at ``sent_s``."""
        self.seeded = grant.seeded
        if not grant.seeded:
            self._needs, self.dirty = self._asked + self._needs, True
            return
        keep, asked, spent = self._sent
        self.seed = None
        self._take_up(keep, grant, spent, now)
        self.ends_s = sent_s + self.ttl_s
        if not (self.link.local(now) and grant.used < self.seen_used):  # not all may have said what they used
            self.seen_used, self.seen_s = grant.used, sent_s
        self._refused = float("inf")
        if asked and grant.wait_s != 0.0:
            wait_s = REFUSED_S if grant.wait_s is None else grant.wait_s
            self._refused = asked
            self._waits_until_s = now + wait_s
            self._refused_until_s = now + min(wait_s, REFUSED_S)

    @abstractmethod
    def _take_up(self, keep: float, grant: LeaseGrant, spent: float, now: float) -> None:
        """What the statement's ``keep`` has become."""
