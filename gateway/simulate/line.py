"""Those who wait in the simulated gateway. First come, first served; another order can take its place."""

from collections import OrderedDict
from itertools import islice
from typing import Protocol

from gateway.scheduling.base import Waiting


class Line(Protocol):
    """Everybody who waits for a slot, in order of turns."""

    def __len__(self) -> int: ...
    def enter(self, item: Waiting, now: float) -> None:
        """A request came."""
        ...

    def come_back(self, item: Waiting, now: float) -> None:
        """A request that left for a slot lost it, and has its turn again."""
        ...

    def leave(self, item: Waiting, now: float, *, departed: bool) -> None:
        """For a slot (``departed``), or because nobody wants it any more."""
        ...

    def settle(self, item: Waiting, work: float) -> None:
        """What it cost in the end, in the unit of :func:`~gateway.scheduling.base.estimated_work`."""
        ...

    def front(self, limit: int, now: float) -> list[Waiting]:
        """The next ``limit``. They stay where they are."""
        ...


class FirstCome:
    """A :class:`Line` without any favour."""

    def __init__(self) -> None:
        self._items: OrderedDict[int, Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def enter(self, item: Waiting, now: float) -> None:
        self._items[item.number] = item

    def come_back(self, item: Waiting, now: float) -> None:
        self._items[item.number] = item
        self._items.move_to_end(item.number, last=False)

    def leave(self, item: Waiting, now: float, *, departed: bool) -> None:
        del self._items[item.number]

    def settle(self, item: Waiting, work: float) -> None:
        """Nobody pays here."""

    def front(self, limit: int, now: float) -> list[Waiting]:
        return list(islice(self._items.values(), limit))
