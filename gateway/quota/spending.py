"""What tenants used of their budgets in this day and this month (UTC). Pure; ``wall_s`` is Unix time."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.storage.usage import Spent, UsageStore

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


Sums = dict[str, Amounts]


class Spending:
    """Sums by tenant for the present day and month.

    A clock that is set back takes nothing off: what counted under the later date counts under the earlier
    one too, beside what that had when it was left last. So one that was ahead for a while neither renews a
    budget nor keeps it from being renewed.
    """

    def __init__(self, wall_s: float) -> None:
        self._days: Sums = {}
        self._months: Sums = {}
        self._day = ""
        self.month = ""
        """The first day of the present month, as usage is kept by."""
        self._left_day: tuple[str, Sums] = ("", {})
        self._left_month: tuple[str, Sums] = ("", {})
        """Those before the present ones."""
        self._turn(wall_s)

    @classmethod
    def known(cls, usage: UsageStore, wall: Callable[[], float] = time.time) -> "Spending":
        """With what was used before now. Raises StateError."""
        spending = cls(wall())
        spending.load(usage.spent(spending.month))
        return spending

    def load(self, spent: Iterable[Spent]) -> None:
        """What was used in the present month, before this process began; what else there is does not count:
        a clock was ahead then."""
        for each in spent:
            if each.day[:7] != self.month[:7]:
                continue
            amounts = Amounts(each.tokens, each.gpu_s, each.cost)
            self._sum(self._months, each.tenant).add(amounts)
            if each.day == self._day:
                self._sum(self._days, each.tenant).add(amounts)

    def add(self, tenant: str, tokens: int, gpu_s: float, money: float, wall_s: float) -> None:
        """A tenant used so much."""
        if not self.day_begins_s <= wall_s < self.day_ends_s:
            self._turn(wall_s)
        used = Amounts(tokens, gpu_s, money)
        for sums in (self._days, self._months):
            self._sum(sums, tenant).add(used)

    def of(self, tenant: str, wall_s: float) -> tuple[Amounts, Amounts]:
        """What it used today and this month. Only to be read."""
        if not self.day_begins_s <= wall_s < self.day_ends_s:
            self._turn(wall_s)
        return self._days.get(tenant, NOTHING), self._months.get(tenant, NOTHING)

    def _sum(self, sums: Sums, tenant: str) -> Amounts:
        sum_ = sums.get(tenant)
        if sum_ is None:
            sum_ = Amounts()
            if len(sums) < MOST_TENANTS:
                sums[tenant] = sum_
        return sum_

    def _turn(self, wall_s: float) -> None:
        """Another day, and with some another month."""
        today = datetime.fromtimestamp(wall_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        first = today.replace(day=1)
        day, month = today.date().isoformat(), first.date().isoformat()
        if day != self._day:
            self._days, self._left_day = self._other(day, (self._day, self._days), self._left_day)
            self._day = day
        if month != self.month:
            self._months, self._left_month = self._other(month, (self.month, self._months), self._left_month)
            self.month = month
        self.day_begins_s = today.timestamp()
        self.day_ends_s = (today + timedelta(days=1)).timestamp()
        self.month_ends_s = (first + timedelta(days=32)).replace(day=1).timestamp()

    def _other(
        self, date: str, present: tuple[str, Sums], left: tuple[str, Sums]
    ) -> tuple[Sums, tuple[str, Sums]]:
        """The sums of ``date``, and those that are left for it."""
        if date > present[0]:
            return {}, present
        sums = left[1] if left[0] == date else {}
        for tenant, amounts in present[1].items():
            self._sum(sums, tenant).add(amounts)
        return sums, ("", {})
