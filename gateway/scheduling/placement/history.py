"""What placement remembers: how often models are wanted, what loading has come to (SCHEDULING §5)."""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.scheduling.placement.data import Demand

MEMORY_S = 1800.0
"""Arrivals count e times less after this long: it is hours, not minutes, that say which model is liked."""

WINDOW_S = 120.0
"""Arrivals are spread over so much time at least."""

MOST_MODELS = 4096

FIRST_BACKOFF_S, MOST_BACKOFF_S = 5.0, 300.0
"""A load that failed is tried again after so long, twice as long after each further failure."""

MOST_PLACES = 65_536

CLOSED_MOST_S = 120.0
"""What has not finished its requests so long after it got no new ones gets new ones again, for as long."""

KEPT_S = 5.0
"""A place whose agent would not unload it, or could not be told to load it, is left alone for so long."""


class Popularity:
    """How often each model is asked for. Bounded: the one not asked for longest is forgotten first."""

    def __init__(self, most_models: int = MOST_MODELS) -> None:
        self._most_models = most_models
        self._counts: OrderedDict[str, tuple[float, float, float]] = OrderedDict()
        """When counting began, the count as it was then last updated, and when."""

    def arrived(self, model: str, now: float) -> None:
        """A request for ``model`` came."""
        began_s, count, at_s = self._counts.get(model) or (now, 0.0, now)
        self._counts[model] = began_s, count * math.exp((at_s - now) / MEMORY_S) + 1.0, now
        self._counts.move_to_end(model)
        if len(self._counts) > self._most_models:
            self._counts.popitem(last=False)

    def per_s(self, model: str, now: float) -> float:
        """Requests a second, of late; 0 for a model nobody asked for."""
        known = self._counts.get(model)
        if known is None:
            return 0.0
        began_s, count, at_s = known
        seen_s = MEMORY_S * (1.0 - math.exp((began_s - now) / MEMORY_S))
        return count * math.exp((at_s - now) / MEMORY_S) / max(seen_s, WINDOW_S)


@dataclass(slots=True)
class _Trouble:
    failures: int = 0
    again_s: float = 0.0
    why: str = ""
    deadly: bool = False
    """Its agent was lost over it."""
    crowd: frozenset[str] = field(default_factory=frozenset)
    """What was in the memory beside it when its agent said that it does not fit."""


class LoadFailures:
    """What went wrong with loading, by place. Bounded: what went wrong longest ago is forgotten first."""

    def __init__(self, most_places: int = MOST_PLACES) -> None:
        self._most_places = most_places
        self._known: OrderedDict[str, _Trouble] = OrderedDict()

    def failed(self, key: str, why: str, now: float, *, deadly: bool = False) -> float:
        """Loading it failed, and its agent was lost over it if it was ``deadly``. Returns after how many
        seconds it may be tried again."""
        trouble = self._trouble(key)
        trouble.failures += 1
        trouble.deadly = trouble.deadly or deadly
        backoff_s = min(FIRST_BACKOFF_S * 2.0 ** min(trouble.failures - 1, 16), MOST_BACKOFF_S)
        trouble.again_s, trouble.why = now + backoff_s, why
        return backoff_s

    def pause(self, key: str, now: float) -> None:
        """Its agent could not be told to load it: try again after ``KEPT_S``."""
        trouble = self._trouble(key)
        trouble.again_s = max(trouble.again_s, now + KEPT_S)

    def note_crowded(self, key: str, beside: frozenset[str]) -> None:
        """Its agent says that it does not fit into memory beside these."""
        self._trouble(key).crowd = beside

    def note_loaded(self, key: str) -> None:
        """The place has loaded its model: its failures are forgotten."""
        self._known.pop(key, None)

    def agent_changed(self, key: str) -> None:
        """Its agent is another process, or has other settings: what failed may do now. But not what may have
        been the end of the process before."""
        if key in self._known and not self._known[key].deadly:
            del self._known[key]

    def count(self, key: str) -> int:
        """How often in a row loading it failed."""
        known = self._known.get(key)
        return 0 if known is None else known.failures

    def reason(self, key: str) -> str:
        known = self._known.get(key)
        return "" if known is None else known.why

    def retry_at_s(self, key: str) -> float:
        """When it may be tried again; in the past if it may be now."""
        known = self._known.get(key)
        return 0.0 if known is None else known.again_s

    def fits_beside(self, key: str, others: Iterable[str]) -> bool:
        """False when its agent said that it does not fit beside these or fewer."""
        known = self._known.get(key)
        return known is None or not known.crowd or not known.crowd <= set(others)

    def _trouble(self, key: str) -> _Trouble:
        trouble = self._known.setdefault(key, _Trouble())
        self._known.move_to_end(key)
        if len(self._known) > self._most_places:
            self._known.popitem(last=False)
        return trouble


class PlacementHistory:
    """Everything that placement remembers between two calls."""

    def __init__(self, most_models: int = MOST_MODELS) -> None:
        self.popularity = Popularity(most_models)
        self.failures = LoadFailures()
        self._most_models = most_models
        self._went_s: OrderedDict[str, float] = OrderedDict()
        """When models went that had to for others."""
        self._kept_s: dict[str, float] = {}
        self._closed_s: dict[str, float] = {}
        """Since when places get nothing new."""

    def note_evicted(self, model: str, now: float) -> None:
        """``model`` was unloaded for another: its turn is over."""
        self._went_s[model] = now
        self._went_s.move_to_end(model)
        if len(self._went_s) > self._most_models:
            self._went_s.popitem(last=False)

    def turn_due_s(self, demand: Demand) -> float:
        """Since when its model's turn is due: a model that had a turn comes after those that had none."""
        return max(demand.oldest_s, self._went_s.get(demand.model, demand.oldest_s))

    def keep(self, key: str, now: float, for_s: float = KEPT_S) -> None:
        """Its agent refused to unload it, or its requests did not end: leave it alone for ``for_s``."""
        self._kept_s = {each: until_s for each, until_s in self._kept_s.items() if until_s > now}
        self._kept_s[key] = now + for_s

    def keep_unfinished(self, now: float) -> None:
        """What has got nothing new for long and has not finished is kept."""
        for key, since_s in self._closed_s.items():
            if now - since_s >= CLOSED_MOST_S:
                self.keep(key, now, CLOSED_MOST_S)

    def note_closed(self, keys: Iterable[str], now: float) -> float | None:
        """These and no others get nothing new. Returns when one of them has done so for long."""
        self._closed_s = {key: self._closed_s.get(key, now) for key in keys}
        return min(self._closed_s.values(), default=now) + CLOSED_MOST_S if self._closed_s else None

    def kept_until_s(self, key: str) -> float:
        """Until when it must not be unloaded."""
        return self._kept_s.get(key, 0.0)
