"""How much was taken in the last minute, against a limit, and what is owed beyond it. Pure; ``now`` in
seconds of one clock that does not go back."""

from collections import deque

MINUTE_S = 60.0

STEP_S = 0.25
"""What is taken within such a time leaves together, with the last of it: a window has some 240 slots at
most, whatever its limit, and no 60 s ever see more than the limit."""


class WindowSlot:
    """What was taken at about one time. ``live`` until it has left the window."""

    __slots__ = ("amount", "first_s", "last_s", "live")

    def __init__(self, amount: int, at_s: float) -> None:
        self.amount = amount
        self.first_s = self.last_s = at_s
        self.live = True


class MinuteWindow:
    """A sliding window of a minute over whole amounts: requests, or tokens.

    What is taken counts from then on for 60 s (up to ``STEP_S`` more). What was given back counts no
    more. What turned out to be more than was taken is owed: it takes room as soon as there is some,
    before anybody else, for a minute, so that what was overdrawn is paid for in the minutes after.

    Always ``0 <= used``, and ``used <= limit`` unless the limit was lowered since.
    """

    __slots__ = ("_slots", "debt", "limit", "used")

    step_s = STEP_S

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.debt = 0
        self._slots: deque[WindowSlot] = deque()

    def wait_s(self, amount: int, now: float) -> float | None:
        """In how many seconds ``amount`` may be taken if nothing else is; 0.0: now; None: never."""
        self.advance(now)
        if amount > self.limit:
            return None
        missing = self.used + self.debt + amount - self.limit
        return max(0.0, self._left_s(missing) - now) if missing > 0 else 0.0

    def fits(self, amount: int, now: float) -> bool:
        """Whether ``amount`` may be taken now."""
        self.advance(now)
        return self.used + self.debt + amount <= self.limit

    def take(self, amount: int, at_s: float) -> WindowSlot:
        """Take it. Ask :meth:`fits` first."""
        self.used += amount
        slots = self._slots
        newest = slots[-1] if slots else None
        if newest is not None and newest.last_s <= at_s < newest.first_s + self.step_s:
            newest.amount += amount
            newest.last_s = at_s
            return newest
        slot = WindowSlot(amount, at_s)
        if newest is None or newest.last_s <= at_s:
            slots.append(slot)
        else:  # a debt paid when nobody looked
            slots.insert(sum(each.last_s <= at_s for each in slots), slot)
        return slot

    def settle(self, slot: WindowSlot, taken: int, actual: int, now: float) -> None:
        """What was ``taken`` was ``actual`` in truth: give back, or owe."""
        self.advance(now)
        if actual > taken:
            self.debt += actual - taken
        elif slot.live:
            slot.amount -= taken - actual
            self.used -= taken - actual
        if self.debt:
            self._pay(now)

    def remaining(self, now: float) -> int:
        """What may be taken now."""
        self.advance(now)
        return max(0, self.limit - self.used - self.debt)

    def used_by_all(self, now: float) -> int:
        """What counts against the limit, of all processes that share it, as far as is known."""
        return self.used + self.debt

    def share(self, now: float) -> int | None:
        """What this process may use while the limit cannot be shared; None: all of it, or it is shared."""
        return None

    def reset_s(self, now: float) -> float:
        """In how many seconds all of the limit may be taken again, if nothing is until then."""
        self.advance(now)
        if self.debt:
            return self._left_s(self.used + self.debt - self.limit) + MINUTE_S - now
        for slot in reversed(self._slots):
            if slot.amount:
                return slot.last_s + MINUTE_S - now
        return 0.0

    @property
    def empty(self) -> bool:
        """Nothing counts, as far as was looked."""
        return not (self.used or self.debt)

    def advance(self, now: float) -> None:
        """Remove what was used more than a minute ago. Debt is paid as of the moment at which there was room
        for it."""
        slots = self._slots
        while slots and slots[0].last_s + MINUTE_S <= now:
            gone = slots.popleft()
            gone.live = False
            self.used -= gone.amount
            if self.debt:
                self._pay(gone.last_s + MINUTE_S)
        if self.debt:
            self._pay(now)

    def _pay(self, at_s: float) -> None:
        amount = min(self.debt, self.limit - self.used)
        if amount > 0:
            self.debt -= amount
            self.take(amount, at_s)

    def _left_s(self, amount: int) -> float:
        """When ``amount`` of what is used, and of debts paid meanwhile, will have left the window. While
        there is debt, room that becomes free is taken by debt at once, and becomes free again a minute
        later."""
        rounds, rest = 0, amount - 1
        if amount > self.used:
            paid = min(self.used, self.limit)
            rounds, rest = divmod(amount - self.used - 1, paid)
            rounds, rest = rounds + 1, rest + self.used - paid
        for slot in self._slots:
            rest -= slot.amount
            if rest < 0:
                return slot.last_s + MINUTE_S * (rounds + 1)
        raise AssertionError("the slots are what is used")
