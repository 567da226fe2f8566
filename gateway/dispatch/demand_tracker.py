"""Collects the input of placement as plain data: which requests wait for which models, and what agents could
load. Belongs to the event loop's thread."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from gateway.dispatch.load_commands import LoadCommands
from gateway.domain.request import Tier
from gateway.domain.scopes import matches
from gateway.fleet.deployment import Deployment
from gateway.fleet.deployment import DeploymentOwner as Session
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.learning.devices import device_class, figures_of
from gateway.scheduling.placement.data import AgentDeployments, LoadableDeployment, LoadState, PlacementDemand
from gateway.scheduling.queue.tickets import Backlog
from gateway.scheduling.queue.waiting_room import WaitingRoom

UNWELL_S = 15.0
"""After this wait a deployment whose tunnel is away or whose circuit is open no longer counts as serving."""

SENT_AWAY_S = 30.0
"""How long a request that was refused because loading takes too long still counts as waiting."""

COPY_LOADS, COPY_S = 2.0, 10.0
"""One more copy that another gateway wants is worth as much as if the last in line would wait for so many
loads and so much longer: it is loaded where there is room, and in place of what is hardly missed."""


@dataclass(frozen=True, slots=True)
class _CopyWish:
    """Another gateway wants one more place to have a model loaded than ``beyond``."""

    fit: DeploymentConstraints
    beyond: int
    since_s: float
    until_s: float


class DemandTracker:
    """The demands of one gateway. Only models for which a waiting request was reported are looked at."""

    def __init__(
        self,
        index: ModelIndex,
        room: WaitingRoom,
        loading: LoadCommands,
        load_s: Callable[[Deployment], tuple[float, bool]],
        pinned: Sequence[str],
        *,
        shared: bool = False,
    ) -> None:
        """``shared``: other processes of the gateway have requests run on the same deployments."""
        self._index = index
        self._room = room
        self._loading = loading
        self._load_s = load_s
        self._pinned = pinned
        self._shared = shared
        self.wanted: dict[str, None] = {}
        """Models that requests wait for and that agents could load; removed when no request waits."""
        self._sent_away: dict[str, tuple[DeploymentConstraints, float, float]] = {}
        """Models for which a request was refused: its fit, since when, and until when this counts as
        demand."""
        self._copy_wishes: dict[str, _CopyWish] = {}
        """By model. Those that are fulfilled are removed."""

    def note_sent_away(
        self, model: str, fit: DeploymentConstraints, now: float, for_s: float = SENT_AWAY_S
    ) -> None:
        """A request was refused; its client will probably try again within ``for_s``."""
        since_s = self._sent_away[model][1] if model in self._sent_away else now
        self._sent_away[model] = without_avoided(fit), since_s, now + for_s

    def wish_copy(
        self,
        model: str,
        fit: DeploymentConstraints,
        beyond: int,
        now: float,
        for_s: float = SENT_AWAY_S,
    ) -> None:
        """Another gateway, or an operator, wants ``model`` loaded at one more place than ``beyond``. Counts
        for ``for_s``, or until it is being loaded there."""
        wish = self._copy_wishes.get(model)
        since_s = now if wish is None else wish.since_s
        self._copy_wishes[model] = _CopyWish(without_avoided(fit), beyond, since_s, now + for_s)

    def copies(self, model: str, fit: DeploymentConstraints) -> int:
        """How many places for requests of this fit have ``model`` loaded, or are loading it."""
        record, there = self._index.models.get(model), (LoadState.LOADED, LoadState.LOADING)
        managed = () if record is None else record.managed.values()
        return sum(each.suits(fit) and self._loading.load_state(each) in there for each in managed)

    def give_up(self, model: str) -> None:
        """``model`` cannot be loaded, so refused requests no longer count as demand for it."""
        self._sent_away.pop(model, None)
        self._copy_wishes.pop(model, None)

    @property
    def sent_away_until_s(self) -> float | None:
        """When the first refused request, or wish of another gateway, stops counting as demand; None if there
        is none."""
        wishes = (wish.until_s for wish in self._copy_wishes.values())
        return min((*(until_s for _, _, until_s in self._sent_away.values()), *wishes), default=None)

    def look(self, now: float) -> tuple[list[PlacementDemand], dict[str, list[DeploymentConstraints]]]:
        """The demand for each model, and by model the fits of waiting requests that no deployment serves."""
        demands, unserved = [], dict[str, list[DeploymentConstraints]]()
        self._sent_away = {model: each for model, each in self._sent_away.items() if now < each[2]}
        self._copy_wishes = {
            model: wish
            for model, wish in self._copy_wishes.items()
            if now < wish.until_s and self.copies(model, wish.fit) <= wish.beyond
        }
        for model in list(self.wanted):
            record, fits, backlog = self._index.models.get(model), *self._waiting(model)
            if record is None or backlog is None:
                del self.wanted[model]
                continue
            managed = record.managed
            unserved[model] = [fit for fit in fits if not self._served(model, fit, managed, backlog, now)]
            if unserved[model]:
                demands.append(_demand(model, unserved[model], managed, backlog))
            else:
                wait_s = max(self._wait_s(model, fits, backlog, now), self._copy_worth_s(model, managed))
                demands.append(_demand(model, fits, managed, backlog, wait_s))
        return demands, unserved

    def hosts(
        self, demands: Iterable[PlacementDemand]
    ) -> tuple[list[AgentDeployments], Mapping[str, Deployment]]:
        """The agents that have places of what waits, each with all its places; and the deployments that these
        stand for."""
        sessions: dict[Session, None] = {}
        for demand in demands:
            managed = self._index.models[demand.model].managed
            sessions.update((managed[key].session, None) for key in demand.keys)
        there: dict[str, Deployment] = {}
        return [self._host(session, there) for session in sessions], there

    # --- Within ---

    def _waiting(self, model: str) -> tuple[list[DeploymentConstraints], Backlog | None]:
        """The kinds of requests that wait for ``model``, whomever they avoid, and how many there are."""
        asked, backlog = self._sent_away.get(model), self._room.backlog(model)
        fits = dict.fromkeys(map(without_avoided, self._room.lanes(model)))
        if asked is not None:
            fits.setdefault(asked[0])
            backlog = backlog or Backlog(0, asked[1], Tier.STANDARD)
        if (wish := self._copy_wishes.get(model)) is not None:
            fits.setdefault(wish.fit)
            backlog = backlog or Backlog(1, wish.since_s, Tier.STANDARD)
        return list(fits), backlog

    def _copy_worth_s(self, model: str, managed: Mapping[str, Deployment]) -> float:
        """What another gateway's wish for one more copy counts as, in seconds of waiting; 0 where there is
        none."""
        if (wish := self._copy_wishes.get(model)) is None:
            return 0.0
        loads_s = [self._load_s(each)[0] for each in managed.values() if each.suits(wish.fit)]
        return COPY_LOADS * max(loads_s, default=0.0) + COPY_S

    def _served(
        self,
        model: str,
        fit: DeploymentConstraints,
        managed: Mapping[str, Deployment],
        backlog: Backlog,
        now: float,
    ) -> bool:
        """Whether something serves requests of this fit, or is about to."""
        if self._index.served(model, fit, patiently=now - backlog.oldest_s < UNWELL_S):
            return True
        return any(
            self._loading.load_state(each) is LoadState.LOADING and each.suits(fit)
            for each in managed.values()
        )

    def _wait_s(
        self, model: str, fits: Sequence[DeploymentConstraints], backlog: Backlog, now: float
    ) -> float:
        """How long the last in line will probably wait for what is loaded."""
        capacity = self._index.capacity(model, fits[0].route, 1)
        rate = self._room.departures_per_s(model, capacity, now)
        return backlog.requests / rate if rate > 0 else 0.0

    def _host(self, session: Session, there: dict[str, Deployment]) -> AgentDeployments:
        listed = [each for each in session.deployments.values() if each.listed]
        managed = [each for each in listed if each.managed]
        there.update((each.key, each) for each in managed)
        running = sum(map(self.running, listed))
        places = tuple(map(self._place, managed))
        return AgentDeployments(managed[0].agent, session.model_memory_bytes, places, running)

    def running(self, deployment: Deployment) -> int:
        """How many requests it runs, of all processes."""
        return max(deployment.in_flight, deployment.running) if self._shared else deployment.in_flight

    def _place(self, deployment: Deployment) -> LoadableDeployment:
        return LoadableDeployment(
            deployment.key,
            deployment.agent,
            deployment.model,
            self._loading.load_state(deployment),
            deployment.memory_bytes,
            self._load_s(deployment)[0],
            figures_of(device_class(deployment.device)).tflops,
            self.running(deployment),
            deployment.used_s,
            deployment.loaded_s,
            any(matches(deployment.model, pattern) for pattern in self._pinned),
        )


def without_avoided(fit: DeploymentConstraints) -> DeploymentConstraints:
    """The same, whatever it avoids: what failed on one engine may do on the same one loaded elsewhere."""
    return structs.replace(fit, avoid=frozenset())


def _demand(
    model: str,
    fits: Collection[DeploymentConstraints],
    managed: Mapping[str, Deployment],
    backlog: Backlog,
    wait_s: float | None = None,
) -> PlacementDemand:
    keys = frozenset(
        key
        for key, each in managed.items()
        if each.session.takes_work and not each.session.suspended and any(each.suits(fit) for fit in fits)
    )
    return PlacementDemand(
        model, keys, backlog.oldest_s, backlog.requests, backlog.tier, wait_s is not None, wait_s or 0.0
    )
