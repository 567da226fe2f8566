"""How the slots of one engine are divided among the sessions with a gateway's processes (PROTOCOL §4.7).

The agent alone owns its slots and lends them out. ``level = running + held`` is what a session may have in
flight: what runs for it, and slots that it holds and does not use. The levels never add up to more than the
limit, so no process needs to know of the others. An OPEN uses a held slot and changes no level.

Pure: ``now`` is an argument, in seconds, and :meth:`SlotShares.next_look` says when :meth:`SlotShares.look`
is to be called.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil, floor, inf
from typing import TypeVar

from shared.protocol.demand import Demand

UNUSED_S = 1.0
"""A session that says that requests wait, and leaves its slots unused for so long, cannot use them: its
requests are for another version or place. Until then they may be on their way."""

UNKNOWN_RTT_S = 0.05
"""The round trip of a session of which none was measured yet."""

MOST_RTT_S = 0.25
"""No longer is waited for an OPEN that may cross a lowered level. One that comes later is refused."""

T = TypeVar("T")
_NOTHING_WAITS = Demand()
_ROUNDING = 1e-9


def rendezvous_rank(key: str, of: str) -> bytes:
    """Ranks ``of`` for ``key``: the higher the better. Whoever computes it finds the same order, and when one
    of many goes, the order of the others stays (highest random weight)."""
    return sha256(f"{key}\0{of}".encode()).digest()


@dataclass(slots=True, eq=False)
class _Lent:
    """What one session has."""

    rank: bytes
    running: int = 0
    held: int = 0
    """Slots that it may use and does not."""
    asked: int = 0
    """Slots of those that run for it which another session should have: its gateway is to preempt."""
    recalled_s: list[float] = field(default_factory=list)
    """Slots taken back: until these times an OPEN that crossed the lowered level still finds one."""
    linked: bool = True
    """It has a tunnel."""
    gone: bool = False
    """It is over, and what ran for it has not left its engine."""
    demand: Demand = _NOTHING_WAITS
    waiting: int = 0
    """What ``demand`` says waits, less the requests that have come since."""
    rtt_s: float = UNKNOWN_RTT_S
    used_s: float = -inf
    """When it last began a request, or was lent a slot."""

    @property
    def level(self) -> int:
        return self.running + self.held

    @property
    def taken(self) -> int:
        """Slots that nobody else can have."""
        return self.running + self.held + len(self.recalled_s)

    def want(self, now: float) -> int:
        """How many slots it could use now."""
        unusable = self.held > 0 and now - self.used_s >= UNUSED_S
        return self.running if unusable or not self.linked else self.running + self.waiting


class SlotShares:
    """The slots of one engine. The level of a session may change with every call; ``changes`` counts calls
    that changed the level of a session other than by its own requests."""

    def __init__(self, engine: str, limit: int = 0) -> None:
        """``engine`` is what the odd slots are spread by while nothing waits."""
        self._engine = engine
        self._limit = limit
        self._sessions: dict[Hashable, _Lent] = {}
        self.changes = 0

    def __len__(self) -> int:
        """Sessions that are there."""
        return sum(not lent.gone for lent in self._sessions.values())

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def running(self) -> int:
        return sum(lent.running for lent in self._sessions.values())

    def level(self, session: Hashable) -> int:
        """How many requests ``session`` may have in flight; below what runs for it when another one should
        have some of its slots."""
        lent = self._sessions[session]
        return lent.level - lent.asked

    def spare(self, session: Hashable) -> int:
        """How far its level is above what runs for it, or below."""
        lent = self._sessions[session]
        return lent.held - lent.asked

    def held(self, session: Hashable) -> int:
        """How many more requests it may begin."""
        return self._sessions[session].held

    def recalled(self, session: Hashable) -> int:
        """Slots that were taken back from it, and that a request which is on its way still finds."""
        return len(self._sessions[session].recalled_s)

    # --- Sessions

    def add(self, session: Hashable, process: str, now: float) -> None:
        """``session`` has begun. It gets an even share of what nobody uses; ``process`` names whom it is
        with."""
        assert session not in self._sessions
        self._sessions[session] = _Lent(rendezvous_rank(self._engine, process), used_s=now)
        self._spread(now)

    def remove(self, session: Hashable, now: float) -> None:
        """``session`` is over. What runs for it keeps its slots until it has left. Idempotent."""
        lent = self._sessions.get(session)
        if lent is None or lent.gone:
            return
        lent.gone, lent.linked = True, False
        self._take_all(lent)
        self._forget_if_over(session, lent)
        self._settle(now)

    def set_linked(self, session: Hashable, linked: bool, now: float) -> None:
        """``session`` has lost its tunnel, or has one again. Without one it can begin no request."""
        lent = self._sessions[session]
        if lent.linked is linked or lent.gone:
            return
        lent.linked = linked
        if linked:
            lent.used_s = now
            self._spread(now)
        else:
            self._take_all(lent)
            self._settle(now)

    # --- What is so of them

    def set_limit(self, limit: int, now: float) -> None:
        """The engine should have ``limit`` requests at once."""
        if limit != self._limit:
            self._limit = limit
            self._settle(now)

    def set_rtt(self, session: Hashable, rtt_s: float) -> None:
        """The round trip of the session's tunnel, in seconds."""
        self._sessions[session].rtt_s = rtt_s

    def set_demand(self, session: Hashable, demand: Demand, now: float) -> None:
        """What waits at the session's process for models of the engine."""
        lent = self._sessions[session]
        if demand.waiting and not lent.waiting:
            lent.used_s = max(lent.used_s, now) if lent.held else lent.used_s
        lent.demand, lent.waiting = demand, demand.waiting
        self._settle(now)

    # --- Requests

    def enter(self, session: Hashable, now: float, *, beyond: bool = False) -> bool:
        """A request of ``session`` begins. False, and nothing has changed: it has no slot. With ``beyond`` it
        gets one all the same, which another session loses where one is unused."""
        lent = self._sessions[session]
        crossed = not lent.held
        if lent.held:
            lent.held -= 1
        elif lent.recalled_s:
            lent.recalled_s.pop()
        elif not beyond:
            return False
        lent.running += 1
        lent.used_s = now
        if lent.waiting:
            lent.waiting -= 1
        if crossed:
            self.changes += 1  # its level is higher than it was told
            self._settle(now)
        return True

    def leave(self, session: Hashable, now: float) -> None:
        """A request of ``session`` has left the engine. Its slot goes to the session furthest below its
        share; when none wants it, it stays."""
        lent = self._sessions[session]
        assert lent.running > 0, "left without having entered"
        lent.running -= 1
        if self._free > 0:
            needy = self._neediest(now)
            heir = needy if needy is not None else lent
            if heir.linked:
                self._lend(heir, now)
            self.changes += heir is not lent
        self._forget_if_over(session, lent)
        self._settle(now)

    # --- Time

    def look(self, now: float) -> None:
        """Time has passed."""
        self._settle(now)

    def next_look(self, now: float) -> float:
        """When :meth:`look` is to be called; ``inf`` when nothing depends on time."""
        times = [lent.recalled_s[0] for lent in self._sessions.values() if lent.recalled_s]
        if any(lent.waiting and lent.linked for lent in self._sessions.values()):
            unused = (lent for lent in self._sessions.values() if lent.held and lent.waiting)
            times += [at_s for lent in unused if (at_s := lent.used_s + UNUSED_S) > now]
        return min(times, default=inf)

    # --- Steps

    @property
    def _free(self) -> int:
        """Slots that no session has; below 0 when the limit fell."""
        return self._limit - sum(lent.taken for lent in self._sessions.values())

    def _lend(self, lent: _Lent, now: float) -> None:
        lent.held += 1
        lent.used_s = now

    def _take_all(self, lent: _Lent) -> None:
        lent.held, lent.asked = 0, 0
        lent.recalled_s.clear()
        lent.waiting = 0
        self.changes += 1

    def _forget_if_over(self, session: Hashable, lent: _Lent) -> None:
        if lent.gone and not lent.running:
            del self._sessions[session]

    def _settle(self, now: float) -> None:
        """Whatever has happened: every slot goes where it should be, at once or when it is safe."""
        before = [(lent.level, lent.asked) for lent in self._sessions.values()]
        for lent in self._sessions.values():
            if lent.recalled_s and lent.recalled_s[0] <= now:
                lent.recalled_s = [at_s for at_s in lent.recalled_s if at_s > now]
        free = self._free
        if free < 0:
            self._withdraw(-free, now)
        if free > 0 and len(self._sessions) == 1:
            (only,) = self._sessions.values()
            only.held += free if only.linked else 0
            free = 0
        for _ in range(free):
            heir = self._neediest(now) or self._furthest_below_even()
            if heir is None:
                break
            self._lend(heir, now)
        self._recall(now)
        self.changes += before != [(lent.level, lent.asked) for lent in self._sessions.values()]

    def _withdraw(self, count: int, now: float) -> None:
        """The limit fell: slots that nobody uses go first."""
        for lent in self._sessions.values():
            while count and lent.recalled_s:
                lent.recalled_s.pop()
                count -= 1
        while count and (holders := [lent for lent in self._sessions.values() if lent.held]):
            max(holders, key=lambda lent: (lent.held, not lent.waiting, lent.rank)).held -= 1
            count -= 1

    def _neediest(self, now: float) -> _Lent | None:
        """The session furthest below its share; None when every one has what it wants."""
        needy = [lent for lent in self._sessions.values() if lent.want(now) > lent.level]
        if len(needy) < 2:
            return needy[0] if needy else None
        shares = self._fair_shares(now)
        return max(
            needy,
            key=lambda lent: (
                round(shares[lent] - lent.level, 6),
                lent.demand.realtime > 0,
                lent.demand.oldest_wait_s,
                lent.rank,
            ),
        )

    def _fair_shares(self, now: float) -> dict[_Lent, float]:
        """The weighted max-min fair share of each session, by what it runs and wants."""
        wants = {lent: lent.want(now) for lent in self._sessions.values()}
        weights = {lent: max(lent.demand.weight, _ROUNDING) for lent in wants}
        return weighted_max_min(self._limit, wants, weights)

    def _furthest_below_even(self) -> _Lent | None:
        """Whoever an unused slot goes to that nobody wants."""
        even = self._even()
        return max(even, key=lambda lent: (even[lent] - lent.level, lent.rank), default=None)

    def _even(self) -> dict[_Lent, int]:
        """The same for each session with a tunnel, and the odd slots by rendezvous: shares of single slots by
        rendezvous alone would leave a third of the sessions without any."""
        linked = [lent for lent in self._sessions.values() if lent.linked]
        linked.sort(key=lambda lent: lent.rank, reverse=True)
        if not linked:
            return {}
        each, odd = divmod(max(0, self._limit), len(linked))
        return {lent: each + (place < odd) for place, lent in enumerate(linked)}

    def _spread(self, now: float) -> None:
        """A session has come, or has come back: slots that others do not use are recalled for it."""
        self._settle(now)
        even = self._even()
        missing = sum(max(0, even[lent] - lent.level) for lent in even)
        for _ in range(missing - sum(map(len, self._recalls()))):
            holders = [lent for lent in even if lent.held and lent.level > even[lent] and not lent.waiting]
            if not holders:
                break
            self._take_back(_least_missed(holders), now)
        self.changes += 1

    def _recalls(self) -> Iterable[Sequence[float]]:
        return (lent.recalled_s for lent in self._sessions.values())

    def _recall(self, now: float) -> None:
        """Takes unused slots back for sessions that want them, and asks for used ones where it must be."""
        for lent in self._sessions.values():
            lent.asked = 0
        if not any(lent.waiting for lent in self._sessions.values()):
            return
        shares = self._fair_shares(now)
        missing = sum(max(0, ceil(shares[lent] - _ROUNDING) - lent.level) for lent in shares)
        missing -= sum(map(len, self._recalls()))
        while missing > 0:
            spare = [lent for lent in shares if lent.held and lent.level - 1 >= shares[lent] - _ROUNDING]
            if not spare:
                break
            self._take_back(_least_missed(spare), now)
            missing -= 1
        if missing > 0:
            self._ask(shares, missing)

    def _take_back(self, lent: _Lent, now: float) -> None:
        """Its level is lower from now on, and the slot another one's when no OPEN can cross that any more."""
        lent.held -= 1
        lent.recalled_s.append(now + min(lent.rtt_s, MOST_RTT_S))
        lent.recalled_s.sort()
        self.changes += 1

    def _ask(self, shares: dict[_Lent, float], missing: int) -> None:
        """Lowers levels below what runs, for sessions with realtime requests that have less than their
        share. The slot is theirs when the gateway has preempted, or a request ended."""
        wanted = sum(
            min(lent.demand.realtime, lent.waiting, max(0, floor(shares[lent] + _ROUNDING) - lent.level))
            for lent in shares
        )
        for _ in range(min(wanted, missing)):
            above = [lent for lent in shares if lent.linked and lent.level - lent.asked - 1 >= shares[lent]]
            if not above:
                break
            max(above, key=lambda lent: (lent.level - lent.asked - shares[lent], lent.rank)).asked += 1


def _least_missed(holders: Sequence[_Lent]) -> _Lent:
    """Of sessions with unused slots the one that will hardly miss one: where nothing waits, that keeps
    another, and that began its last request the longest ago."""
    return min(holders, key=lambda lent: (lent.waiting > 0, lent.held == 1, lent.used_s, lent.rank))


def weighted_max_min(limit: float, wants: dict[T, int], weights: dict[T, float]) -> dict[T, float]:
    """Divides ``limit``: nobody gets more than it wants, and who gets less has as much by weight as any other
    who gets less, and at least as much as anybody."""
    shares: dict[T, float] = {}
    left, weight = float(max(0.0, limit)), sum(weights.values())
    for each in sorted(wants, key=lambda each: wants[each] / weights[each]):
        shares[each] = min(float(wants[each]), left * weights[each] / weight if weight > 0 else 0.0)
        left -= shares[each]
        weight -= weights[each]
    return shares
