"""Which worker accepts the connections of one that is away, so that they wait for nobody's start. Pure."""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

Worker = TypeVar("Worker")


class CoverChanges(NamedTuple, Generic[Worker]):
    """What workers are to be told. Each pair is a worker and the place of another one."""

    cover: list[tuple[Worker, int]]
    """It is to accept from that place's sockets as well."""
    release: list[tuple[Worker, int]]
    """It is to do so no more."""


class Covering(Generic[Worker]):
    """Each place without a worker that serves is covered by one of those that do, as evenly as may be."""

    def __init__(self, places: int) -> None:
        self._places = range(places)
        self._by: dict[int, Worker] = {}
        """Who covers a place."""

    def update(self, serving: Mapping[int, Worker]) -> CoverChanges[Worker]:
        """``serving`` are the workers that serve now, by place."""
        workers = list(serving.values())
        changes: CoverChanges[Worker] = CoverChanges([], [])
        for place in self._places:
            before = self._by.get(place)
            if before is not None and (before not in workers or place in serving):
                del self._by[place]
                if before in workers:
                    changes.release.append((before, place))
            if place not in serving and place not in self._by and workers:
                covers = list(self._by.values())
                self._by[place] = min(workers, key=covers.count)
                changes.cover.append((self._by[place], place))
        return changes
