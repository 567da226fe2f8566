"""Which models are loaded where: on demand, by what it costs to have them elsewhere (SCHEDULING §5).

Pure: plain data and ``now`` in, decisions out (:mod:`gateway.scheduling.placement.data`). What nobody serves
is loaded first, whoever has waited longest first, where it fits in free memory: of such places the one that
loads in the shortest time, on the fastest device, at the agent with least to do.

**Eviction.** Where it fits nowhere something has to go: what will be missed least. The regret of unloading
a model is how often it is asked for times how long it takes to come back; the least recently used goes
first where that is equal. What is idle goes at once, but not before it has been there for
``min_residence_s``. What has work keeps its place for its *turn*: a few times what the swap costs, so
that loading takes about a quarter of the time however many models always have work for the same memory.
When its turn is over and somebody else has waited long enough, it gets nothing new, finishes what it
runs, and goes. Who had a turn waits again behind those who had none: nobody starves.

**More of the same.** A model is loaded once more when the last in its line would wait for longer than that
takes, where memory is free; for this something else is unloaded only if it is hardly missed.
"""

from collections.abc import Iterable, Sequence

from gateway.domain.request import Tier
from gateway.scheduling.placement.data import (
    AgentPlaces,
    Demand,
    Hopeless,
    LoadablePlace,
    LoadDecision,
    PlacementPlan,
    Residence,
    UnloadDecision,
)
from gateway.scheduling.placement.load_options import (
    FOREVER,
    MOST_EVICTIONS,
    AgentMemory,
    LoadOption,
    LoadOptions,
    PlacementRules,
)
from gateway.scheduling.placement.memory import Memory

TIER_LAG_S = {Tier.REALTIME: 0.0, Tier.STANDARD: 20.0, Tier.BATCH: 60.0}
"""So much earlier than the others a request of a higher tier is taken to have come."""

CLEARLY = 4.0
"""One more of a model must be worth so many times the regret for what goes."""

MARGIN_S, MARGIN_SHARE = 5.0, 0.25
"""By which a wait must be longer than a load, and which share of the load, to be worth one more."""

REFUSE_AFTER = 2
"""When all places of a model have failed to load it so often, its requests are refused meanwhile."""

UNLOAD_S, DRAIN_S = 3.0, 10.0
"""Guessed, for what is told of a model that waits for another to go."""

LOOK_S = 1.0
"""When to look again where not all could be looked at."""

MOST_DEMANDS = 32
"""Models that are looked at in one round."""


class Placement:
    """Decides, and remembers what for. Equal calls give equal answers."""

    def __init__(self, rules: PlacementRules | None = None) -> None:
        self.rules = rules or PlacementRules()
        self.memory = Memory()

    def decide(self, demands: Iterable[Demand], hosts: Iterable[AgentPlaces], now: float) -> PlacementPlan:
        """What to load and unload. ``demands`` has one for each model that somebody waits for; ``hosts`` are
        all that have places of these, each with all its places.

        Never unloads what runs something, never loads what does not fit beside all that is there.
        """
        self.memory.keep_unfinished(now)
        since_s = self.memory.since_s
        waiting = sorted(demands, key=lambda each: (since_s(each) + TIER_LAG_S[each.tier], each.model))
        round_ = _Round(self.rules, self.memory, waiting, hosts, now)
        unserved = [each for each in waiting if not each.served]
        for demand in unserved[:MOST_DEMANDS]:
            round_.serve(demand)
        if len(unserved) > MOST_DEMANDS:
            round_.look_again(now + LOOK_S)
        for demand in waiting:
            if demand.served:
                round_.spread(demand)
        return round_.plan()


class _Round:
    """One call of ``decide``."""

    def __init__(
        self,
        rules: PlacementRules,
        memory: Memory,
        demands: Sequence[Demand],
        hosts: Iterable[AgentPlaces],
        now: float,
    ) -> None:
        self._memory = memory
        self._now = now
        self._rooms: dict[str, AgentMemory] = {}
        """By place."""
        self._places: dict[str, LoadablePlace] = {}
        for host in hosts:
            room = AgentMemory(host, memory.troubles)
            for place in host.places:
                self._rooms[place.key], self._places[place.key] = room, place
        self._wanted = frozenset(key for demand in demands for key in demand.keys)
        self._ways = LoadOptions(rules, memory, self._rooms, self._wanted, now)
        self._decisions: list[LoadDecision | UnloadDecision] = []
        self._closing: set[str] = set()
        self._ready_s: dict[str, float] = {}
        self._hopeless: dict[str, Hopeless] = {}
        self._again_s = FOREVER

    def plan(self) -> PlacementPlan:
        closing = frozenset(self._closing)
        unfinished_s = self._memory.note_closed(closing, self._now)
        if unfinished_s is not None:
            self.look_again(unfinished_s)
        again_s = None if self._again_s == FOREVER else self._again_s
        return PlacementPlan(tuple(self._decisions), closing, self._ready_s, self._hopeless, again_s)

    def look_again(self, at_s: float) -> None:
        self._again_s = min(self._again_s, max(at_s, self._now))

    # --- What nobody serves ---

    def serve(self, demand: Demand) -> None:
        """Have a model loaded that somebody waits for and nothing serves."""
        out = self._out(demand)
        leaving = any(self._residence(key) is Residence.LEAVING for key in demand.keys)
        hopeless = None if leaving else self._why_hopeless(out)
        if hopeless is not None:
            self._hopeless[demand.model] = hopeless
            return
        way = self._best_way(demand, self._ready(out))
        if way is not None:
            self._go(demand, way)

    def _out(self, demand: Demand) -> list[LoadablePlace]:
        places = (self._places[key] for key in sorted(demand.keys) if key in self._places)
        return [each for each in places if each.residence is Residence.OUT]

    def _residence(self, key: str) -> Residence | None:
        place = self._places.get(key)
        return None if place is None else place.residence

    def _ready(self, out: Iterable[LoadablePlace]) -> list[LoadablePlace]:
        """Those of which nothing says that they should not be tried now."""
        ready, troubles = [], self._memory.troubles
        for place in out:
            again_s = troubles.again_s(place.key)
            if again_s <= self._now:
                ready.append(place)
            else:
                self.look_again(again_s)
        return ready

    def _why_hopeless(self, out: Sequence[LoadablePlace]) -> Hopeless | None:
        """Why none of them can load it, if none can."""
        troubles, now = self._memory.troubles, self._now
        fitting = [each for each in out if self._rooms[each.key].could_ever_hold(each)]
        if out and not fitting:
            return Hopeless("it needs more memory than any agent has that could load it", None)
        failing = [
            each
            for each in fitting
            if troubles.failures(each.key) >= REFUSE_AFTER and troubles.again_s(each.key) > now
        ]
        if not fitting or len(failing) < len(fitting):
            return None
        first = min(failing, key=lambda each: (troubles.again_s(each.key), each.key))
        return Hopeless(troubles.why(first.key), troubles.again_s(first.key) - now)

    def _best_way(self, demand: Demand, places: Sequence[LoadablePlace]) -> LoadOption | None:
        if len(places) > MOST_EVICTIONS:
            self.look_again(self._now + LOOK_S)
        return self._ways.best(demand, places)

    # --- Doing it ---

    def _go(self, demand: Demand, way: LoadOption) -> None:
        wait_s = way.place.load_s
        if way.rank[0] == 0:
            self._decisions.append(LoadDecision(way.place.key, _why(demand)))
        else:
            wait_s += UNLOAD_S
        if way.at_s > self._now:
            self.look_again(way.at_s)
            wait_s += way.at_s - self._now
        elif way.victims:
            self._evict(way)
        if any(victim.running for victim in way.victims):
            wait_s += DRAIN_S
        for victim in way.victims:
            way.room.give_up(victim)
        way.room.expect(way.place)
        self._ready_s.setdefault(demand.model, wait_s)

    def _evict(self, way: LoadOption) -> None:
        self._closing.update(victim.key for victim in way.victims)
        if any(victim.running for victim in way.victims):
            return
        for victim in way.victims:
            why = f"room for {way.place.model}, regret {way.regret:.3g}"
            self._decisions.append(UnloadDecision(victim.key, why))
            self._memory.went(victim.model, self._now)

    # --- More of what is served ---

    def spread(self, demand: Demand) -> None:
        """Have a model loaded once more that is not served fast enough."""
        loading = any(self._residence(key) is Residence.LOADING for key in demand.keys)
        if loading or not demand.keys.isdisjoint(self._closing):
            return
        worth = [
            place
            for place in self._ready(self._out(demand))
            if demand.wait_s > place.load_s + max(MARGIN_S, MARGIN_SHARE * place.load_s)
        ]
        way = self._best_way(demand, worth)
        if way is not None and way.at_s <= self._now and self._is_worth_it(demand, way):
            self._go(demand, way)

    def _is_worth_it(self, demand: Demand, way: LoadOption) -> bool:
        if not way.victims:
            return True
        if any(victim.running or victim.key in self._wanted for victim in way.victims):
            return False
        gain = self._memory.popularity.per_s(demand.model, self._now)
        gain *= demand.wait_s - way.place.load_s
        return CLEARLY * way.regret < gain


def _why(demand: Demand) -> str:
    if demand.served:
        return f"{demand.requests} wait, the last {demand.wait_s:.0f} s"
    return f"{demand.requests} wait and nothing serves it"
