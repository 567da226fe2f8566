"""A small world of agents that load and unload as they are told, under a virtual clock."""

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from gateway.domain.request import Tier
from gateway.scheduling.placement.data import (
    AgentDeployments,
    LoadableDeployment,
    LoadDecision,
    LoadState,
    PlacementDemand,
)
from gateway.scheduling.placement.load_options import PlacementRules
from gateway.scheduling.placement.placement import Placement

STEP_S = 1.0
UNLOADING_S = 2.0


@dataclass
class Asking:
    """One request, and what became of it."""

    model: str
    came_s: float
    takes_s: float
    tier: Tier = Tier.STANDARD
    began_s: float | None = None

    @property
    def waited_s(self) -> float:
        assert self.began_s is not None, f"{self.model} of {self.came_s} s was never served"
        return self.began_s - self.came_s


@dataclass
class Site:
    """A place in the world. ``fails`` loads come to nothing, one after the other."""

    place: LoadableDeployment
    slots: int = 2
    fails: int = 0
    changes_s: float = 0.0
    ends: list[float] = field(default_factory=list)


class World:
    """Requests wait by model in order; every rule an agent keeps is asserted."""

    def __init__(
        self, memory: dict[str, int | None], places: list[LoadableDeployment], rules: PlacementRules
    ) -> None:
        self.now = 0.0
        self.memory = memory
        self.sites = {place.key: Site(place) for place in places}
        self.placement = Placement(rules)
        self.queues: dict[str, deque[Asking]] = {place.model: deque() for place in places}
        self.refused: dict[str, str] = {}
        self.loads = Counter[str]()
        self.log: list[str] = []
        self._closing: frozenset[str] = frozenset()

    def run(self, asked: list[Asking], until_s: float) -> None:
        """Let time pass; who asks comes at their time."""
        coming = deque(sorted(asked, key=lambda each: each.came_s))
        while self.now < until_s and (coming or any(self.queues.values()) or self._moving):
            while coming and coming[0].came_s <= self.now:
                one = coming.popleft()
                self.queues[one.model].append(one)
                self.placement.history.popularity.arrived(one.model, self.now)
            self._pass_time()
            self._decide()
            self._serve()
            self.now += STEP_S

    @property
    def loaded(self) -> list[str]:
        return [key for key, site in self.sites.items() if site.place.load_state is LoadState.LOADED]

    @property
    def _moving(self) -> bool:
        there = LoadState.LOADED, LoadState.UNLOADED
        return any(site.ends or site.place.load_state not in there for site in self.sites.values())

    def hosts(self) -> list[AgentDeployments]:
        return [
            AgentDeployments(
                agent,
                bytes_,
                tuple(each.place for each in self._at(agent)),
                sum(each.place.running for each in self._at(agent)),
            )
            for agent, bytes_ in self.memory.items()
        ]

    def demands(self) -> list[PlacementDemand]:
        return [self._demand(model, queue) for model, queue in self.queues.items() if queue]

    def _demand(self, model: str, queue: deque[Asking]) -> PlacementDemand:
        own = [site.place for site in self.sites.values() if site.place.model == model]
        there = [each for each in own if each.load_state in (LoadState.LOADED, LoadState.LOADING)]
        return PlacementDemand(
            model,
            frozenset(each.key for each in own),
            queue[0].came_s,
            len(queue),
            min((each.tier for each in queue), key=list(Tier).index),
            bool(there),
            len(queue) * queue[0].takes_s / max(1, 2 * len(there)),
        )

    def _decide(self) -> None:
        demands = self.demands()
        plan = self.placement.decide(demands, self.hosts() if demands else (), self.now)
        self._closing = plan.closing
        self.refused = {model: not_loadable.why for model, not_loadable in plan.not_loadable.items()}
        for decision in plan.decisions:
            site = self.sites[decision.key]
            self.log.append(f"{self.now:g} {type(decision).__name__} {decision.key}")
            if isinstance(decision, LoadDecision):
                assert site.place.load_state is LoadState.UNLOADED
                self._change(site, LoadState.LOADING, site.place.load_s)
                self.loads[site.place.model] += 1
            else:
                assert site.place.load_state is LoadState.LOADED
                assert not site.ends, f"{decision.key} was unloaded with work"
                assert decision.key in plan.closing
                self._change(site, LoadState.UNLOADING, UNLOADING_S)
        self._check_memory()

    def _check_memory(self) -> None:
        for agent, most in self.memory.items():
            there = [
                each.place for each in self._at(agent) if each.place.load_state is not LoadState.UNLOADED
            ]
            assert most is None or sum(each.memory_bytes or 0 for each in there) <= most

    def _pass_time(self) -> None:
        for site in self.sites.values():
            load_state = site.place.load_state
            site.ends = [end_s for end_s in site.ends if end_s > self.now]
            site.place = replace(site.place, running=len(site.ends))
            if load_state is LoadState.LOADING and self.now >= site.changes_s:
                self._end_loading(site)
            elif load_state is LoadState.UNLOADING and self.now >= site.changes_s:
                self._change(site, LoadState.UNLOADED, 0.0)

    def _end_loading(self, site: Site) -> None:
        if site.fails:
            site.fails -= 1
            self.placement.history.failures.failed(site.place.key, "out of luck", self.now)
            self._change(site, LoadState.UNLOADED, 0.0)
        else:
            self.placement.history.failures.note_loaded(site.place.key)
            self._change(site, LoadState.LOADED, 0.0)
            site.place = replace(site.place, loaded_s=self.now)

    def _serve(self) -> None:
        for site in self.sites.values():
            queue = self.queues[site.place.model]
            if site.place.load_state is not LoadState.LOADED or site.place.key in self._closing:
                continue
            while queue and len(site.ends) < site.slots:
                one = queue.popleft()
                one.began_s = self.now
                site.ends.append(self.now + one.takes_s)
            if site.ends:
                site.place = replace(site.place, running=len(site.ends), used_s=self.now)

    def _change(self, site: Site, load_state: LoadState, after_s: float) -> None:
        site.place = replace(site.place, load_state=load_state)
        site.changes_s = self.now + after_s

    def _at(self, agent: str) -> list[Site]:
        return [site for site in self.sites.values() if site.place.agent == agent]


def place(
    model: str,
    agent: str = "a",
    *,
    memory: int | None = 10,
    load_s: float = 20.0,
    load_state: LoadState = LoadState.UNLOADED,
    tflops: float = 0.0,
    pinned: bool = False,
    used_s: float = float("-inf"),
) -> LoadableDeployment:
    return LoadableDeployment(
        f"{agent}/{model}",
        agent,
        model,
        load_state,
        memory,
        load_s,
        tflops,
        used_s=used_s,
        pinned=pinned,
    )


def stream(
    model: str, every_s: float, until_s: float, takes_s: float = 5.0, since_s: float = 0.0
) -> list[Asking]:
    """Requests at even pauses."""
    times = itertools.takewhile(lambda at_s: at_s < until_s, itertools.count(since_s, every_s))
    return [Asking(model, at_s, takes_s) for at_s in times]
