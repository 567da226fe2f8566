"""The rules by which several processes share one limit: what each states, and what it is granted. Pure.

A process leases parts of a limit before it uses them. With every statement it says all that it has of a
limit: what it used lately, what it holds, what it owes. So a statement can be repeated, and one that is lost
takes nothing with it that the next does not bring. What an engine knows of a process ends by itself: what was
leased and never heard of again counts for the lease's time, and for the limit's window after it.

One rule serves all limits. A rate has a window: what was used counts for so long. Requests at once and
budgets have none: they are what is held, and for budgets what all processes have spent in the period.

:mod:`gateway.storage.leases.valkey` says the same in Lua; one set of tests holds both to it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

MOST_USES = 256
"""Of one statement. A window of 60 s has fewer steps."""


@dataclass(frozen=True, slots=True)
class LeaseStatement:
    """What one process says of one limit, and asks for. Times are in seconds, amounts in the limit's unit."""

    key: str
    """The limit's name, the same in all processes."""
    limit: float
    window_s: float
    """For how long what was used counts; 0: not at all."""
    ttl_s: float
    """For how long a lease may be used."""
    sequence: int = 0
    """Of the process's statements. One that is overtaken by a later one is not taken up."""
    keep: float = 0.0
    """What is held and may be used while the statement is on its way. It was granted before."""
    need: float = 0.0
    """What is asked for beyond it."""
    least: float = 0.0
    """Less than this is of no use, and is not granted."""
    chunk: float = 0.0
    """What is granted instead of a smaller need while half of the limit is left."""
    uses: tuple[tuple[float, float], ...] = ()
    """Age and amount of all that was used within the window."""
    debt: float = 0.0
    """What was used beyond the limit. It is paid as soon as there is room, before anybody is granted more."""
    spent: float = 0.0
    """What the process has spent in the budget's period, since it began."""
    acknowledged: float = 0.0
    """As much of that as the engine has confirmed."""
    seed: float | None = None
    """What all have spent as the store has it; the engine's sum is never less. None: not looked up."""
    lasts_s: float = 0.0
    """For how long a sum of what was spent is kept: to the end of a budget's period; 0: it is no budget."""


class LeaseGrant(NamedTuple):
    """The engine's answer to one statement."""

    granted: float
    """What may be used beyond what was to be kept."""
    paid: float
    """Of the debt. It counts as used from now on."""
    used: float
    """By all processes, what they hold and owe included."""
    wait_s: float | None
    """When what was asked for may be granted: 0.0, it was; None, never or not known."""
    reset_s: float
    """In how many seconds nothing counts that was used within the window."""
    seeded: bool = True
    """False: the engine has no sum of this budget and needs a seed. Nothing was changed."""
    spent: float = 0.0
    """Of a budget, by all processes: the part of ``used`` that nobody gives back."""


class LeaseEngine(Protocol):
    """Where limits are kept that several processes share."""

    name: str
    """For people, in logs and metrics. Without a password."""
    patience_s: float
    """An answer takes less than this, unless something is wrong."""

    async def exchange(self, process: str, statements: list[LeaseStatement]) -> list[LeaseGrant]:
        """Make statements of ``process``, a name that no other process ever has. An empty list only asks
        whether the engine is there. Raises EngineAway; it is unknown then which statements were taken."""
        ...

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        ...


class EngineAway(Exception):
    """The engine did not answer, or not with what it should."""


class EngineForgot(EngineAway):
    """The engine answers, and has lost what was stated: it was emptied, or started anew. What it granted is
    not taken up; others have to state what they have before anybody is granted more."""


class EngineUnusable(Exception):
    """The engine's client is not installed, or its URL is wrong. The message says what to do."""


@dataclass(slots=True)
class LeaseRecord:
    """What one process stated last. Times are the engine's clock's, in seconds."""

    sequence: int
    held: float
    ends_s: float
    """When the lease ends of what is held. It may have been used until then."""
    debt: float
    spent: float
    uses: list[tuple[float, float]]
    """When something was used, and how much."""

    def ends_with(self, window_s: float, now: float) -> bool:
        """Forget what counts no more. Whether nothing is left."""
        self.uses = [each for each in self.uses if each[0] + window_s > now]
        over = self.ends_s + window_s <= now
        if over:
            self.held = self.debt = 0.0
        return over and not self.uses

    @property
    def used(self) -> float:
        """All of it but the debt."""
        return self.held + sum(amount for _, amount in self.uses)


@dataclass(slots=True)
class SharedLimit:
    """One limit, as an engine has it."""

    records: dict[str, LeaseRecord] = field(default_factory=dict)
    """By process."""
    spent: float | None = None
    """Of a budget, by all processes; None: not known yet."""

    def state(self, process: str, statement: LeaseStatement, now: float) -> LeaseGrant:
        """Take up a statement. ``now``: of the engine's clock."""
        window_s = statement.window_s
        self.records = {
            name: each for name, each in self.records.items() if not each.ends_with(window_s, now)
        }
        before = self.records.get(process)
        if before is not None and before.sequence >= statement.sequence:
            return LeaseGrant(0.0, 0.0, statement.limit, None, 0.0, spent=self.spent or 0.0)
        if statement.lasts_s and not self._account(statement, before):
            return LeaseGrant(0.0, 0.0, 0.0, None, 0.0, seeded=False)
        self.records.pop(process, None)
        others = sum(each.used for each in self.records.values()) + (self.spent or 0.0)
        debts = sum(each.debt for each in self.records.values())
        uses = [(now - age_s, amount) for age_s, amount in statement.uses if age_s < window_s]
        own = statement.keep + sum(amount for _, amount in uses)

        paid = max(0.0, min(statement.debt, statement.limit - others - own))
        if paid:
            uses.append((now, paid))
        debt = statement.debt - paid
        total = others + debts + own + paid + debt
        granted = _granted(statement, total)
        ends_s = now + statement.ttl_s
        record = LeaseRecord(
            statement.sequence, statement.keep + granted, ends_s, debt, statement.spent, uses
        )
        if statement.lasts_s or record.held or debt or uses:
            self.records[process] = record
        missing = total + statement.least - statement.limit
        wait_s = 0.0 if granted >= statement.least else self._wait_s(statement, missing, now)
        reset_s = max(
            (at_s for each in self.records.values() for at_s, _ in each.uses), default=now - window_s
        )
        reset_s = max(0.0, reset_s + window_s - now)
        return LeaseGrant(granted, paid, total + granted, wait_s, reset_s, spent=self.spent or 0.0)

    def _account(self, statement: LeaseStatement, before: LeaseRecord | None) -> bool:
        """Add what the process has spent since it was heard last. Whether the sum is known."""
        if self.spent is None and statement.seed is None:
            return False
        counted = statement.acknowledged if before is None else before.spent
        self.spent = max((self.spent or 0.0) + max(0.0, statement.spent - counted), statement.seed or 0.0)
        return True

    def _wait_s(self, statement: LeaseStatement, missing: float, now: float) -> float | None:
        """When so much will have become free, if nobody takes anything until then."""
        if statement.least > statement.limit or not statement.window_s:
            return None
        leaving = [use for each in self.records.values() for use in each.uses]
        leaving += [(each.ends_s, each.held) for each in self.records.values() if each.held]
        for at_s, amount in sorted(leaving):
            missing -= amount
            if missing <= 0:
                return at_s + statement.window_s - now
        return statement.window_s


def _granted(statement: LeaseStatement, total: float) -> float:
    """Of what is asked for, when so much is used."""
    need, free = statement.need, statement.limit - total
    if need <= 0 or free < statement.least:
        return 0.0
    if need < statement.chunk and total + need <= statement.limit / 2:
        need = statement.chunk
    return min(need, free)
