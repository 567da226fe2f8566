"""Which deployments gateways tell each other to probe, each time once. Pure.

Hints have numbers that grow, within an incarnation of the gateway that gives them, and no times: documents
may come twice and in any order, and no clock but its teller's says which hints are old.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

HINT_S = 30.0
"""So long a hint is told."""

MOST_HINTS = 64
"""Told at once; the latest."""


@dataclass(frozen=True, slots=True)
class SuspectHint:
    """``key`` is that of a deployment that was ejected, or whose circuit opened."""

    number: int
    key: str
    reason: str


class GivenHints:
    """What this gateway tells."""

    def __init__(self) -> None:
        self._hints: deque[tuple[float, SuspectHint]] = deque(maxlen=MOST_HINTS)
        self._number = 0

    def add(self, key: str, reason: str, now: float) -> None:
        """The deployment is not well."""
        self._number += 1
        self._hints.append((now, SuspectHint(self._number, key, reason)))

    def told(self, now: float) -> list[SuspectHint]:
        """Those of late, in the order they were given."""
        while self._hints and now - self._hints[0][0] >= HINT_S:
            self._hints.popleft()
        return [hint for _, hint in self._hints]


class HeardHints:
    """What others told."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, int]] = {}
        """The incarnation of each gateway process, and the highest number of its hints."""

    def new(self, process: str, incarnation: int, hints: Iterable[SuspectHint]) -> list[SuspectHint]:
        """Those of ``hints`` that are new; from then on they are not."""
        before, latest = self._latest.get(process, (incarnation, 0))
        if incarnation < before:
            return []
        if incarnation > before:
            latest = 0
        new = [hint for hint in hints if hint.number > latest]
        self._latest[process] = incarnation, max([latest, *(hint.number for hint in new)])
        return new

    def forget_all_but(self, processes: Collection[str]) -> None:
        """There are no others any more."""
        self._latest = {name: each for name, each in self._latest.items() if name in processes}
