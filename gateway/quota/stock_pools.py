"""Requests at once and budgets, of which this process has a part. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.quota.pools import CHUNK_SHARE, REFUSED_S, EngineLink, Pool
from gateway.storage.leases.rules import LeaseGrant
from gateway.storage.usage import DailySpending

LEAST_SHARE = 1e-6
"""Of a budget; it is leased for a request that is not known to need anything."""


class PermitPool(Pool):
    """This process's part of requests at once: those that run, and permits for more."""

    def __init__(self, key: str, limit: int, link: EngineLink, running: Callable[[], int]) -> None:
        """``running`` counts requests that hold a permit."""
        super().__init__(key, limit, link)
        self._running = running
        self._over = False
        """All processes together hold more than the limit: this one was paused for longer than its lease, or
        another was, and requests of both run on. A permit that becomes free is taken by nobody then."""

    def has(self, amount: float, now: float) -> bool:
        """See :class:`Pool`. ``amount`` is what runs already and what is to be added to it."""
        if amount <= self.held and now < self.ends_s and not self._over:
            return True
        if not self.link.local(now):
            return False
        self.dirty = True
        self.link.activate(self)
        return amount <= self.link.share(int(self.most))

    def lacks(self, amount: float, now: float) -> bool:
        """See :class:`Pool`; ``amount`` is as of :meth:`has`."""
        return super().lacks(self._running() + amount, now)

    def _keep(self, now: float) -> float:
        usable = now < self.ends_s and not self._over
        self.held = max(self.held if usable else 0.0, float(self._running()))
        return self.held

    def _in_use(self) -> float:
        return float(self._running())

    def _take_up(self, keep: float, grant: LeaseGrant, spent: float, now: float) -> None:
        self.held = keep + grant.granted
        self._over = grant.used > self.most


@dataclass(frozen=True, slots=True)
class BudgetPeriod:
    """A day or a month. ``date``: its first day; ``left_s``: what is left of it, in seconds."""

    date: str
    left_s: float


class BudgetPool(Pool):
    """This process's part of a budget: what it reserved, and what it may yet reserve."""

    def __init__(
        self,
        name: str,
        limit: float,
        link: EngineLink,
        period: Callable[[], BudgetPeriod],
        spent: Callable[[], float],
        reserved: Callable[[], float],
        stored: Callable[[Iterable[DailySpending], str], float],
    ) -> None:
        """``spent`` is what this process knows to have been spent in the period, ``reserved`` what running
        requests may yet spend; ``stored`` sums what the store has of the period that begins with a day."""
        self._name, self._period = name, period
        self._spent_now, self._reserved, self._stored = spent, reserved, stored
        self._date = self._stated_date = period().date
        super().__init__(f"{name}:{self._date}", limit, link)
        self.whole = limit
        """The budget: what the engine grants, and the reserve."""
        self.change(limit)
        self.acknowledged = spent()
        """As much of what was spent as the engine or, before this pool, the store has heard."""
        self.credit = 0.0
        """Debited from the reserve and not spent yet; beside what the engine leases."""
        self.debited = 0.0
        """From the reserve, by this process in this period."""
        self.reserve_used = 0.0
        """Of the reserve, by all processes, as the SQL store said last in the period ``reserve_date``."""
        self.reserve_date = ""
        self.reserve_refused_s = float("-inf")
        self._charged = 0.0
        """What was spent of the reserve: the engine does not hear of it."""
        self._engine_spent = 0.0
        """By all processes, as the engine said last in the period ``_engine_date``."""
        self._engine_date = ""
        self._lapsed = False
        self._unsummed = link.heard
        """The budget was given while this process runs. An engine that knows it from before has heard nothing
        of what was spent since it was taken away, and nobody will tell it but the store."""

    def change(self, limit: float) -> None:
        """The budget is another one from the next lease on."""
        self.whole, self.most = limit, limit * (1.0 - self.link.reserve_share)

    @property
    def reserve(self) -> float:
        """What the SQL store grants of the budget."""
        return self.whole - self.most

    @property
    def lasts_s(self) -> float:
        """For how long engines keep what they know of the period."""
        return self._period().left_s + 86_400.0

    def seed_from(self, rows: Iterable[DailySpending]) -> None:
        """What all processes have spent, as the store has it."""
        self.seed, self._unsummed = self._stored(rows, self._date), False

    @property
    def date(self) -> str:
        """Of the period."""
        return self._date

    def available(self, now: float) -> float:
        """What may be reserved now."""
        self._turn()
        return self._covered(now) + self.credit - self._unsaid() - self._reserved()

    def _unsaid(self) -> float:
        """What was spent that is neither the reserve's nor known to the engine."""
        return self._spent_now() - self._charged - self.acknowledged

    def _covered(self, now: float) -> float:
        """What the engine has leased: once the lease is over, what of it was in use then and still is.
        Without a reserve nothing is taken on that, so nothing is looked up."""
        if now < self.ends_s:
            self._lapsed = False
            return self.held
        if not self.link.reserve_share:
            return 0.0
        in_use = self._reserved() + self._unsaid()
        self.held = max(0.0, min(self.held, in_use if self._lapsed else in_use - self.credit))
        self._lapsed = True
        return self.held

    def _charge(self, now: float) -> None:
        """Count what was spent beyond what the engine has leased as spent of the reserve."""
        amount = min(self.credit, max(0.0, self._unsaid() - self._covered(now)))
        self.credit -= amount
        self._charged += amount

    def has(self, amount: float, now: float) -> bool:
        """See :class:`Pool`. Something has to be left for a request that needs nothing, too."""
        available = self.available(now)
        return available > 0 and amount <= available

    def lacks(self, amount: float, now: float) -> bool:
        """See :class:`Pool`; of the engine or of the reserve."""
        amount = amount or self.whole * LEAST_SHARE
        if self.has(amount, now) or amount > self.whole:
            return False
        return self.lacks_lease(amount, now) or (
            self.link.reserve_share > 0 and now >= self.reserve_refused_s + REFUSED_S
        )

    def lacks_lease(self, amount: float, now: float) -> bool:
        """Whether the engine is to be asked."""
        return super().lacks(min(amount or self.whole * LEAST_SHARE, self.most), now)

    def ask(self, amount: float) -> None:
        """See :class:`Pool`."""
        super().ask(min(amount or self.whole * LEAST_SHARE, self.most))

    def left(self, now: float) -> float:
        """Of the budget, for all processes, as far as the engine has said."""
        available = self.available(now)
        if self.seen_s == float("-inf"):
            return self.whole - self._spent_now() - self._reserved()
        used = self.reserve_used if self.reserve_date == self._date else 0.0
        return max(0.0, self.most - self.seen_used) + max(0.0, self.reserve - used) + max(0.0, available)

    def fits_beside_spent(self, amount: float) -> bool:
        """Whether ``amount`` would fit if nothing were reserved or leased by any process, as far as the
        engine has said. What the SQL store has debited for other processes counts as spent, since they never
        give it back."""
        self._turn()
        if self._engine_date == self._date:
            debited = self.reserve_used if self.reserve_date == self._date else 0.0
            spent = self._engine_spent + self._unsaid() + max(self.debited, debited) - self.credit
        else:
            spent = self._spent_now()
        return spent < self.whole and spent + amount <= self.whole

    def due(self, now: float) -> bool:
        """See :class:`Pool`; what was spent is said every second."""
        return super().due(now) or (self._unsaid() != 0 and now >= self._said_s + 1.0)

    @property
    def finished(self) -> bool:
        """See :class:`Pool`."""
        return super().finished and self._unsaid() == 0

    def give_back(self) -> None:
        """See :class:`Pool`."""
        self.held = self._in_use() + max(0.0, self._unsaid())

    def _idle(self, now: float) -> bool:
        return super()._idle(now) and self.available(now) > 0

    def _keep(self, now: float) -> float:
        self._turn()
        self._charge(now)
        return max(self._in_use(), self._covered(now) - self._unsaid())

    def _in_use(self) -> float:
        return max(0.0, self._reserved() - self.credit)

    def chunk_of(self, limit: float) -> float:
        """What is leased at least of ``limit``, while half of it is left."""
        return limit / (CHUNK_SHARE * max(1, self.link.processes.count))

    def _chunk(self) -> float:
        return self.chunk_of(self.most)

    def _least(self, missing: float) -> float:
        """See :class:`Pool`. What the reserve may add need not be the engine's."""
        if not self.link.reserve_share:
            return missing
        debited = self.reserve_used if self.reserve_date == self._date else 0.0
        return max(min(missing, self.whole * LEAST_SHARE), missing - max(0.0, self.reserve - debited))

    def _spent(self) -> float:
        return self._spent_now() - self._charged

    def _terms(self, now: float) -> dict[str, object]:
        self._stated_date = self._date
        return {"acknowledged": self.acknowledged, "lasts_s": self.lasts_s}

    def granted(self, grant: LeaseGrant, sent_s: float, now: float) -> None:
        """See :class:`Pool`. An answer of the period before says nothing of this one: it is asked again."""
        if self._stated_date == self._date:
            super().granted(grant._replace(seeded=grant.seeded and not self._unsummed), sent_s, now)
        else:
            self._needs, self.dirty = self._asked + self._needs, True

    def _take_up(self, keep: float, grant: LeaseGrant, spent: float, now: float) -> None:
        self.held, self.acknowledged = keep + grant.granted, spent
        self._engine_spent, self._engine_date = grant.spent, self._date

    def _turn(self) -> None:
        """Another day or month has come: nothing of it is leased yet, and all that was spent in it counts. In
        one that a clock comes back to, what is known was said before."""
        date = self._period().date
        if date != self._date:
            self.acknowledged = 0.0 if date > self._date else self._spent_now()
            self._date, self.key, self.held = date, f"{self._name}:{date}", 0.0
            self.credit = self.debited = self._charged = 0.0
            self.seed, self._unsummed, self.dirty = None, False, True
