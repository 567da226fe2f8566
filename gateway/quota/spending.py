"""What tenants used of their budgets in this day and this month (UTC). Pure; ``wall_s`` is Unix time."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.storage.usage import DailySpending, UsageStore

MOST_TENANTS = 100_000
"""Whose sums are kept in memory. Tenants are as many as somebody made keys for, or as tokens of issuers name;
the budgets of those that come when there are so many hold nothing back."""


@dataclass(slots=True)
class Amounts:
    """Tokens, seconds of GPUs, and money: what is spent, reserved or needed."""

    tokens: int = 0
    gpu_s: float = 0.0
    money: float = 0.0

    def add(self, other: "Amounts") -> None:
        self.tokens += other.tokens
        self.gpu_s += other.gpu_s
        self.money += other.money

    def subtract(self, other: "Amounts") -> None:
        """What was added before. Nothing goes below zero, whatever sums of fractions come to."""
        self.tokens = max(0, self.tokens - other.tokens)
        self.gpu_s = max(0.0, self.gpu_s - other.gpu_s)
        self.money = max(0.0, self.money - other.money)


NOTHING = Amounts()


class _Period:
    """Sums by tenant for one day, or for one month, and for the one that was left last."""

    def __init__(self) -> None:
        self.date = ""
        self.sums: dict[str, Amounts] = {}
        self._left: tuple[str, dict[str, Amounts]] = ("", {})

    def sum(self, tenant: str) -> Amounts:
        """A tenant's, to be added to. Those of too many tenants are not kept."""
        found = self.sums.get(tenant)
        if found is None:
            found = Amounts()
            if len(self.sums) < MOST_TENANTS:
                self.sums[tenant] = found
        return found

    def begin(self, date: str) -> None:
        """It is ``date`` now, which may be an earlier one than before."""
        if date == self.date:
            return
        (left_date, left), (before, sums) = self._left, (self.date, self.sums)
        self.date, self.sums, self._left = date, {}, (before, sums)
        if date < before:
            self.sums, self._left = left if left_date == date else {}, ("", {})
            for tenant, amounts in sums.items():
                self.sum(tenant).add(amounts)


class Spending:
    """Sums by tenant for the present day and month.

    A clock that is set back takes nothing off: what counted under the later date counts under the earlier
    one too, beside what that had when it was left last. So one that was ahead for a while neither renews a
    budget nor keeps it from being renewed.
    """

    def __init__(self, wall_s: float) -> None:
        self._day, self._month = _Period(), _Period()
        self.on_new_day: Callable[[], None] = lambda: None
        """Called when another day begins: nothing may be added any more to what :meth:`sums` gave."""
        self.begin_day(wall_s)

    @classmethod
    def known(cls, usage: UsageStore, wall: Callable[[], float] = time.time) -> "Spending":
        """With what was used before now. Raises StateError."""
        spending = cls(wall())
        spending.load(usage.spent(spending.month))
        return spending

    @property
    def month(self) -> str:
        """The first day of the present month, as usage is kept by."""
        return self._month.date

    @property
    def day(self) -> str:
        """The present day, as usage is kept by."""
        return self._day.date

    def load(self, spent: Iterable[DailySpending]) -> None:
        """What was used in the present month, before this process began; what else there is does not count:
        a clock was ahead then."""
        for each in spent:
            if each.day[:7] != self.month[:7]:
                continue
            amounts = Amounts(each.tokens, each.gpu_s, each.cost)
            self._month.sum(each.tenant).add(amounts)
            if each.day == self._day.date:
                self._day.sum(each.tenant).add(amounts)

    def sums(self, tenant: str) -> tuple[Amounts, Amounts]:
        """What it used in the present day and the present month, to be added to until ``on_new_day`` is
        called. Those of too many tenants are not kept."""
        return self._day.sum(tenant), self._month.sum(tenant)

    def of(self, tenant: str, wall_s: float) -> tuple[Amounts, Amounts]:
        """What it used today and this month. Only to be read."""
        if not self.day_begins_s <= wall_s < self.day_ends_s:
            self.begin_day(wall_s)
        return self._day.sums.get(tenant, NOTHING), self._month.sums.get(tenant, NOTHING)

    def begin_day(self, wall_s: float) -> None:
        """Another day than before, which may be an earlier one, and with some another month."""
        today = datetime.fromtimestamp(wall_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        first = today.replace(day=1)
        self._day.begin(today.date().isoformat())
        self._month.begin(first.date().isoformat())
        self.day_begins_s = today.timestamp()
        self.day_ends_s = (today + timedelta(days=1)).timestamp()
        self.month_ends_s = (first + timedelta(days=32)).replace(day=1).timestamp()
        self.on_new_day()
