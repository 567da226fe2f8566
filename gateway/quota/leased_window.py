"""A rate of which this process has a part: its own use in the last minute, and a lease of more. Pure."""

from gateway.quota.pools import REFUSED_S, EngineLink, Pool
from gateway.quota.window import MINUTE_S, MinuteWindow, WindowSlot
from gateway.storage.leases.rules import LeaseGrant

RATE_TTL_S = 5.0
"""For how long a lease of requests or tokens may be used."""


class LeasedWindow(Pool, MinuteWindow):
    """This process's part of a rate: what it used in the last minute, and what it may yet use."""

    window_s = MINUTE_S
    ttl_s = RATE_TTL_S
    step_s = 1.0

    def __init__(self, key: str, limit: int, link: EngineLink) -> None:
        MinuteWindow.__init__(self, limit)
        Pool.__init__(self, key, limit, link)
        self._taken_locally = 0

    def change(self, limit: int) -> None:
        """The limit is another one from the next lease on."""
        self.limit = self.most = limit

    def has(self, amount: float, now: float) -> bool:
        """See :class:`Pool`."""
        self.advance(now)
        if amount <= self._usable(now):
            return True
        return self.link.local(now) and self._fits_share(amount, now)

    def fits(self, amount: int, now: float) -> bool:
        """See :class:`MinuteWindow`."""
        return self.has(amount, now)

    def _usable(self, now: float) -> float:
        return self.held if now < self.ends_s else 0.0

    def _fits_share(self, amount: float, now: float) -> bool:
        """Of what was free when the engine was heard last, this process takes its part and no more for a
        minute: the others' use still counts, though it cannot be seen."""
        if self.used + self.debt + amount > self.link.share(self.limit):
            return False
        if now >= self.seen_s + MINUTE_S:
            return True
        free = self.link.share(max(0, int(self.limit - self.seen_used)))
        return self._taken_locally + amount <= free

    def take(self, amount: int, at_s: float) -> WindowSlot:
        """See :class:`MinuteWindow`."""
        if amount <= self._usable(at_s):
            self.held -= amount
            self.unsaid = True
        else:
            self._taken_locally += amount
            self.dirty = True
        self.touch(at_s)
        return super().take(amount, at_s)

    def settle(self, slot: WindowSlot, taken: int, actual: int, now: float) -> None:
        """See :class:`MinuteWindow`. What is given back is leased to whoever asks first."""
        super().settle(slot, taken, actual, now)
        if actual != taken:
            self.dirty = True
            self.link.activate(self)

    def _pay(self, at_s: float) -> None:
        """The engine says when there is room for debt; this process's share has some while it is away."""
        if self.link.local(at_s):
            amount = min(self.debt, self.link.share(self.limit) - self.used)
            if amount > 0:
                self.debt -= amount
                super().take(amount, at_s)

    def wait_s(self, amount: int, now: float) -> float | None:
        """See :class:`MinuteWindow`; as the engine said when it refused."""
        if amount > self.limit:
            return None
        if self.has(amount, now):
            return 0.0
        if self.link.local(now):
            first_s = next((each.last_s for each in self._slots if each.amount), now)
            return max(REFUSED_S, first_s + MINUTE_S - now if self.used else REFUSED_S)
        return self.refused_wait_s(now)

    def remaining(self, now: float) -> int:
        """What all processes together may take, as far as the engine has said; this one's share while it is
        away."""
        self.advance(now)
        if self.link.local(now):
            return max(0, self.link.share(self.limit) - self.used - self.debt)
        usable = int(self._usable(now))
        if now < self.seen_s + MINUTE_S:
            return max(0, int(self.limit - self.seen_used) + usable)
        return max(usable, self.limit - self.used - self.debt)

    def used_by_all(self, now: float) -> int:
        """See :class:`MinuteWindow`; this process's while its share holds."""
        own = super().used_by_all(now)
        return own if self.link.local(now) else max(own, self.limit - self.remaining(now))

    def share(self, now: float) -> int | None:
        """See :class:`MinuteWindow`."""
        return self.link.share(self.limit) if self.link.local(now) else None

    def reset_s(self, now: float) -> float:
        """See :class:`MinuteWindow`; of this process's use and, as the engine said, the others'."""
        self.advance(now)
        own = next((each.last_s + MINUTE_S - now for each in reversed(self._slots) if each.amount), 0.0)
        return max(own, self._reset_at_s - now) if self.seen_s > now - MINUTE_S else own

    _reset_at_s = float("-inf")

    @property
    def empty(self) -> bool:
        """Nothing counts, as far as was looked."""
        return not (self.used or self.debt or self.held)

    @property
    def in_use(self) -> bool:
        """See :class:`Pool`."""
        return not self.empty

    def due(self, now: float) -> bool:
        """See :class:`Pool`; a debtor asks for room every second."""
        return super().due(now) or (self.debt > 0 and now >= self._said_s + 1.0)

    @property
    def finished(self) -> bool:
        """See :class:`Pool`."""
        return super().finished and not self.debt

    def _keep(self, now: float) -> float:
        if now >= self.ends_s:
            self.held = 0.0
        return self.held

    def _in_use(self) -> float:
        return 0.0

    def _terms(self, now: float) -> dict[str, object]:
        self.advance(now)
        uses = tuple((max(0.0, now - each.last_s), float(each.amount)) for each in self._slots if each.amount)
        if self.link.away_s is None and not self.link.local(now):
            self._taken_locally = 0
        return {"uses": uses, "debt": float(self.debt)}

    def _take_up(self, keep: float, grant: LeaseGrant, spent: float, now: float) -> None:
        self.held += grant.granted
        self._reset_at_s = now + grant.reset_s
        paid = min(self.debt, int(grant.paid))
        if paid:
            self.debt -= paid
            super().take(paid, now)
