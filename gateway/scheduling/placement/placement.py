"""Which models are loaded where: on demand, by what it costs to have them elsewhere.

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
    AgentDeployments,
    LoadableDeployment,
    LoadDecision,
    LoadState,
    NotLoadable,
    PlacementDemand,
    PlacementPlan,
    UnloadDecision,
)
from gateway.scheduling.placement.history import PlacementHistory
from gateway.scheduling.placement.load_options import (
    FOREVER,
    MOST_EVICTIONS,
    AgentMemory,
    LoadOption,
    LoadOptions,
    PlacementRules,
)

TIER_LAG_S = {Tier.REALTIME: 0.0, Tier.STANDARD: 20.0, Tier.BATCH: 60.0}
"""A request of a higher tier counts as if it had come this much earlier."""

CLEARLY = 4.0
"""One more copy of a model must be worth this many times the regret for what is unloaded."""

MARGIN_S, MARGIN_SHARE = 5.0, 0.25
"""One more copy is loaded only if the wait is longer than the load by the larger of this time and this share
of it."""

REFUSE_AFTER = 2
"""When all places of a model have failed to load it so often, its requests are refused meanwhile."""

UNLOAD_S, DRAIN_S = 3.0, 10.0
"""Guesses, for the predicted time of a model that waits for another to be unloaded."""

LOOK_S = 1.0
"""When to look again where not all could be looked at."""

MOST_DEMANDS = 32
"""Models that are looked at in one round."""


class Placement:
    """Decides what to load and unload, and remembers what that needs. Equal calls give equal answers."""

    def __init__(self, rules: PlacementRules | None = None) -> None:
        self.rules = rules or PlacementRules()
        self.history = PlacementHistory()

    def decide(
        self, demands: Iterable[PlacementDemand], hosts: Iterable[AgentDeployments], now: float
    ) -> PlacementPlan:
        """What to load and unload. ``demands`` has one for each model that requests wait for; ``hosts`` are
        all that have places of these, each with all its places.

        Never unloads what runs something, never loads what does not fit beside all that is there.
        """
        self.history.keep_unfinished(now)
        since_s = self.history.turn_due_s
        waiting = sorted(demands, key=lambda each: (since_s(each) + TIER_LAG_S[each.tier], each.model))
        round_ = _Round(self.rules, self.history, waiting, hosts, now)
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
        history: PlacementHistory,
        demands: Sequence[PlacementDemand],
        hosts: Iterable[AgentDeployments],
        now: float,
    ) -> None:
        self._history = history
        self._now = now
        self._rooms: dict[str, AgentMemory] = {}
        """The memory of the agent that each place belongs to, by the place's key."""
        self._places: dict[str, LoadableDeployment] = {}
        for host in hosts:
            room = AgentMemory(host, history.failures)
            for place in host.places:
                self._rooms[place.key], self._places[place.key] = room, place
        self._wanted = frozenset(key for demand in demands for key in demand.keys)
        self._options = LoadOptions(rules, history, self._rooms, self._wanted, now)
        self._decisions: list[LoadDecision | UnloadDecision] = []
        self._closing: set[str] = set()
        self._ready_s: dict[str, float] = {}
        self._not_loadable: dict[str, NotLoadable] = {}
        self._again_s = FOREVER

    def plan(self) -> PlacementPlan:
        closing = frozenset(self._closing)
        unfinished_s = self._history.note_closed(closing, self._now)
        if unfinished_s is not None:
            self.look_again(unfinished_s)
        again_s = None if self._again_s == FOREVER else self._again_s
        return PlacementPlan(tuple(self._decisions), closing, self._ready_s, self._not_loadable, again_s)

    def look_again(self, at_s: float) -> None:
        self._again_s = min(self._again_s, max(at_s, self._now))

    # --- What nobody serves ---

    def serve(self, demand: PlacementDemand) -> None:
        """Have a model loaded that requests wait for and nothing serves."""
        out = self._out(demand)
        leaving = any(self._residence(key) is LoadState.UNLOADING for key in demand.keys)
        not_loadable = None if leaving else self._why_not_loadable(out)
        if not_loadable is not None:
            self._not_loadable[demand.model] = not_loadable
            return
        option = self._best_option(demand, self._ready(out))
        if option is not None:
            self._go(demand, option)

    def _out(self, demand: PlacementDemand) -> list[LoadableDeployment]:
        places = (self._places[key] for key in sorted(demand.keys) if key in self._places)
        return [each for each in places if each.load_state is LoadState.UNLOADED]

    def _residence(self, key: str) -> LoadState | None:
        place = self._places.get(key)
        return None if place is None else place.load_state

    def _ready(self, out: Iterable[LoadableDeployment]) -> list[LoadableDeployment]:
        """The places whose last failure does not forbid to try now."""
        ready, failures = [], self._history.failures
        for place in out:
            again_s = failures.of(place.key).again_s
            if again_s <= self._now:
                ready.append(place)
            else:
                self.look_again(again_s)
        return ready

    def _why_not_loadable(self, out: Sequence[LoadableDeployment]) -> NotLoadable | None:
        """Why none of them can load it, if none can."""
        failures, now = self._history.failures, self._now
        fitting = [each for each in out if self._rooms[each.key].could_ever_hold(each)]
        if out and not fitting:
            return NotLoadable("it needs more memory than any agent has that could load it", None)
        failing = [
            each
            for each in fitting
            if failures.of(each.key).failures >= REFUSE_AFTER and failures.of(each.key).again_s > now
        ]
        if not fitting or len(failing) < len(fitting):
            return None
        first = min(failing, key=lambda each: (failures.of(each.key).again_s, each.key))
        return NotLoadable(failures.of(first.key).why, failures.of(first.key).again_s - now)

    def _best_option(
        self, demand: PlacementDemand, places: Sequence[LoadableDeployment]
    ) -> LoadOption | None:
        if len(places) > MOST_EVICTIONS:
            self.look_again(self._now + LOOK_S)
        return self._options.best(demand, places)

    # --- Doing it ---

    def _go(self, demand: PlacementDemand, option: LoadOption) -> None:
        wait_s = option.place.load_s
        if option.rank[0] == 0:
            self._decisions.append(LoadDecision(option.place.key, _why(demand)))
        else:
            wait_s += UNLOAD_S
        if option.at_s > self._now:
            self.look_again(option.at_s)
            wait_s += option.at_s - self._now
        elif option.victims:
            self._evict(option)
        if any(victim.running for victim in option.victims):
            wait_s += DRAIN_S
        for victim in option.victims:
            option.room.mark_leaving(victim)
        option.room.add_expected(option.place)
        self._ready_s.setdefault(demand.model, wait_s)

    def _evict(self, option: LoadOption) -> None:
        self._closing.update(victim.key for victim in option.victims)
        if any(victim.running for victim in option.victims):
            return
        for victim in option.victims:
            why = f"room for {option.place.model}, regret {option.regret:.3g}"
            self._decisions.append(UnloadDecision(victim.key, why))
            self._history.note_evicted(victim.model, self._now)

    # --- More of what is served ---

    def spread(self, demand: PlacementDemand) -> None:
        """Have a model loaded once more that is not served fast enough."""
        loading = any(self._residence(key) is LoadState.LOADING for key in demand.keys)
        if loading or not demand.keys.isdisjoint(self._closing):
            return
        worth = [
            place
            for place in self._ready(self._out(demand))
            if demand.wait_s > place.load_s + max(MARGIN_S, MARGIN_SHARE * place.load_s)
        ]
        option = self._best_option(demand, worth)
        if option is not None and option.at_s <= self._now and self._is_worth_it(demand, option):
            self._go(demand, option)

    def _is_worth_it(self, demand: PlacementDemand, option: LoadOption) -> bool:
        if not option.victims:
            return True
        if any(victim.running or victim.key in self._wanted for victim in option.victims):
            return False
        gain = self._history.popularity.per_s(demand.model, self._now)
        gain *= demand.wait_s - option.place.load_s
        return CLEARLY * option.regret < gain


def _why(demand: PlacementDemand) -> str:
    if demand.served:
        return f"{demand.requests} wait, the last {demand.wait_s:.0f} s"
    return f"{demand.requests} wait and nothing serves it"
