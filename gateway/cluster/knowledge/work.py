"""Work that this process gave, as it is told, and work that others gave, each slice of it entered once. Pure.

What was given between two documents is a slice. A document has the last few of them, so that a reader who
missed some documents misses nothing. Slices have numbers that grow, and incarnations of a process have, so
that no clock is asked which is new: documents may come twice or in any order.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from gateway.cluster.knowledge.document import Slice
from gateway.scheduling.queue.foreign import WorkKey

SLICES = 8
"""In a document: so many may be written while another process reads none."""


class GivenWork:
    """What this process gave."""

    def __init__(self) -> None:
        self._slices: deque[Slice] = deque(maxlen=SLICES)
        self._number = 0

    def add(self, given: Mapping[WorkKey, float]) -> None:
        """So much was given since this was called last."""
        if given:
            self._number += 1
            self._slices.append((self._number, dict(given)))

    def told(self) -> Sequence[Slice]:
        """The latest slices, the oldest first."""
        return tuple(self._slices)


class HeardWork:
    """What the others gave."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, int]] = {}
        """The incarnation of each process, and the number of its latest slice that was entered."""

    def enter(self, process: str, incarnation: int, slices: Sequence[Slice]) -> dict[WorkKey, float]:
        """What is new in ``slices``; from then on it is not. Nothing is, of an earlier incarnation."""
        before, latest = self._latest.get(process, (incarnation, 0))
        if incarnation < before:
            return {}
        if incarnation > before:
            latest = 0
        new: dict[WorkKey, float] = {}
        entered = latest
        for number, given in slices:
            if number > latest:
                entered = max(entered, number)
                for key, amount in given.items():
                    new[key] = new.get(key, 0.0) + amount
        self._latest[process] = incarnation, entered
        return new

    def forget_all_but(self, processes: Collection[str]) -> None:
        """There are no others any more."""
        self._latest = {name: each for name, each in self._latest.items() if name in processes}
