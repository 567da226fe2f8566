"""Whose turn it is among all who wait for one model: tiers, shares within them, ageing.
Pure data.

Realtime goes before standard, standard before batch; within a tier those whose answer has begun go
first, their clients are in the middle of a sentence, and then tenants have fair shares
(:mod:`gateway.scheduling.queue.fair`).

**Ageing.** A tier in which somebody has waited for ``ageing_s`` gets every tenth slot, and one each
``ageing_s`` where slots come free more seldom, but not more than one in three. So however many requests
of higher tiers come, the k-th in the order of its tier has its slot after ``ageing_s`` + k × (eleven
departures, or ``ageing_s`` and four departures, whichever is sooner).
"""

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from gateway.scheduling.queue.fair import SLACK_WORK, T, TenantQueue, TierQueue
from gateway.scheduling.queue.heap import Entry, Heap, Key, M


class QueueScan(Generic[T]):
    """Turn after turn, as if each had been given its slot. To be undone before anything else is done.

    Lines are taken from their heaps as they are reached. Those of a tenant who got something meanwhile
    are kept here, where their keys are those of the look.
    """

    def __init__(self, share: TierQueue[T], left: Mapping[Hashable, int]) -> None:
        """At most ``left`` members of each lane are shown; the owner of ``left`` counts it down."""
        share.arrange_lines()
        self._share = share
        self._left = left
        self._virtual: dict[object, float] = {}
        """Virtual times of the tenants that got something."""
        self._touched: list[tuple[Key, int, TenantQueue[T]]] = []
        self._numbers = itertools.count()
        self._taken: list[tuple[Heap[Any], tuple[Key, int, Any]]] = []

    def next(self) -> T | None:
        """The next request that fits; None when there is none."""
        return self._next_begun() or self._next_in_line()

    def undo(self) -> None:
        """Put everything back to where it was."""
        while self._taken:
            heap, entry = self._taken.pop()
            heap.put_back(entry)

    def _next_begun(self) -> T | None:
        best: tuple[int, Heap[T]] | None = None
        for lane, heap in self._share.begun.items():
            turn = heap.first() if self._left.get(lane) else None
            if turn is not None and (best is None or turn.number < best[0]):
                best = turn.number, heap
        return None if best is None else self._take_first(best[1])

    def _next_in_line(self) -> T | None:
        line = self._first_line()
        if line is None:
            return None
        turn = self._take_first(line.turns)
        flow = line.flow
        virtual = self._virtual.get(flow)
        self._virtual[flow] = self._share.after(flow, turn, virtual)
        self._keep(line)
        return turn

    def _first_line(self) -> TenantQueue[T] | None:
        """The line whose turn it is; it is taken out."""
        best: tuple[Key, Heap[TenantQueue[T]]] | None = None
        for lane, heap in self._share.lanes.items():
            entry = self._fresh(heap) if self._left.get(lane) else None
            if entry is not None and (best is None or entry < best[0]):
                best = entry, heap
        kept = self._first_touched()
        if kept is not None and (best is None or kept[0] < best[0]):
            return heapq.heappop(self._touched)[2]
        return None if best is None else self._take_first(best[1])

    def _fresh(self, heap: Heap[TenantQueue[T]]) -> Key | None:
        """The key of the first line of a heap whose tenant got nothing yet; the others are kept here."""
        while (line := heap.first()) is not None and line.flow in self._virtual:
            self._keep(self._take_first(heap))
        return None if line is None or line.entry is None else line.entry[0]

    def _first_touched(self) -> tuple[Key, int, TenantQueue[T]] | None:
        while self._touched:
            key, _, line = self._touched[0]
            if not self._left.get(line.lane):
                heapq.heappop(self._touched)
            elif key != (now := self._key(line)):
                heapq.heapreplace(self._touched, (now, next(self._numbers), line))
            else:
                return self._touched[0]
        return None

    def _keep(self, line: TenantQueue[T]) -> None:
        if line.turns.first() is not None:
            heapq.heappush(self._touched, (self._key(line), next(self._numbers), line))

    def _key(self, line: TenantQueue[T]) -> Key:
        first = line.turns.first()
        assert first is not None
        return self._share.key(self._virtual[line.flow], first)

    def _take_first(self, heap: Heap[M]) -> M:
        entry = heap.take_first()
        assert entry is not None
        self._taken.append((heap, entry))
        return entry[2]


TIERS = 3

AGED_EVERY = 10
"""A tier with a request that has waited for ``ageing_s`` gets one in this many slots."""

AGED_AT_MOST = 3
"""It gets at most one in this many."""

_SLACK = 16


class QueueOrder(Generic[T]):
    """The requests that wait for one model."""

    def __init__(
        self, weights: Mapping[str, float], ageing_s: float, now: float, slack: float = SLACK_WORK
    ) -> None:
        """``weights`` are of tenants; those not named have 1."""
        self._tiers = [_Tier(TierQueue[T](weights, now, slack), ageing_s) for _ in range(TIERS)]
        self._given = 0
        """Slots so far."""

    def reweigh(self) -> None:
        """Apply the changed weights."""
        for tier in self._tiers:
            tier.share.reweigh()

    def put(self, turn: T, now: float) -> None:
        """``turn`` waits from ``now`` on."""
        self._tiers[turn.rank].put(turn, now)

    def remove(self, turn: T) -> None:
        """``turn`` leaves without a slot."""
        self._tiers[turn.rank].share.remove(turn)

    def depart(self, turn: T, now: float) -> None:
        """``turn`` leaves for a slot."""
        tier = self._tiers[turn.rank]
        tier.share.remove(turn)
        tier.share.charge(turn, now)
        self._given += 1
        tier.ageing.served(self._given, now)

    def depart_alone(self, turn: T, since_s: float, now: float) -> None:
        """``turn`` leaves for a slot, and has waited since ``since_s``: the same as :meth:`put` and
        :meth:`depart`, for one beside which nobody waited in line."""
        tier = self._tiers[turn.rank]
        tier.share.charge_alone(turn, since_s)
        self._given += 1
        tier.ageing.served_at, tier.ageing.served_s = self._given, now

    def settle(self, turn: T, work: float, now: float) -> None:
        """Charge the tenant of ``turn`` what it really cost."""
        self._tiers[turn.rank].share.settle(turn, work, now)

    def record_given(self, shared: bool = True) -> None:
        """Whether :meth:`take_given` is called from now on, because there are other gateways."""
        for tier in self._tiers:
            tier.share.given = {} if shared else None

    def take_given(self) -> dict[tuple[int, str], float]:
        """The work given to each tenant, by rank and tenant, since this was called last; corrections of what
        was told before may be below 0."""
        taken: dict[tuple[int, str], float] = {}
        for rank, tier in enumerate(self._tiers):
            if given := tier.share.given:
                tier.share.given = {}
                taken |= {(rank, tenant): work for tenant, work in given.items() if work}
        return taken

    def note_elsewhere(self, told: Mapping[tuple[int, str], float], now: float) -> None:
        """The work that other gateways gave tenants, by rank and tenant, since this was called last. It
        counts as if it had been given here."""
        for rank, tier in enumerate(self._tiers):
            if of_tier := {who: work for (of, who), work in told.items() if of == rank}:
                tier.share.note_elsewhere(of_tier, now)

    def first(self, limits: Mapping[Any, int], now: float) -> list[T]:
        """The next turns, in their order: of each lane no more than its limit. They stay where they
        are."""
        tiers = self._tiers
        present = [rank for rank in range(TIERS) if tiers[rank].share.count]
        alone = len(present) == 1
        if alone and (line := tiers[present[0]].share.only_line_turns(limits)) is not None:
            return line
        left, given = dict(limits), self._given
        looks = {rank: QueueScan(tiers[rank].share, left) for rank in present}
        ageing = () if alone else tuple(tier.ageing.copy() for tier in tiers)
        turns: list[T] = []
        slots = sum(left.values())
        while slots > 0:
            order = present if alone else self._order(present, ageing, given, now)
            found = next((turn for rank in order if (turn := looks[rank].next())), None)
            if found is None:
                break
            turns.append(found)
            slots -= 1
            left[found.lane] -= 1
            given += 1
            if ageing:
                ageing[found.rank].served(given, now)
        for look in looks.values():
            look.undo()
        return turns

    def wait_s(self, rank: int, tenant: str, departures_per_s: float, now: float) -> float:
        """How long a request of this tier and tenant that comes now would probably wait for one of
        ``departures_per_s`` slots a second, more than 0. Others who come meanwhile go before it as they did
        of late; a tier that is passed over has what ageing gives it."""
        left_per_s = self.left_per_s(rank, departures_per_s, now)
        ahead = self.ahead_of(rank - 1) + self._tiers[rank].share.ahead_of(tenant, left_per_s, now)
        return (ahead + 1) / left_per_s

    def left_per_s(self, rank: int, departures_per_s: float, now: float) -> float:
        """How many of ``departures_per_s`` slots a second higher tiers leave to this one."""
        coming_per_s = sum(tier.share.arrivals.per_s(now) for tier in self._tiers[:rank])
        return max(departures_per_s - coming_per_s, departures_per_s / AGED_EVERY)

    def ahead_of(self, rank: int) -> int:
        """How many wait in this tier and those above it."""
        return sum(tier.share.count for tier in self._tiers[: rank + 1])

    def weight(self) -> float:
        """The sum of the weights of the tenants whose requests wait, each once a tier."""
        return sum(tier.share.weight() for tier in self._tiers)

    def oldest(self) -> list[float | None]:
        """For each rank, since when its oldest request waits; None if none waits."""
        return [tier.oldest_s() for tier in self._tiers]

    def _order(self, present: list[int], ageing: "Sequence[_Ageing]", given: int, now: float) -> list[int]:
        """Tiers in the order in which they may have the next slot, after ``given`` slots."""
        due = [
            rank
            for rank in present
            if rank and ageing[rank].may_be_due(given, now) and self._tiers[rank].aged(now)
        ]
        if not due:
            return present
        due.sort(key=lambda rank: ageing[rank].served_s)
        return [*due, *(rank for rank in present if rank not in due)]


@dataclass(slots=True)
class _Ageing:
    """How long one tier has been passed over."""

    ageing_s: float
    served_at: int = 0
    served_s: float = float("-inf")

    def copy(self) -> "_Ageing":
        return _Ageing(self.ageing_s, self.served_at, self.served_s)

    def served(self, given: int, now: float) -> None:
        """Slot number ``given`` was its own."""
        self.served_at, self.served_s = given, now

    def may_be_due(self, given: int, now: float) -> bool:
        passed = given - self.served_at
        if passed < AGED_EVERY - 1:
            return passed >= AGED_AT_MOST - 1 and now - self.served_s >= self.ageing_s
        return True


class _Tier(Generic[T]):
    """A tier's share, and how long its oldest has waited."""

    def __init__(self, share: TierQueue[T], ageing_s: float) -> None:
        self.share = share
        self.ageing = _Ageing(ageing_s)
        self._came: deque[tuple[float, T, Entry | None]] = deque()

    def put(self, turn: T, now: float) -> None:
        self.share.put(turn, now)
        self._came.append((now, turn, turn.entry))
        if len(self._came) > 2 * self.share.count + _SLACK:
            self._came = deque(each for each in self._came if each[1].entry is each[2])

    def aged(self, now: float) -> bool:
        """Whether a request in it has waited for ``ageing_s``."""
        oldest_s = self.oldest_s()
        return oldest_s is not None and now - oldest_s >= self.ageing.ageing_s

    def oldest_s(self) -> float | None:
        """Since when the first of them waits."""
        came = self._came
        while came and came[0][1].entry is not came[0][2]:
            came.popleft()
        return came[0][0] if came else None
