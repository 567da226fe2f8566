"""Speeds that several processes learn together. Pure.

Each process tells the evidence of its own outcomes alone, by its name and incarnation. Of each of these, its
origin, the others keep what has the most outcomes, and add up all origins beside their own. So the order in
which they hear does not matter, nor how often they hear the same, and nothing is counted twice.

Evidence of an origin that says nothing new counts less with each outcome observed here, as old outcomes do.
Where its process is no more, the others go on telling it with what is left of its weight, so that one that
was started again knows what it knew before. While it is there, one other process tells it too, so that it can
be read when the process has just stopped.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gateway.scheduling.learning.evidence import Evidence, added
from gateway.scheduling.learning.performance import KNOWN, Performance, Speeds
from gateway.scheduling.recent import RecentDict
from shared.process.frozen import frozen

MOST_TOLD = 128
"""Pairs of model and device class that a process tells of; those with the most outcomes."""

MOST_HEARD = 512
"""Pairs of which something is kept that others tell."""

MOST_ORIGINS = 16
"""Of each pair; those that count most."""

LEAST_WEIGHT = 0.05
"""What counts less is forgotten."""

APART = math.log(4.0)
"""Where this process has seen enough itself, what is so far off is not believed."""

Pair = tuple[str, str]
Origin = tuple[str, int]


@frozen
class SpeedEvidence:
    """Of one origin, about one model on one class of device; ``weight`` is over 0 to 1."""

    process: str
    incarnation: int
    model: str
    device: str
    reading: Evidence | None
    writing: Evidence | None = None
    weight: float = 1.0

    @property
    def count(self) -> int:
        """Higher with each outcome: as many observations were made."""
        return sum(each.count for each in (self.reading, self.writing) if each is not None)


class SharedSpeeds:
    """Those of one process."""

    def __init__(self, performance: Performance, process: str, incarnation: int) -> None:
        self._performance = performance
        self._own: Origin = process, incarnation
        self._heard = RecentDict[Pair, dict[Origin, SpeedEvidence]](MOST_HEARD)
        self._due: dict[Pair, set[Origin]] = {}
        """Pairs of which something was heard that is not applied yet, and from whom."""

    def told(self, present: Mapping[str, int]) -> list[SpeedEvidence]:
        """What is to be told, what is known best first. ``present`` are the incarnations of the processes
        that are there, which tell for themselves."""
        own: list[SpeedEvidence] = []
        for speeds in self._performance:
            reading, writing = speeds.reading.evidence(), speeds.writing.evidence()
            if reading is not None or writing is not None:
                own.append(SpeedEvidence(*self._own, speeds.model, speeds.device, reading, writing))
        own.sort(key=lambda each: -each.count)
        before = self._before(present)
        others = [
            replace(each, weight=each.weight * left)
            for pair, origins in self._heard.items()
            for (process, incarnation), each in origins.items()
            if (present.get(process) != incarnation or process == before)
            and (left := self._left(pair)) * each.weight >= LEAST_WEIGHT
        ]
        others.sort(key=lambda each: -_value(each))
        return [*own[:MOST_TOLD], *others[:MOST_TOLD]]

    def _before(self, present: Mapping[str, int]) -> str | None:
        """Who comes before this process, in the order of their names and round."""
        names = sorted({*present} - {self._own[0]})
        return max((name for name in names if name < self._own[0]), default=names[-1] if names else None)

    def _left(self, pair: Pair) -> float:
        """What is left of the weights of what was heard, after what was observed since it was applied."""
        speeds = self._performance.find(*pair)
        return 1.0 if speeds is None else _left_of(speeds)

    def take_up(self, told: Iterable[SpeedEvidence]) -> None:
        """Others tell this; :meth:`apply` has it count."""
        for each in told:
            origin, pair = (each.process, each.incarnation), (each.model, each.device)
            if origin == self._own:
                continue
            origins = self._heard.renewed(pair, dict)
            before = origins.get(origin)
            if before is not None and (each.count, -each.weight) <= (before.count, -before.weight):
                continue
            origins[origin] = each
            self._due.setdefault(pair, set()).add(origin)

    def apply(self, most: int | None = None) -> None:
        """Have what was taken up count, of ``most`` pairs; None: of all."""
        for pair in list(self._due)[:most]:
            news, origins = self._due.pop(pair), self._heard.get(pair)
            if origins is not None:
                self._apply(self._performance.speeds(*pair), origins, news)

    def _apply(self, speeds: Speeds, origins: dict[Origin, SpeedEvidence], news: set[Origin]) -> None:
        left = _left_of(speeds)
        for origin, each in list(origins.items()):
            if origin not in news and left < 1.0:
                origins[origin] = replace(each, weight=each.weight * left)
        best = sorted(origins, key=lambda origin: (-_value(origins[origin]), origin))
        for origin in best:
            if origins[origin].weight < LEAST_WEIGHT or origin in best[MOST_ORIGINS:]:
                del origins[origin]
        believed = [each for each in origins.values() if _agrees(speeds, each)]
        speeds.hear(
            added([(each.reading, each.weight) for each in believed if each.reading is not None]),
            added([(each.writing, each.weight) for each in believed if each.writing is not None]),
        )


def _left_of(speeds: Speeds) -> float:
    return min(speeds.reading.heard_weight, speeds.writing.heard_weight)


def _value(evidence: SpeedEvidence) -> float:
    return evidence.weight * evidence.count


def _agrees(speeds: Speeds, heard: SpeedEvidence) -> bool:
    pairs = ((speeds.reading, heard.reading), (speeds.writing, heard.writing))
    return all(
        other is None or own.count < KNOWN or abs(math.log(other.common / own.common)) <= APART
        for own, other in pairs
    )
