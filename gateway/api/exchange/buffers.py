"""The memory that request bodies may take: of all requests together, of each tenant and of each key.

A body reserves what has arrived of it, not what it announces, so that announcing costs nobody else anything.
Nobody may take everything: a tenant has three quarters of what the other tenants leave, a key three quarters
of what the other keys of its tenant leave of that. However much the others hold, some room is left for
whoever comes next; tenants that all want as much as they can get end with equal parts. Bodies of up to
:data:`~gateway.runtime.pressure.SMALL_BYTES` have a part of the memory that no larger one gets.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from gateway.domain.errors import BuffersFull
from gateway.runtime.pressure import SMALL_BYTES

STEP_BYTES = 64 * 1024
"""A body that is not small reserves so much at a time."""

SMALL_PART = 8
"""One part in so many is kept for small bodies."""


class BufferOwner(NamedTuple):
    """Whose body it is. Keys of different tenants are different, whatever their ids."""

    tenant: str = ""
    key: str = ""


NOBODY = BufferOwner()

buffer_owner = lru_cache(maxsize=4096)(BufferOwner)
"""Made once for those whose requests come again and again."""


class _Tenant:
    """What a tenant holds of a pool, by all of its keys."""

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0


class _Account:
    """What a key holds of a pool."""

    __slots__ = ("held_bytes", "pool", "tenant")

    def __init__(self, pool: "_Pool", tenant: _Tenant) -> None:
        self.pool = pool
        self.tenant = tenant
        self.held_bytes = 0

    def give_back(self, size_bytes: int) -> None:
        self.pool.used_bytes -= size_bytes
        self.tenant.held_bytes -= size_bytes
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0


EMPTY_ACCOUNTS = 1024
"""So many accounts are kept of those who hold nothing: most come again."""


class _Pool:
    """A part of the memory, shared out by tenants and keys. Counts in bytes; forgets those who hold none,
    many at a time."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._first_bytes = limit_bytes * 3 // 4 * 3 // 4
        """What anybody may hold while nobody holds any."""
        self.used_bytes = 0
        self._tenants: dict[str, _Tenant] = {}
        self._accounts: dict[BufferOwner, _Account] = {}
        self._most_accounts = EMPTY_ACCOUNTS
        """With so many it is looked who holds none."""

    def most(self, owner: BufferOwner) -> int:
        """How much ``owner``'s key may hold in all, as long as the others hold what they do."""
        return self._most(self._accounts.get(owner) or self._open(owner))

    def take(self, owner: BufferOwner, size_bytes: int) -> _Account | None:
        """Who has it, where there was room for so much more; nothing has changed where there was not."""
        account = self._accounts.get(owner) or self._open(owner)
        held_bytes = account.held_bytes + size_bytes
        if (self.used_bytes or size_bytes > self._first_bytes) and held_bytes > self._most(account):
            return None
        self.used_bytes += size_bytes
        account.held_bytes = held_bytes
        account.tenant.held_bytes += size_bytes
        return account

    def _most(self, account: _Account) -> int:
        tenant_bytes = account.tenant.held_bytes
        of_tenant = (self.limit_bytes - self.used_bytes + tenant_bytes) * 3 // 4
        of_key = (of_tenant - tenant_bytes + account.held_bytes) * 3 // 4
        return of_key if of_key > 0 else 0

    def _open(self, owner: BufferOwner) -> _Account:
        if len(self._accounts) >= self._most_accounts:
            self._forget()
        tenant = self._tenants.get(owner.tenant)
        if tenant is None:
            tenant = self._tenants[owner.tenant] = _Tenant()
        account = self._accounts[owner] = _Account(self, tenant)
        return account

    def _forget(self) -> None:
        """Those who hold none. At least as many come before the next time as are left."""
        self._accounts = {owner: each for owner, each in self._accounts.items() if each.held_bytes}
        self._tenants = {name: each for name, each in self._tenants.items() if each.held_bytes}
        self._most_accounts = EMPTY_ACCOUNTS + 2 * len(self._accounts)


class BufferBudget:
    """Counts the bytes of request bodies that are held; being full is :class:`BuffersFull`, said at once.

    What a body reserved it keeps until its exchange is over, because a retry may need the bytes again.
    Waiting for room instead of refusing could lock: many half-read bodies, each waiting for the others. What
    the server itself holds of a body that nobody has asked for yet (64 KiB, and one read of the socket) comes
    on top.
    """

    def __init__(self, limit_bytes: int, check: Callable[[int], None] = lambda size_bytes: None) -> None:
        """``check`` is asked before a body is to be ``size_bytes`` long, and raises if it may not be."""
        self.limit_bytes = limit_bytes
        self.check = check
        self.small = _Pool(limit_bytes // SMALL_PART)
        self.large = _Pool(limit_bytes - limit_bytes // SMALL_PART)
        self.longest_bytes = self.large.limit_bytes * 3 // 4 * 3 // 4
        """The longest body that could be held while nobody else holds any."""
        self._announced: dict[BufferOwner, int] = {}

    @property
    def used_bytes(self) -> int:
        return self.small.used_bytes + self.large.used_bytes

    def announce(self, owner: BufferOwner, size_bytes: int) -> None:
        """A body of this length begins. Raises :class:`BuffersFull` where those of the same key, each as long
        as it announced, would be more than the key may hold: better now than half-way. What others announce
        counts for nothing. Ended by :meth:`withdraw`."""
        before_bytes = self._announced.get(owner, 0)
        if size_bytes > SMALL_BYTES and before_bytes + size_bytes > self.large.most(owner):
            raise full()
        self._announced[owner] = before_bytes + size_bytes

    def withdraw(self, owner: BufferOwner, size_bytes: int) -> None:
        self._announced[owner] -= size_bytes
        if not self._announced[owner]:
            del self._announced[owner]


class BodyReservation:
    """One body's share of the budget. Grows with the body, given back once."""

    __slots__ = ("_account", "_announced_bytes", "_budget", "_held_bytes", "_owner")

    def __init__(self, budget: BufferBudget, owner: BufferOwner = NOBODY) -> None:
        self._budget = budget
        self._owner = owner
        self._account: _Account | None = None
        """Who has it; None: nothing is held."""
        self._held_bytes = 0
        self._announced_bytes = 0

    def announce(self, size_bytes: int) -> None:
        """The body is to be so long. Raises :class:`BuffersFull`, and whatever the budget's check raises."""
        self._budget.check(size_bytes)
        self._budget.announce(self._owner, size_bytes)
        self._announced_bytes += size_bytes

    def take_small(self, size_bytes: int) -> None:
        """Hold a small body that is here whole. Raises as :meth:`grow` does."""
        budget, owner = self._budget, self._owner
        budget.check(size_bytes)
        account = budget.large.take(owner, size_bytes) or budget.small.take(owner, size_bytes)
        if account is None:
            raise full()
        self._account = account
        self._held_bytes = size_bytes

    def grow(self, size_bytes: int) -> None:
        """Make sure that ``size_bytes`` in all are reserved. Raises :class:`BuffersFull`, and whatever the
        budget's check raises."""
        if size_bytes <= self._held_bytes:
            return
        self._budget.check(size_bytes)
        small, large = self._budget.small, self._budget.large
        if size_bytes > SMALL_BYTES:
            size_bytes = -(-size_bytes // STEP_BYTES) * STEP_BYTES
            fits = self._move(large, size_bytes)
        else:
            here = large if self._account is None else self._account.pool
            fits = self._move(here, size_bytes) or self._move(small, size_bytes)
        if not fits:
            raise full()

    def _move(self, pool: _Pool, size_bytes: int) -> bool:
        """Hold so much in ``pool`` and nothing elsewhere. False, and nothing has changed, without room."""
        before = self._account
        here = before is not None and before.pool is pool
        account = pool.take(self._owner, size_bytes - self._held_bytes if here else size_bytes)
        if account is None:
            return False
        if before is not None and not here:
            before.give_back(self._held_bytes)
        self._account, self._held_bytes = account, size_bytes
        return True

    def release(self) -> None:
        """Idempotent."""
        account, self._account = self._account, None
        if account is not None:
            account.give_back(self._held_bytes)
            self._held_bytes = 0
        if self._announced_bytes:
            announced_bytes, self._announced_bytes = self._announced_bytes, 0
            self._budget.withdraw(self._owner, announced_bytes)


def full() -> BuffersFull:
    return BuffersFull(
        "The memory that this gateway has for request bodies, or the part of it that one key may take, is in "
        "use; send the request again shortly."
    )
