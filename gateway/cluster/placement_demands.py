"""Which models requests wait for at other processes, so that the one that has models loaded knows, and which
deployments an operator wants unloaded (pure).

Each process says it in its row. Keys of deployments are the same in all processes: agent and deployment.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from gateway.domain.request import Tier
from gateway.scheduling.placement.data import PlacementDemand

MOST_MODELS, MOST_KEYS = 16, 64
"""Said in a row: those that have waited longest, and places that would do for each."""

EVICTION_TOLD_S = 10.0
"""So long a row says what is to be unloaded. Every process reads the rows each second."""

EVICTION_KNOWN_S = 60.0
"""So long a process knows that it has read of one."""

MOST_EVICTIONS = 4
"""Told at a time, in place of as many models."""


_MOST_URGENT_FIRST = [Tier.REALTIME, Tier.STANDARD, Tier.BATCH]


@dataclass(frozen=True, slots=True)
class EvictionWish:
    """An operator wants deployments of a model unloaded, whatever it is used for. No ``keys``: all that have
    it loaded."""

    id: str
    model: str
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Said:
    model: Annotated[str, Field(max_length=1000)]
    keys: Annotated[list[str], Field(max_length=MOST_KEYS)]
    age_s: Annotated[float, Field(ge=0, le=1e7)]
    requests: Annotated[int, Field(ge=0, le=10**7)]
    tier: Tier
    served: bool
    wait_s: Annotated[float, Field(ge=0, le=1e9)]
    evict: Annotated[str, Field(max_length=64)] = ""
    """Of an :class:`EvictionWish` its id: nothing waits then. Earlier versions read of a model that is served
    and for which nothing waits, and do nothing."""


_ALL_SAID = TypeAdapter(Annotated[list[_Said], Field(max_length=MOST_MODELS)])


class PlacementDemands:
    """Belongs to the event loop's thread. ``clock`` gives seconds of the demands' clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.own: Callable[[float], Sequence[PlacementDemand]] = lambda now: ()
        """What requests wait for here at that time."""
        self.changed: Callable[[], None] = lambda: None
        """Called when others want something, or when this process may have become the one that decides."""
        self.wake: Callable[[], None] = lambda: None
        """Called when something waits here that the others do not know of."""
        self.evict: Callable[[EvictionWish], None] = lambda wish: None
        """Called once with each wish of another process."""
        self._told: frozenset[str] = frozenset()
        self._evictions: list[tuple[EvictionWish, float]] = []
        """Those of this process, and until when they are told."""
        self._known: dict[str, float] = {}
        """The ids of wishes of others that were taken up, and until when that is to be known."""
        self._others: tuple[PlacementDemand, ...] = ()

    def note(self, demands: Iterable[PlacementDemand]) -> None:
        """So it is here now: models that are new are told at once, the rest in time."""
        if not self._told.issuperset(demand.model for demand in demands):
            self.wake()

    def tell(self, wish: EvictionWish) -> None:
        """Tell it to the other processes."""
        self._evictions.append((wish, self._clock() + EVICTION_TOLD_S))
        del self._evictions[:-MOST_EVICTIONS]
        self.wake()

    def encode(self) -> str | None:
        """What the row is to say; None: nothing waits."""
        now = self._clock()
        demands = sorted(self.own(now), key=lambda demand: demand.oldest_s)
        self._told = frozenset(demand.model for demand in demands)
        self._evictions = [each for each in self._evictions if now < each[1]]
        said = [
            _Said(wish.model, sorted(wish.keys)[:MOST_KEYS], 0.0, 0, Tier.BATCH, True, 0.0, wish.id)
            for wish, _ in self._evictions
        ]
        said += [
            _Said(
                demand.model,
                sorted(demand.keys)[:MOST_KEYS],
                max(0.0, now - demand.oldest_s),
                demand.requests,
                demand.tier,
                demand.served,
                min(demand.wait_s, 1e9),
            )
            for demand in demands[: MOST_MODELS - len(said)]
        ]
        return orjson.dumps(said).decode() if said else None

    def take_up(self, rows: Iterable[str | None]) -> None:
        """What the rows of the other processes say; one that cannot be read says nothing."""
        now, before = self._clock(), self._others
        said = [each for row in rows if row is not None for each in _read(row)]
        self._others = tuple(_demand(each, now) for each in said if not each.evict)
        self._take_up_evictions([each for each in said if each.evict], now)
        if self._others or before:
            self.changed()

    def _take_up_evictions(self, said: Iterable[_Said], now: float) -> None:
        self._known = {id_: until_s for id_, until_s in self._known.items() if now < until_s}
        for each in said:
            if each.evict not in self._known:
                self._known[each.evict] = now + EVICTION_KNOWN_S
                self.evict(EvictionWish(each.evict, each.model, frozenset(each.keys)))

    @property
    def others_wait(self) -> bool:
        """Requests wait at other processes."""
        return bool(self._others)

    def with_others(
        self, own: Iterable[PlacementDemand], known: Callable[[str], Collection[str]]
    ) -> list[PlacementDemand]:
        """What waits in all processes; ``known`` gives the keys of a model's deployments here."""
        merged: dict[str, PlacementDemand] = {demand.model: demand for demand in own}
        for demand in self._others:
            keys = demand.keys.intersection(known(demand.model))
            if keys:
                demand = replace(demand, keys=keys)
                mine = merged.get(demand.model)
                merged[demand.model] = demand if mine is None else _both(mine, demand)
        return list(merged.values())


def _read(row: str) -> list[_Said]:
    try:
        return _ALL_SAID.validate_json(row)
    except ValidationError:
        return []


def _demand(said: _Said, now: float) -> PlacementDemand:
    return PlacementDemand(
        said.model,
        frozenset(said.keys),
        now - said.age_s,
        said.requests,
        said.tier,
        said.served,
        said.wait_s,
    )


def _both(one: PlacementDemand, other: PlacementDemand) -> PlacementDemand:
    """Places for those whom nothing serves, where there are any, and for all otherwise."""
    unserved = [each for each in (one, other) if not each.served] or [one, other]
    keys = frozenset[str]().union(*(each.keys for each in unserved))
    return PlacementDemand(
        one.model,
        keys,
        min(one.oldest_s, other.oldest_s),
        one.requests + other.requests,
        min(one.tier, other.tier, key=_MOST_URGENT_FIRST.index),
        one.served and other.served,
        max(one.wait_s, other.wait_s),
    )
