"""Placement at work: told what waits and what changes, has agents load and unload (SCHEDULING §5).

What goes where is decided in :mod:`gateway.scheduling.placement`; commands are followed in
:mod:`gateway.loading`. It decides when somebody begins to wait for a model that could be loaded, when
anything of the fleet changes while somebody does, and when a plan says that time alone will change something.
Belongs to the event loop's thread.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import structlog

from gateway.admission import Hold
from gateway.deployment import Deployment
from gateway.deployment import Host as Session
from gateway.domain import Request, Tier
from gateway.errors import NoDeployment
from gateway.loading import Loading
from gateway.metrics import Metrics
from gateway.queue import Backlog, Fit, WaitingRoom
from gateway.registry import Registry
from gateway.scheduling.devices import device_class, figures_of
from gateway.scheduling.placement import Placement
from gateway.scheduling.placement_data import Demand, Hopeless, Host, Load, Place, Plan, Residence, Unload
from gateway.scheduling.placement_ways import PlacementRules
from gateway.timers import Cancellable, Timers

SPACING_S, SPACING_HOST_S = 0.1, 0.0005
"""It is not decided more often than this: much changes at once. So much longer for each agent that was looked
at: a round over a thousand takes 26 ms."""

UNWELL_S = 15.0
"""Who has waited so long for a deployment whose tunnel is away or whose circuit is open waits for nothing."""

ASKED_S = 30.0
"""A request that was sent away because loading takes too long for it counts as waiting for so long."""

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
        refuse: Callable[[str, Collection[Fit], NoDeployment], None],
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
        self._loading = Loading(
            registry.index,
            self._placement.memory,
            metrics,
            timers,
            load_timeout_s=settings.load_timeout_s,
            changed=self._moved,
            loaded=loaded,
        )
        registry.watch_results(self._loading.answered)
        registry.index.subscribe(self._model_changed)
        self._wanted: dict[str, None] = {}
        """Models that somebody waits for and agents could load."""
        self._asked: dict[str, tuple[Fit, float, float]] = {}
        """Models for which somebody was sent away: for what, when, and until when it counts."""
        self._closing: dict[str, Deployment] = {}
        self._ready_s: dict[str, float] = {}
        """When models will be loaded that nothing serves, on the clock, as was planned last."""
        self._hopeless: dict[str, tuple[Hopeless, float]] = {}
        """Models that cannot be loaded, and until when that holds."""
        self._managed: dict[str, Deployment] = {}
        """Those that were decided on last, by key."""
        self._spacing_s = SPACING_S
        self._decided_s = float("-inf")
        self._due: tuple[float, Cancellable] | None = None

    # --- For the request path ---

    def arrived(self, request: Request, now: float) -> None:
        """A request came. From now on it can say what it waits for."""
        record = self._index.models.get(request.model)
        if record is not None and record.managed:
            self._placement.memory.popularity.arrived(request.model, now)
            request.load_note = partial(self._note, request)

    def waiting(self, model: str) -> None:
        """Somebody waits for ``model``."""
        record = self._index.models.get(model)
        if record is not None and record.managed:
            self._wanted[model] = None
            self._soon()

    def hold(self, request: Request, now: float) -> Hold:
        """How long a request may wait that has to until its model is loaded. Raises NoDeployment when nothing
        can load it."""
        model = request.model
        self._check_hope(model, now)
        self._metrics.held(model)
        return self.prospect(request, now)

    def prospect(self, request: Request, now: float) -> Hold:
        """When a model will be loaded for it, and how long it may wait for that."""
        model = request.model
        record = self._index.models[model]
        expected_s = self.expected_s(model, now)
        slots = sum(each.promised_slots for each in record.managed.values() if self._is_loading(each))
        slots = slots or max((each.promised_slots for each in record.loadable.values()), default=0)
        if expected_s is None:
            return Hold(self._settings.hold_s, 0, 0.0)
        hold_s = min(self._settings.hold_s, MARGIN * expected_s + MARGIN_S)
        return Hold(hold_s, slots, expected_s)

    def hold_longer(self, request: Request, entered_s: float, now: float) -> float | None:
        """Until when a request may wait on that has waited as long as it was to, and whose model is still to
        be loaded; None: no longer."""
        until_s = entered_s + self._settings.hold_s
        if request.deadline_s is not None:
            until_s = min(until_s, request.deadline_s)
        return until_s if now < until_s else None

    def asked(self, request: Request, now: float) -> None:
        """A request was sent away because its model is not loaded: it is loaded all the same."""
        fit = Fit.of(request)._replace(avoid=frozenset())
        since_s = self._asked[request.model][1] if request.model in self._asked else now
        self._asked[request.model] = fit, since_s, now + ASKED_S
        self.waiting(request.model)

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
        """Decides no more."""
        if self._due is not None:
            self._due[1].cancel()
            self._due = None
        self._wanted.clear()

    def _model_changed(self, model: str) -> None:
        if self._wanted or self._closing:
            self._soon()

    def _moved(self, deployment: Deployment) -> None:
        """Something has become of it."""
        self._hopeless.pop(deployment.model, None)
        self._soon()

    def _soon(self) -> None:
        if self._wanted or self._closing or self._loading.busy:
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
        demands, unserved = self._demands(now)
        hosts = self._hosts(demands)
        self._spacing_s = SPACING_S + SPACING_HOST_S * len(hosts)
        plan = self._placement.decide(demands, hosts, now)
        self._ready_s = {model: now + wait_s for model, wait_s in plan.ready_s.items()}
        self._close_and_open(plan)
        for decision in plan.decisions:
            self._carry_out(decision, self._managed[decision.key])
        self._say_hopeless(plan, unserved, now)
        times = [
            at_s
            for at_s in (self._loading.due_s, plan.look_again_s, self._asked_until_s())
            if at_s is not None
        ]
        if times:
            self._look_at(max(min(times), now + self._spacing_s))

    def _asked_until_s(self) -> float | None:
        return min((until_s for _, _, until_s in self._asked.values()), default=None)

    def _carry_out(self, decision: Load | Unload, deployment: Deployment) -> None:
        if isinstance(decision, Load):
            self._loading.load(deployment, decision.why)
        else:
            self._loading.unload(deployment, decision.why)

    def _close_and_open(self, plan: Plan) -> None:
        """What is to go for another gets nothing new; what no longer is gets requests again."""
        for key, deployment in list(self._closing.items()):
            if key not in plan.closing:
                del self._closing[key]
                if not deployment.told_to_go:
                    deployment.closing = False
                    self._index.update(deployment)
        for key in plan.closing:
            deployment = self._managed[key]
            if key not in self._closing:
                self._closing[key] = deployment
                deployment.closing = True
                self._index.update(deployment)
                _log.info(
                    "model_closing", deployment=key, model=deployment.model, running=deployment.in_flight
                )

    def _say_hopeless(self, plan: Plan, unserved: Mapping[str, Collection[Fit]], now: float) -> None:
        for model, hopeless in plan.hopeless.items():
            until_s = now + (RECHECK_S if hopeless.retry_s is None else hopeless.retry_s)
            self._hopeless[model] = hopeless, until_s
            self._asked.pop(model, None)
            _log.warning("model_cannot_be_loaded", model=model, reason=hopeless.why)
            self._refuse(model, unserved[model], _not_loadable(model, hopeless, until_s - now))

    def _check_hope(self, model: str, now: float) -> None:
        hopeless = self._hopeless.get(model)
        if hopeless is None:
            return
        if now < hopeless[1]:
            raise _not_loadable(model, hopeless[0], hopeless[1] - now)
        del self._hopeless[model]

    # --- What there is ---

    def _is_loading(self, deployment: Deployment) -> bool:
        return self._loading.residence(deployment) is Residence.LOADING

    def _demands(self, now: float) -> tuple[list[Demand], dict[str, list[Fit]]]:
        """What waits, by model; and those kinds of requests among them that nothing serves."""
        demands, unserved = [], dict[str, list[Fit]]()
        self._asked = {model: each for model, each in self._asked.items() if now < each[2]}
        for model in list(self._wanted):
            fits, backlog = self._fits(model, now)
            if backlog is None:
                del self._wanted[model]
                continue
            unserved[model] = [fit for fit in fits if not self._served(model, fit, backlog, now)]
            demands.append(self._demand(model, unserved[model] or fits, backlog, not unserved[model], now))
        return demands, unserved

    def _fits(self, model: str, now: float) -> tuple[list[Fit], Backlog | None]:
        """The kinds of requests that wait for ``model``, whomever they avoid, and how many there are."""
        asked, backlog = self._asked.get(model), self._room.backlog(model)
        fits = dict.fromkeys(fit._replace(avoid=frozenset()) for fit in self._room.lanes(model))
        if asked is not None:
            fits.setdefault(asked[0])
            backlog = backlog or Backlog(0, asked[1], Tier.STANDARD)
        return list(fits), backlog

    def _served(self, model: str, fit: Fit, backlog: Backlog, now: float) -> bool:
        """Whether something serves requests of this fit, or is about to."""
        if self._index.served(model, fit, patiently=now - backlog.oldest_s < UNWELL_S):
            return True
        return any(
            self._is_loading(each) and _suits(each, fit)
            for each in self._index.models[model].managed.values()
        )

    def _demand(
        self, model: str, fits: Collection[Fit], backlog: Backlog, served: bool, now: float
    ) -> Demand:
        keys = [
            key
            for key, each in self._index.models[model].managed.items()
            if each.session.takes_work
            and not each.session.suspended
            and any(_suits(each, fit) for fit in fits)
        ]
        wait_s = 0.0
        if served:
            capacity = self._index.capacity(model, next(iter(fits)).route, 1)
            rate = self._room.departures_per_s(model, capacity, now)
            wait_s = backlog.requests / rate if rate > 0 else 0.0
        return Demand(
            model, frozenset(keys), backlog.oldest_s, backlog.requests, backlog.tier, served, wait_s
        )

    def _hosts(self, demands: Iterable[Demand]) -> list[Host]:
        """The agents that have places of what waits, each with all its places."""
        sessions: dict[Session, None] = {}
        self._managed = {}
        for demand in demands:
            managed = self._index.models[demand.model].managed
            sessions.update((managed[key].session, None) for key in demand.keys)
        return [self._host(session) for session in sessions]

    def _host(self, session: Session) -> Host:
        there = [each for each in session.deployments.values() if each.listed]
        managed = [each for each in there if each.managed]
        self._managed.update((each.key, each) for each in managed)
        running = sum(each.in_flight for each in there)
        name = managed[0].agent
        return Host(name, session.model_memory_bytes, tuple(map(self._place, managed)), running)

    def _place(self, deployment: Deployment) -> Place:
        return Place(
            deployment.key,
            deployment.agent,
            deployment.model,
            self._loading.residence(deployment),
            deployment.memory_bytes,
            self._load_s(deployment)[0],
            figures_of(device_class(deployment.device)).tflops,
            deployment.in_flight,
            deployment.used_s,
            deployment.loaded_s,
            any(fnmatchcase(deployment.model, pattern) for pattern in self._settings.pinned),
        )

    # --- What is said of it ---

    def _left_s(self, deployment: Deployment, now: float) -> float | None:
        """Until it is loaded that is being loaded."""
        load_s, known = self._load_s(deployment)
        ran_s, done = now - self._loading.began_s(deployment), deployment.load_progress
        if done:
            return max(1.0, load_s * (1 - done) if known else ran_s * (1 - done) / done)
        return max(1.0, load_s - ran_s) if known else None

    def _note(self, request: Request) -> str | None:
        """What it waits for."""
        model = request.model
        if not self._index.awaits_load(model, Fit.of(request)):
            return None
        managed = self._index.models[model].managed.values()
        loading = any(map(self._is_loading, managed))
        words = "loading the model" if loading else "waiting for room to load the model"
        left_s = self.expected_s(model, self._timers.time())
        return words if left_s is None else f"{words}, about {left_s:.0f} s left"


def _suits(deployment: Deployment, fit: Fit) -> bool:
    return deployment.suits(fit.route, fit.version, fit.continuing, fit.where)


def _not_loadable(model: str, hopeless: Hopeless, retry_s: float) -> NoDeployment:
    """What is told to clients: of reasons that an engine gives only that there are some."""
    why = "loading it failed everywhere" if hopeless.retry_s is not None else hopeless.why
    return NoDeployment(
        f"The model {model!r} cannot be loaded now: {why}; try again later.",
        param="model",
        code="model_not_loadable",
        retry_after_s=retry_s,
    )
