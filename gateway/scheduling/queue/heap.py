"""A heap whose members may leave from the middle or change their keys. Pure data."""

import heapq
import itertools
from typing import Generic, TypeVar

Key = tuple[float, ...]

_numbers = itertools.count()
_SLACK = 16
_FEW = 4
"""If at most a quarter of the members are wanted, taking them out one by one is cheaper than sorting all."""


class Member:
    """Something with a place in one heap at a time."""

    __slots__ = ("entry",)

    entry: "Entry | None"
    """Its place; None while it has none."""


Entry = tuple[Key, int, Member]
"""Smallest first; equal keys in the order in which they were put."""

M = TypeVar("M", bound=Member)


def place(key: Key, member: M) -> tuple[Key, int, M]:
    """A place for ``member``, which must have none."""
    assert member.entry is None
    entry = key, next(_numbers), member
    member.entry = entry
    return entry


class Heap(Generic[M]):
    """A heap whose members can leave from anywhere: entries that were removed stay in its list until they
    surface or outnumber the others.

    Every operation takes logarithmic time, averaged over many.
    """

    __slots__ = ("_entries", "count")

    def __init__(self) -> None:
        self._entries: list[tuple[Key, int, M]] = []
        self.count = 0

    def put(self, key: Key, member: M) -> None:
        """``member`` must have no place anywhere."""
        self.insert(place(key, member))

    def insert(self, entry: tuple[Key, int, M]) -> None:
        """Insert an entry that :func:`place` made and that is in no heap yet."""
        heapq.heappush(self._entries, entry)
        self.count += 1

    def remove(self, member: M) -> None:
        """Remove ``member``, wherever it is in the heap."""
        assert member.entry is not None
        member.entry = None
        self.count -= 1
        if len(self._entries) > 2 * self.count + _SLACK:
            self._entries = [entry for entry in self._entries if entry[2].entry is entry]
            heapq.heapify(self._entries)

    def first(self) -> M | None:
        """The member whose key is the smallest; None when the heap is empty."""
        entries = self._entries
        while entries and entries[0][2].entry is not entries[0]:
            heapq.heappop(entries)
        return entries[0][2] if entries else None

    def smallest(self, most: int) -> list[M]:
        """The ``most`` first members, in order. They stay in the heap."""
        if _FEW * most < self.count:
            taken = [entry for _ in range(most) if (entry := self.take_first()) is not None]
            for entry in taken:
                self.put_back(entry)
            return [entry[2] for entry in taken]
        entries = sorted(entry for entry in self._entries if entry[2].entry is entry)
        return [entry[2] for entry in entries[:most]]

    def take_first(self) -> tuple[Key, int, M] | None:
        """Take out the first temporarily: it keeps its place and must be :meth:`put_back`-ed again before
        anything else is done with it."""
        return heapq.heappop(self._entries) if self.first() is not None else None

    def put_back(self, entry: tuple[Key, int, M]) -> None:
        """Put back an entry that :meth:`take_first` returned."""
        heapq.heappush(self._entries, entry)
