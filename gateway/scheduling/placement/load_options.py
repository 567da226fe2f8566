"""How a model could get into an agent's memory, and what would have to go for it. What an
agent's memory holds during one round of decisions is known here too."""

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from gateway.domain.request import Tier
from gateway.scheduling.placement.data import AgentDeployments, LoadableDeployment, LoadState, PlacementDemand
from gateway.scheduling.placement.history import LoadFailures, PlacementHistory


class AgentMemory:
    """What stays there and what is about to go, as far as was decided in this round. Memory that is not
    known counts as none: the agent says no, and that is remembered (:class:`LoadFailures`)."""

    def __init__(self, host: AgentDeployments, failures: LoadFailures) -> None:
        self.host = host
        self._failures = failures
        self.staying: dict[str, LoadableDeployment] = {}
        self.leaving: dict[str, LoadableDeployment] = {}
        for place in host.places:
            if place.load_state in (LoadState.LOADED, LoadState.LOADING):
                self.staying[place.key] = place
            elif place.load_state is LoadState.UNLOADING:
                self.leaving[place.key] = place
        self._staying_bytes = _bytes(self.staying.values())
        self._leaving_bytes = _bytes(self.leaving.values())

    def holds_now(self, place: LoadableDeployment) -> bool:
        """Whether it fits beside all that is there."""
        return self._fits(place, self._staying_bytes + self._leaving_bytes, (*self.staying, *self.leaving))

    def holds(self, place: LoadableDeployment, without: Collection[str] = ()) -> bool:
        """Whether it fits beside what stays, without the places ``without``."""
        if not without:
            return self._fits(place, self._staying_bytes, self.staying)
        less = _bytes(self.staying[key] for key in without)
        return self._fits(place, self._staying_bytes - less, [k for k in self.staying if k not in without])

    def could_ever_hold(self, place: LoadableDeployment) -> bool:
        """Whether it fits beside what is never unloaded."""
        pinned = _bytes(each for each in self.staying.values() if each.pinned)
        return self.host.memory_bytes is None or _need(place) + pinned <= self.host.memory_bytes

    def add_expected(self, place: LoadableDeployment) -> None:
        """Count the memory of ``place``, which is to be loaded, as taken."""
        self.staying[place.key] = place
        self._staying_bytes += _need(place)

    def mark_leaving(self, victim: LoadableDeployment) -> None:
        """``victim`` is to be unloaded; its memory counts as taken until it has gone."""
        self.leaving[victim.key] = self.staying.pop(victim.key)
        self._staying_bytes -= _need(victim)
        self._leaving_bytes += _need(victim)

    def _fits(self, place: LoadableDeployment, taken_bytes: int, beside: Iterable[str]) -> bool:
        memory_bytes = self.host.memory_bytes
        if memory_bytes is not None and taken_bytes + _need(place) > memory_bytes:
            return False
        return self._failures.fits_beside(place.key, beside)


def _need(place: LoadableDeployment) -> int:
    return place.memory_bytes or 0


def _bytes(places: Iterable[LoadableDeployment]) -> int:
    return sum(map(_need, places))


TURN_LOADS = 3.0
"""A turn lasts this many times the longer of the two loads of a swap and its reversal."""

IMMINENT_S = 2.0
"""A model that was used this recently is about to be used again."""

PATIENCE_SHARE = 0.25
"""A request that wants the place of a much busier model waits this share of ``hold_s`` at most for more
requests of its model."""

SPARE_SHARE = 0.1
"""The share of its regret that counts if the same model is loaded elsewhere too."""

MOST_EVICTIONS = 64
"""Places where something would have to go that are looked at for one model in one round."""

FOREVER = float("inf")

_Candidate = tuple[float, bool, float, float, str]
"""When it may be told to go, whether it runs something, regret, when it was used last, key: the smallest goes
first."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """How long models stay and requests are held."""

    hold_s: float = 300.0
    min_residence_s: float = 30.0


@dataclass(frozen=True, slots=True)
class LoadOption:
    """How a place gets its model. ``rank`` begins with 0 for one that fits at once, 1 for one that fits when
    what leaves has gone, 2 when ``victims`` have gone who may be told now, 3 who may be at ``at_s``."""

    place: LoadableDeployment
    room: AgentMemory
    rank: tuple[float, ...]
    at_s: float
    victims: tuple[LoadableDeployment, ...] = ()
    regret: float = 0.0

    @property
    def order(self) -> tuple[tuple[float, ...], float, float, int, str]:
        """The smallest is the best."""
        place = self.place
        return self.rank, place.load_s, -place.tflops, self.room.host.running, place.key


@dataclass(frozen=True)
class LoadOptions:
    """Finds how places could load their models in one round. ``wanted`` are the places that requests wait
    for, ``rooms`` the memory of each place's agent."""

    rules: PlacementRules
    history: PlacementHistory
    rooms: Mapping[str, AgentMemory]
    wanted: Collection[str]
    now: float

    @cached_property
    def _copies(self) -> Tally[str]:
        """How many places have loaded each model."""
        staying = (place for room in set(self.rooms.values()) for place in room.staying.values())
        return Tally(place.model for place in staying if _in(place))

    def best(self, demand: PlacementDemand, places: Sequence[LoadableDeployment]) -> LoadOption | None:
        """The best of all ``places`` where it fits; else of some where something would have to go."""
        free = [option for place in places if (option := self._into_free(place)) is not None]
        if free:
            return min(free, key=lambda option: option.order)
        step = max(1, len(places) // MOST_EVICTIONS)
        looked_at = islice(places, int(self.now) % step, None, step)
        options = [option for place in looked_at if (option := self._by_eviction(demand, place)) is not None]
        return min(options, key=lambda option: option.order, default=None)

    def _into_free(self, place: LoadableDeployment) -> LoadOption | None:
        room = self.rooms[place.key]
        if room.holds_now(place):
            return LoadOption(place, room, (0,), self.now)
        return LoadOption(place, room, (1,), self.now) if room.holds(place) else None

    def _by_eviction(self, demand: PlacementDemand, place: LoadableDeployment) -> LoadOption | None:
        """What would have to go for it, and when it could; None if that would not do."""
        room, now = self.rooms[place.key], self.now
        candidates: list[_Candidate] = []
        for victim in room.staying.values():
            at_s = max(now, self._free_at_s(victim, place, demand))
            if at_s < FOREVER:
                regret = self._regret(victim)
                candidates.append((at_s, victim.running > 0, regret, victim.used_s, victim.key))
        chosen = _fewest(place, room, sorted(candidates))
        if not chosen:
            return None
        at_s, regret = max(each[0] for each in chosen), sum(each[2] for each in chosen)
        rank = (2, any(each[1] for each in chosen), regret) if at_s <= now else (3, at_s, regret)
        return LoadOption(place, room, rank, at_s, tuple(room.staying[each[-1]] for each in chosen), regret)

    def _free_at_s(
        self, victim: LoadableDeployment, place: LoadableDeployment, demand: PlacementDemand
    ) -> float:
        """When ``victim`` may be told to take nothing more, for ``place`` to come in."""
        rules = self.rules
        if not _in(victim) or victim.pinned:
            return FOREVER
        kept_s = self.history.kept_until_s(victim.key)
        turn_s = max(rules.min_residence_s, TURN_LOADS * max(victim.load_s, place.load_s))
        due_s = self.history.turn_due_s(demand) + self._patience_s(victim, demand)
        busy_s = max(victim.loaded_s + turn_s, due_s, kept_s)
        if victim.running or victim.key in self.wanted:
            return busy_s
        idle_s = max(victim.loaded_s + rules.min_residence_s, victim.used_s + IMMINENT_S, kept_s)
        return min(idle_s, busy_s)

    def _patience_s(self, victim: LoadableDeployment, demand: PlacementDemand) -> float:
        """How long requests that want the memory of a busy model wait until it is unloaded. The more often
        the busy model is requested compared with theirs, the longer."""
        if demand.tier is Tier.REALTIME:
            return 0.0
        per_s = self.history.popularity.per_s
        theirs, own = per_s(victim.model, self.now), per_s(demand.model, self.now)
        return PATIENCE_SHARE * self.rules.hold_s * theirs / (theirs + own) if theirs else 0.0

    def _regret(self, victim: LoadableDeployment) -> float:
        """Seconds of loading that unloading it will cost, for each second it is away."""
        regret = self.history.popularity.per_s(victim.model, self.now) * victim.load_s
        return regret * SPARE_SHARE if self._copies[victim.model] > 1 else regret


def _in(place: LoadableDeployment) -> bool:
    return place.load_state is LoadState.LOADED


def _fewest(
    place: LoadableDeployment, room: AgentMemory, candidates: Sequence[_Candidate]
) -> list[_Candidate]:
    """The first candidates that free enough memory together, without those that are not needed for it; the
    most expensive are spared first. Empty if all of them do not suffice."""
    chosen: list[_Candidate] = []
    for candidate in candidates:
        chosen.append(candidate)
        if room.holds(place, {each[-1] for each in chosen}):
            break
    else:
        return []
    for each in sorted(chosen, reverse=True):
        fewer = [other for other in chosen if other is not each]
        if fewer and room.holds(place, {other[-1] for other in fewer}):
            chosen = fewer
    return chosen
