"""What placement remembers: how often models are requested, and which loads failed."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.scheduling.placement.data import PlacementDemand
from gateway.scheduling.recent import ArrivalRate, RecentDict

MEMORY_S = 1800.0
"""Arrivals count e times less after this long: popularity is a matter of hours, not minutes."""

WINDOW_S = 120.0
"""Arrivals are spread over so much time at least."""

MOST_MODELS = 4096

FIRST_BACKOFF_S, MOST_BACKOFF_S = 5.0, 300.0
"""A load that failed is tried again after the first of these; the time doubles with each further failure."""

MOST_PLACES = 65_536

CLOSED_MOST_S = 120.0
"""A place that has not finished its requests this long after it was closed gets new ones again, for as
long."""

KEPT_S = 5.0
"""A place whose agent would not unload it, or could not be told to load it, is left alone for this long."""


class Popularity:
    """How often each model is asked for."""

    def __init__(self, most_models: int = MOST_MODELS) -> None:
        self._rates = RecentDict[str, ArrivalRate](most_models)

    def arrived(self, model: str, now: float) -> None:
        """A request for ``model`` came."""
        self._rates.renewed(model, lambda: ArrivalRate(now, MEMORY_S, WINDOW_S)).arrived(now)

    def per_s(self, model: str, now: float) -> float:
        """Requests a second, lately; 0 for a model that was not requested."""
        rate = self._rates.get(model)
        return 0.0 if rate is None else rate.per_s(now)


@dataclass(slots=True)
class LoadTrouble:
    """What went wrong with loading at one place."""

    failures: int = 0
    """In a row."""
    again_s: float = 0.0
    """When it may be tried again; in the past if it may be now."""
    why: str = ""
    deadly: bool = False
    """Its agent was lost over it."""
    beside: frozenset[str] = frozenset()
    """What was in the memory beside it when its agent said that it does not fit."""


_NO_TROUBLE = LoadTrouble()


class LoadFailures:
    """What went wrong with loading, by place."""

    def __init__(self) -> None:
        self._known = RecentDict[str, LoadTrouble](MOST_PLACES)

    def failed(self, key: str, why: str, now: float, *, deadly: bool = False) -> float:
        """Loading it failed, and its agent was lost over it if it was ``deadly``. Returns after how many
        seconds it may be tried again."""
        trouble = self._known.renewed(key, LoadTrouble)
        trouble.failures += 1
        trouble.deadly = trouble.deadly or deadly
        backoff_s = min(FIRST_BACKOFF_S * 2.0 ** min(trouble.failures - 1, 16), MOST_BACKOFF_S)
        trouble.again_s, trouble.why = now + backoff_s, why
        return backoff_s

    def pause(self, key: str, now: float) -> None:
        """Its agent could not be told to load it: try again after ``KEPT_S``."""
        trouble = self._known.renewed(key, LoadTrouble)
        trouble.again_s = max(trouble.again_s, now + KEPT_S)

    def note_crowded(self, key: str, beside: frozenset[str]) -> None:
        """Its agent says that it does not fit into memory beside these."""
        self._known.renewed(key, LoadTrouble).beside = beside

    def note_loaded(self, key: str) -> None:
        """The place has loaded its model: its failures are forgotten."""
        self._known.pop(key, None)

    def agent_changed(self, key: str) -> None:
        """Its agent is another process, or has other settings: what failed may do now. But not what may have
        been the end of the process before."""
        if not self.of(key).deadly:
            self._known.pop(key, None)

    def fits_beside(self, key: str, others: Iterable[str]) -> bool:
        """False when its agent said that it does not fit beside these or fewer."""
        beside = self.of(key).beside
        return not beside or not beside <= set(others)

    def of(self, key: str) -> LoadTrouble:
        """What went wrong at the place ``key``."""
        return self._known.get(key, _NO_TROUBLE)


class PlacementHistory:
    """Everything that placement remembers between two calls."""

    def __init__(self, most_models: int = MOST_MODELS) -> None:
        self.popularity = Popularity(most_models)
        self.failures = LoadFailures()
        self._evicted_s = RecentDict[str, float](most_models)
        """When models were unloaded for others."""
        self._kept_s: dict[str, float] = {}
        self._closed_s: dict[str, float] = {}
        """Since when places get no new requests."""

    def note_evicted(self, model: str, now: float) -> None:
        """``model`` was unloaded for another: its turn is over."""
        self._evicted_s[model] = now

    def turn_due_s(self, demand: PlacementDemand) -> float:
        """Since when its model's turn is due: a model that had a turn comes after those that had none."""
        return max(demand.oldest_s, self._evicted_s.get(demand.model, demand.oldest_s))

    def keep(self, key: str, now: float, for_s: float = KEPT_S) -> None:
        """Its agent refused to unload it, or its requests did not end: leave it alone for ``for_s``."""
        self._kept_s = {each: until_s for each, until_s in self._kept_s.items() if until_s > now}
        self._kept_s[key] = now + for_s

    def keep_unfinished(self, now: float) -> None:
        """Keep the places that were closed for ``CLOSED_MOST_S`` and have not finished."""
        for key, since_s in self._closed_s.items():
            if now - since_s >= CLOSED_MOST_S:
                self.keep(key, now, CLOSED_MOST_S)

    def note_closed(self, keys: Iterable[str], now: float) -> float | None:
        """Only these get no new requests. Returns when the first of them will have been closed for
        ``CLOSED_MOST_S``."""
        self._closed_s = {key: self._closed_s.get(key, now) for key in keys}
        return min(self._closed_s.values(), default=now) + CLOSED_MOST_S if self._closed_s else None

    def kept_until_s(self, key: str) -> float:
        """Until when it must not be unloaded."""
        return self._kept_s.get(key, 0.0)
