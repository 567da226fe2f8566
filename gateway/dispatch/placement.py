"""Carries out placement: collects what waits and what has changed, and has agents load and unload models.

What goes where is decided in :mod:`gateway.scheduling.placement.placement`; commands are followed in
:mod:`gateway.dispatch.load_commands`. It decides when somebody begins to wait for a model that could be
loaded, when anything of the fleet changes while somebody does, and when a plan says that time alone will
change something. Belongs to the event loop's thread.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from gateway.cluster.ownership import Ownership, SoleOwner
from gateway.cluster.placement_demands import EvictionWish, PlacementDemands
from gateway.dispatch.demand_tracker import SENT_AWAY_S, DemandTracker
from gateway.dispatch.evictions import WantedEvictions
from gateway.dispatch.load_commands import LoadCommands
from gateway.domain.errors import NoDeployment
from gateway.domain.request import Request
from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment, DeploymentOwner
from gateway.fleet.registry import Registry
from gateway.observability.metrics import Metrics
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.placement.data import LoadDecision, LoadState, NotLoadable, PlacementPlan
from gateway.scheduling.placement.load_options import PlacementRules
from gateway.scheduling.placement.placement import Placement
from gateway.scheduling.queue.waiting_room import WaitingRoom
from shared.process.timers import Cancellable
from shared.protocol.messages import CommandVerb

SPACING_S, SPACING_HOST_S = 0.1, 0.0005
"""It is not decided more often than this: much changes at once. So much longer for each agent that was looked
at: a round over a thousand takes 26 ms."""

RECHECK_S = 30.0
"""What fits no agent may fit one that comes."""

MARGIN, MARGIN_S = 1.5, 15.0
"""Loads may take so many times what is expected, and so much longer."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """How long models stay, how long requests are held for them."""

    hold_s: float = 300.0
    """A request waits for its model to be loaded for so long at most."""
    min_residence_s: float = 30.0
    """A model stays loaded for so long at least."""
    load_timeout_s: float = 600.0
    """A load that takes longer has failed."""
    pinned: tuple[str, ...] = ()
    """Models, as shell patterns, that are never unloaded for others."""


@dataclass(frozen=True, slots=True)
class PlacementCluster:
    """What placement has of a gateway of several processes: one of them has models loaded and unloaded, and
    knows what requests wait for at the others."""

    ownership: Ownership = field(default_factory=SoleOwner)
    demands: PlacementDemands | None = None
    """None: this process knows of its own requests only."""
    epoch: Callable[[DeploymentOwner], int | None] = lambda session: None
    """What commands to an agent say of it."""


@dataclass(frozen=True, slots=True)
class LoadWait:
    """How long a request may wait until its model is loaded, and in how many seconds how many slots are
    expected then; 0 slots: who knows."""

    hold_s: float
    coming: int
    ready_s: float


class Placer:
    """One for a dispatcher."""

    def __init__(
        self,
        registry: Registry,
        room: WaitingRoom,
        metrics: Metrics,
        timers: Timers,
        settings: PlacementSettings,
        *,
        load_s: Callable[[Deployment], tuple[float, bool]],
        loaded: Callable[[Deployment, float], None],
        refuse: Callable[[str, Collection[DeploymentConstraints], NoDeployment], None],
        cluster: PlacementCluster = PlacementCluster(),
    ) -> None:
        """``load_s`` says how long loading takes and whether that is known or a guess; ``loaded`` is told
        when a model was loaded and how long it took; ``refuse`` sends away those of these fits that wait for
        a model."""
        self._index = registry.index
        self._room = room
        self._metrics = metrics
        self._timers = timers
        self._settings = settings
        self._load_s = load_s
        self._refuse = refuse
        self._placement = Placement(PlacementRules(settings.hold_s, settings.min_residence_s))
        self._loading = LoadCommands(
            registry.index,
            self._placement.history,
            metrics,
            timers,
            load_timeout_s=settings.load_timeout_s,
            changed=self._moved,
            loaded=loaded,
            epoch=cluster.epoch,
            may_act=lambda: cluster.ownership.owns,
        )
        registry.watch_results(self._loading.answered)
        registry.index.subscribe(self._model_changed, slots=True)
        self._cluster = cluster
        shared = cluster.demands is not None
        self._demands = DemandTracker(
            registry.index, room, self._loading, load_s, settings.pinned, shared=shared
        )
        self._evictions = WantedEvictions(registry.index, self._loading, self._demands.running)
        if cluster.demands is not None:
            cluster.demands.evict = self._begin_eviction
            cluster.demands.own = lambda now: self._demands.look(now)[0]
            cluster.demands.changed = lambda: self._look_at(self._decided_s + self._spacing_s)
        self._closing: dict[str, Deployment] = {}
        self._ready_s: dict[str, float] = {}
        """When models will be loaded that nothing serves, on the clock, as was planned last."""
        self._not_loadable: dict[str, tuple[NotLoadable, float]] = {}
        """Models that cannot be loaded, and until when that holds."""
        self._spacing_s = SPACING_S
        self._decided_s = float("-inf")
        self._due: tuple[float, Cancellable] | None = None

    # --- For the request path ---

    def arrived(self, request: Request, now: float) -> None:
        """A request came. From now on it can say what it waits for."""
        record = self._index.models.get(request.model)
        if record is not None and record.managed:
            self._placement.history.popularity.arrived(request.model, now)
            request.load_note = partial(self._note, request)

    def waiting(self, model: str) -> None:
        """A request waits for ``model``."""
        record = self._index.models.get(model)
        if record is not None and record.managed:
            self._demands.wanted[model] = None
            self._soon()

    def hold(self, request: Request, now: float) -> LoadWait:
        """How long a request may wait that has to until its model is loaded. Raises NoDeployment when nothing
        can load it."""
        model = request.model
        self._check_hope(model, now)
        self._metrics.held(model)
        return self.expected_wait(request, now)

    def expected_wait(self, request: Request, now: float) -> LoadWait:
        """When a model will be loaded for it, and how long it may wait for that."""
        model = request.model
        record = self._index.models[model]
        expected_s = self.expected_s(model, now)
        slots = sum(each.promised_slots for each in record.managed.values() if self._is_loading(each))
        slots = slots or max((each.promised_slots for each in record.loadable.values()), default=0)
        if expected_s is None:
            return LoadWait(self._settings.hold_s, 0, 0.0)
        hold_s = min(self._settings.hold_s, MARGIN * expected_s + MARGIN_S)
        return LoadWait(hold_s, slots, expected_s)

    def hold_longer(self, request: Request, entered_s: float, now: float) -> float | None:
        """Until when a request may wait on that has waited as long as it was to, and whose model is still to
        be loaded; None: no longer."""
        until_s = entered_s + self._settings.hold_s
        if request.deadline_s is not None:
            until_s = min(until_s, request.deadline_s)
        return until_s if now < until_s else None

    def note_sent_away(self, request: Request, now: float) -> None:
        """A request was refused because its model is not loaded yet; have the model loaded for the next
        ones."""
        self._demands.note_sent_away(request.model, DeploymentConstraints.of(request), now)
        self.waiting(request.model)

    def wish(
        self,
        model: str,
        fit: DeploymentConstraints,
        now: float,
        beyond: int = 0,
        for_s: float = SENT_AWAY_S,
    ) -> str | None:
        """Another gateway or an operator wants ``model`` loaded: at one more place than ``beyond``. Counts as
        a request for ``for_s``. Why it cannot be loaded; None: it may be."""
        if (why := self.why_not_loadable(model, now)) is not None:
            return why
        if beyond:
            self._demands.wish_copy(model, fit, beyond, now, for_s)
        else:
            self._demands.note_sent_away(model, fit, now, for_s)
        self.waiting(model)
        return None

    def why_not_loadable(self, model: str, now: float) -> str | None:
        """What is known to be against having ``model`` loaded; None: nothing."""
        try:
            self._check_hope(model, now)
        except NoDeployment as error:
            return error.message
        return None

    def evict(self, wish: EvictionWish) -> None:
        """An operator wants these unloaded, at whichever process requests for them come in."""
        if self._cluster.demands is not None:
            self._cluster.demands.tell(wish)
        self._begin_eviction(wish)

    def copies(self, model: str, fit: DeploymentConstraints) -> int:
        """How many places for requests of this fit have ``model`` loaded, or are loading it."""
        return self._demands.copies(model, fit)

    def expected_s(self, model: str, now: float) -> float | None:
        """In how many seconds ``model`` is loaded somewhere, as far as is known."""
        record = self._index.models.get(model)
        if record is None:
            return None
        loading = [each for each in record.managed.values() if self._is_loading(each)]
        if loading:
            left = [left_s for each in loading if (left_s := self._left_s(each, now)) is not None]
            return min(left, default=None)
        known = [load_s for load_s, said in map(self._load_s, record.loadable.values()) if said]
        if known and model in self._ready_s:
            return max(1.0, self._ready_s[model] - now)
        return min(known, default=None)

    # --- Deciding ---

    def close(self) -> None:
        """Make no more decisions."""
        if self._due is not None:
            self._due[1].cancel()
            self._due = None
        if self._cluster.demands is not None:
            self._cluster.demands.changed = lambda: None
        self._demands.wanted.clear()

    def _begin_eviction(self, wish: EvictionWish) -> None:
        """Wishes that the model be loaded are over."""
        record, now = self._index.models.get(wish.model), self._timers.time()
        self._demands.give_up(wish.model)
        for key, deployment in [] if record is None else list(record.managed.items()):
            if not wish.keys or key in wish.keys:
                self._evictions.begin(deployment, now)
        self._soon()

    def _model_changed(self, model: str) -> None:
        others = self._cluster.demands
        waits = self._demands.wanted or (others is not None and others.others_wait)
        if waits or self._closing or self._evictions.wanted:
            self._soon()

    def _moved(self, deployment: Deployment) -> None:
        """The state of ``deployment`` has changed: loading its model may be tried again."""
        self._not_loadable.pop(deployment.model, None)
        self._soon()

    @property
    def _others_wait(self) -> bool:
        return self._cluster.demands is not None and self._cluster.demands.others_wait

    def _soon(self) -> None:
        closing = self._closing or self._evictions.wanted
        if self._demands.wanted or closing or self._loading.busy or self._others_wait:
            self._look_at(self._decided_s + self._spacing_s)

    def _look_at(self, at_s: float) -> None:
        """Decide at this time, or earlier."""
        if self._due is not None:
            if self._due[0] <= at_s:
                return
            self._due[1].cancel()
        now = self._timers.time()
        timer = (
            self._timers.call_at(at_s, self._decide) if at_s > now else self._timers.call_soon(self._decide)
        )
        self._due = at_s, timer

    def _decide(self) -> None:
        now = self._timers.time()
        self._due, self._decided_s = None, now
        self._loading.look(now)
        self._evictions.look(now, commands=self._cluster.ownership.owns)
        demands, unserved = self._demands.look(now)
        shared, owns = self._cluster.demands, self._cluster.ownership.owns
        if shared is not None:
            shared.note(demands)
            demands = shared.with_others(demands, self._places_of) if owns else demands
        hosts, managed = self._demands.hosts(demands)
        self._spacing_s = SPACING_S + SPACING_HOST_S * len(hosts)
        plan = self._placement.decide(demands, hosts, now)
        self._ready_s = {model: now + wait_s for model, wait_s in plan.ready_s.items()}
        self._close_and_open(plan if owns else PlacementPlan(), managed)
        for decision in plan.decisions if owns else ():
            verb = CommandVerb.LOAD if isinstance(decision, LoadDecision) else CommandVerb.UNLOAD
            self._loading.command(verb, managed[decision.key], decision.why)
        self._refuse_not_loadable(plan, unserved, now)
        times = [
            at_s
            for at_s in (
                self._loading.due_s,
                plan.look_again_s,
                self._demands.sent_away_until_s,
                self._evictions.due_s,
            )
            if at_s is not None
        ]
        if times:
            self._look_at(max(min(times), now + self._spacing_s))

    def _places_of(self, model: str) -> Collection[str]:
        record = self._index.models.get(model)
        return () if record is None else record.managed.keys()

    def _close_and_open(self, plan: PlacementPlan, managed: Mapping[str, Deployment]) -> None:
        """What is to go for another gets nothing new; what no longer is gets requests again."""
        for key, deployment in list(self._closing.items()):
            if key not in plan.closing:
                del self._closing[key]
                if not deployment.told_to_go and key not in self._evictions.wanted:
                    deployment.closing = False
                    self._index.update(deployment)
        for key in plan.closing:
            deployment = managed[key]
            if key not in self._closing:
                self._closing[key] = deployment
                deployment.closing = True
                self._index.update(deployment)
                _log.info(
                    "model_closing", deployment=key, model=deployment.model, running=deployment.in_flight
                )

    def _refuse_not_loadable(
        self, plan: PlacementPlan, unserved: Mapping[str, Collection[DeploymentConstraints]], now: float
    ) -> None:
        for model, not_loadable in plan.not_loadable.items():
            until_s = now + (RECHECK_S if not_loadable.retry_s is None else not_loadable.retry_s)
            self._not_loadable[model] = not_loadable, until_s
            self._demands.give_up(model)
            _log.warning("model_cannot_be_loaded", model=model, reason=not_loadable.why)
            self._refuse(model, unserved.get(model, ()), _load_refusal(model, not_loadable, until_s - now))

    def _check_hope(self, model: str, now: float) -> None:
        not_loadable = self._not_loadable.get(model)
        if not_loadable is None:
            return
        if now < not_loadable[1]:
            raise _load_refusal(model, not_loadable[0], not_loadable[1] - now)
        del self._not_loadable[model]

    def _is_loading(self, deployment: Deployment) -> bool:
        return self._loading.load_state(deployment) is LoadState.LOADING

    # --- What is said of it ---

    def _left_s(self, deployment: Deployment, now: float) -> float | None:
        """In how many seconds ``deployment`` will have loaded its model; None: not known."""
        load_s, known = self._load_s(deployment)
        ran_s, done = now - self._loading.began_s(deployment), deployment.load_progress
        if done:
            return max(1.0, load_s * (1 - done) if known else ran_s * (1 - done) / done)
        return max(1.0, load_s - ran_s) if known else None

    def _note(self, request: Request) -> str | None:
        """What ``request`` waits for, as text for its client; None if its model is loaded."""
        model = request.model
        if not self._index.awaits_load(model, DeploymentConstraints.of(request)):
            return None
        managed = self._index.models[model].managed.values()
        loading = any(map(self._is_loading, managed))
        words = "loading the model" if loading else "waiting for room to load the model"
        left_s = self.expected_s(model, self._timers.time())
        return words if left_s is None else f"{words}, about {left_s:.0f} s left"


def _load_refusal(model: str, not_loadable: NotLoadable, retry_s: float) -> NoDeployment:
    """The error for clients. Where engines failed to load the model, it does not repeat their reasons."""
    why = "loading it failed everywhere" if not_loadable.retry_s is not None else not_loadable.why
    return NoDeployment(
        f"The model {model!r} cannot be loaded now: {why}; try again later.",
        param="model",
        code="model_not_loadable",
        retry_after_s=retry_s,
    )
