"""A look at the next turns of one tier, which changes nothing that lasts. Pure data."""

import heapq
import itertools
from collections.abc import Hashable, Mapping
from typing import Any, Generic

from gateway.scheduling.queue.fair import T, TenantQueue, TierQueue
from gateway.scheduling.queue.heap import Heap, Key, M


class QueueScan(Generic[T]):
    """Turn after turn, as if each had been given its slot. To be undone before anything else is done.

    Lines are taken from their heaps as they are reached. Those of a tenant who got something meanwhile
    are kept here, where their keys are those of the look.
    """

    def __init__(self, share: TierQueue[T], left: Mapping[Hashable, int]) -> None:
        """Of each lane no more are shown than are ``left``, which its owner counts down."""
        share.line_up()
        self._share = share
        self._left = left
        self._virtual: dict[object, float] = {}
        """Of tenants that got something."""
        self._touched: list[tuple[Key, int, TenantQueue[T]]] = []
        self._numbers = itertools.count()
        self._lifted: list[tuple[Heap[Any], tuple[Key, int, Any]]] = []

    def next(self) -> T | None:
        """Who is next; None when nobody is who fits."""
        return self._next_begun() or self._next_in_line()

    def undo(self) -> None:
        """Everybody is where they were."""
        while self._lifted:
            heap, entry = self._lifted.pop()
            heap.lower(entry)

    def _next_begun(self) -> T | None:
        best: tuple[int, Heap[T]] | None = None
        for lane, heap in self._share.begun.items():
            turn = heap.first() if self._left.get(lane) else None
            if turn is not None and (best is None or turn.number < best[0]):
                best = turn.number, heap
        return None if best is None else self._lift(best[1])

    def _next_in_line(self) -> T | None:
        line = self._first_line()
        if line is None:
            return None
        turn = self._lift(line.turns)
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
        return None if best is None else self._lift(best[1])

    def _fresh(self, heap: Heap[TenantQueue[T]]) -> Key | None:
        """The key of the first line of a heap whose tenant got nothing yet; the others are kept here."""
        while (line := heap.first()) is not None and line.flow in self._virtual:
            self._keep(self._lift(heap))
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

    def _lift(self, heap: Heap[M]) -> M:
        entry = heap.lift()
        assert entry is not None
        self._lifted.append((heap, entry))
        return entry[2]
