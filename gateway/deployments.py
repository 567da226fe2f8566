"""Deployments and the index over them: who serves which model, and where a slot is free (SCHEDULING §4).

The index is kept up to date at every change, so that finding a free slot never scans the fleet. Everything
belongs to the event loop's thread.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from gateway.health import DeploymentHealth
from gateway.queue import Capacity, Fit
from gateway.scheduling.base import NO_CAP, DeploymentView
from gateway.where import Where
from shared.endpoint import Endpoint
from shared.messages import DeploymentStatus

HOLD_GUESS_S = 2.0
"""How long a request is taken to keep its slot before one has been seen to give it back."""

HOLD_WEIGHT = 0.05
"""Weight of the latest request in the mean time a slot is kept: about the last twenty count."""


class Host(Protocol):
    """The session a deployment belongs to; :class:`gateway.agent_session.AgentSession`."""

    endpoint: Endpoint
    full: bool
    suspended: bool
    """Its tunnel is gone or silent, and it is kept: what runs may go on, nothing new is sent."""

    @property
    def takes_work(self) -> bool: ...
    def set_full(self, full: bool) -> None: ...
    def end(self) -> None: ...
    def stream_closed(self, deployment: "Deployment") -> None: ...


class Availability(Enum):
    """What there is for a model and route."""

    UNKNOWN = auto()
    """Nothing ever served the model."""
    GONE = auto()
    """Something did, nothing does now."""
    OTHER_ROUTES = auto()
    """The model is served, but not for this route."""
    ELSEWHERE = auto()
    """The model is served for this route, but not where the request may run."""
    SERVED = auto()
    """Served now, or being loaded."""


@dataclass(slots=True, eq=False, kw_only=True)
class Deployment(DeploymentView):
    """One model as served by one agent's engine, as long as the agent's session lasts.

    ``key`` is ``agent/id``. ``slots`` is the level the agent granted, whatever the rest says.
    """

    id: str
    session: Host
    status: DeploymentStatus = DeploymentStatus.LOADED
    listed: bool = True
    """Named by the agent's latest state. One that is not goes away with its last stream."""
    failures: int = 0
    """Failures in a row."""
    usable: bool = False
    health: DeploymentHealth | None = None
    shut: bool = False
    """It may take nothing for its health, and not just for a moment."""
    device: str = ""
    """What it runs on: only deployments on the same are compared for their pace."""
    counted_slots: int = 0
    """What the index has counted for it."""

    @property
    def well(self) -> bool:
        """Nothing speaks against it but, perhaps, that it is new."""
        return self.health is None or self.health.well

    @property
    def promising(self) -> bool:
        """It serves, or will in a moment: requests may wait for it. So while its session is suspended."""
        return (
            self.listed
            and self.session.takes_work
            and self.status in (DeploymentStatus.LOADED, DeploymentStatus.LOADING)
        )

    def compute_usable(self) -> bool:
        return (
            self.listed
            and self.status is DeploymentStatus.LOADED
            and self.session.takes_work
            and not self.session.suspended
            and not self.session.full
        )


@dataclass(slots=True, eq=False)
class ModelRecord:
    """What is known of one model."""

    name: str
    created_s: int
    """Unix time it was first served at."""
    serving: dict[str, Deployment] = field(default_factory=dict)
    """Promising deployments by key."""
    open: dict[str, Deployment] = field(default_factory=dict)
    """Those with a slot free, by key."""
    slots: int = 0
    """Slots of ``serving`` together, as far as their health lets them be used; of those on trial none."""
    lost_s: float | None = None
    """When the last of ``serving`` went, on the gateway's clock; None while there is one."""
    judged_s: float = float("-inf")
    """When the paces of ``serving`` were last compared."""
    hold_s: float = HOLD_GUESS_S
    held: bool = False
    left_s: float = float("-inf")
    """When one of ``serving`` went last, on the gateway's clock."""

    def slots_there(self, where: Where | None, version: str | None = None) -> int:
        """Of ``slots`` those of deployments that ``where`` allows, and of ``version`` where that is said."""
        return sum(
            each.counted_slots
            for each in self.serving.values()
            if (version is None or each.version == version) and (where is None or where.allows(each.labels))
        )


class ModelIndex:
    """Models ever served, and what serves them now. Bounded: the models longest gone are forgotten first."""

    def __init__(self, clock: Callable[[], float], max_models: int) -> None:
        self._clock = clock
        self._max_models = max_models
        self._models: dict[str, ModelRecord] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._assess: Callable[[Deployment], tuple[int, bool]] = _well
        self._came: Callable[[Deployment], None] = _nothing
        self._gone: Callable[[Deployment], None] = _nothing

    @property
    def models(self) -> Mapping[str, ModelRecord]:
        return self._models

    def subscribe(self, on_change: Callable[[str], None]) -> None:
        """``on_change(model)`` is called, within the same turn, whenever what serves a model has changed."""
        self._listeners.append(on_change)

    def watch_health(self, assess: Callable[[Deployment], tuple[int, bool]]) -> None:
        """``assess(deployment)`` is asked at every change of a deployment, before anything is counted, how
        many of its slots its health lets it use, and whether that is none for more than a moment."""
        self._assess = assess

    def watch_serving(self, came: Callable[[Deployment], None], gone: Callable[[Deployment], None]) -> None:
        """``came(deployment)`` is called when a deployment begins to be promising, ``gone`` when it ends."""
        self._came, self._gone = came, gone

    def learn(self, model: str, wall_s: float) -> bool:
        """Remember that ``model`` is, or once was, served. False when there is no room for one more name.

        Until a deployment of it comes it counts as lost just now: requests for it wait, for a while.
        """
        if model in self._models:
            return True
        if len(self._models) >= self._max_models and not self._forget_one():
            return False
        self._models[model] = ModelRecord(model, int(wall_s), lost_s=self._clock())
        return True

    def update(self, deployment: Deployment) -> None:
        """Take note that something about ``deployment`` has changed."""
        record = self._models.get(deployment.model)
        if record is None:
            return
        deployment.cap, deployment.shut = self._assess(deployment)
        deployment.usable = deployment.compute_usable()
        promising = deployment.promising
        deployment.trial = deployment.cap > 0 and not deployment.well
        slots = min(deployment.slots, deployment.cap) if promising and not deployment.trial else 0
        record.slots += slots - deployment.counted_slots
        deployment.counted_slots = slots
        if promising != (record.serving.get(deployment.key) is deployment):
            (self._came if promising else self._gone)(deployment)
            if not promising:
                record.left_s = self._clock()
        _keep(record.serving, deployment, promising)
        _keep(record.open, deployment, deployment.free > 0)
        if record.serving:
            record.lost_s = None
        elif record.lost_s is None:
            record.lost_s = self._clock()
        for listener in self._listeners:
            listener(deployment.model)

    def take(self, deployment: Deployment, work: float) -> None:
        """A request goes to ``deployment``, which must have a slot free."""
        assert deployment.free > 0, deployment.key
        deployment.in_flight += 1
        deployment.outstanding += work
        if deployment.free == 0:
            self._models[deployment.model].open.pop(deployment.key, None)

    def give_back(self, deployment: Deployment, work: float, held_s: float) -> None:
        """A request's stream is closed at both ends; it kept its slot for ``held_s``."""
        assert deployment.in_flight > 0, deployment.key
        deployment.in_flight -= 1
        deployment.outstanding = max(0.0, deployment.outstanding - work) if deployment.in_flight else 0.0
        record = self._models.get(deployment.model)
        if record is not None:
            record.hold_s = (
                held_s if not record.held else record.hold_s + HOLD_WEIGHT * (held_s - record.hold_s)
            )
            record.held = True
        deployment.session.stream_closed(deployment)
        self.update(deployment)

    def availability(self, model: str, route: str, where: Where | None = None) -> Availability:
        record = self._models.get(model)
        if record is None:
            return Availability.UNKNOWN
        if not record.serving:
            return Availability.GONE
        serving = record.serving.values()
        if not any(deployment.does(route) for deployment in serving):
            return Availability.OTHER_ROUTES
        if where is None or any(each.does(route) and where.allows(each.labels) for each in serving):
            return Availability.SERVED
        return Availability.ELSEWHERE

    def capacity(
        self,
        model: str,
        route: str,
        enough: int,
        where: Where | None = None,
        version: str | None = None,
    ) -> Capacity:
        """What serves ``model``, or one ``version`` of it, now, as far as ``where`` allows it. Free slots for
        ``route`` are counted up to ``enough``, no further."""
        record = self._models.get(model)
        if record is None:
            return Capacity(0, 0, HOLD_GUESS_S)
        everywhere = where is None and version is None
        slots = record.slots if everywhere else record.slots_there(where, version)
        fit = Fit(route, version=version, where=where)
        return Capacity(slots, self.free(model, fit, enough), record.hold_s)

    def free(self, model: str, fit: Fit, enough: int) -> int:
        """Free slots for requests of this fit, whomever they avoid, counted up to ``enough``."""
        free = 0
        for deployment in self._models[model].open.values() if model in self._models else ():
            if free >= enough:
                break
            if deployment.suits(fit.route, fit.version, fit.continuing, fit.where):
                free += deployment.free
        return min(free, enough)

    def open(self, model: str) -> Mapping[str, Deployment]:
        """Deployments of ``model`` with a slot free, by key."""
        record = self._models.get(model)
        return record.open if record is not None else {}

    def serving(self, model: str) -> Collection[Deployment]:
        """Promising deployments of ``model``."""
        record = self._models.get(model)
        return record.serving.values() if record is not None else ()

    def someone_else(self, model: str, fit: Fit, *, patiently: bool = False) -> bool:
        """Whether a request of this fit has anywhere to go, now or soon, but to the deployments it avoids.

        Those whose session is suspended and those that may take nothing for their health count only for those
        who would rather wait than fail (``patiently``).
        """
        record = self._models.get(model)
        return record is not None and any(
            key not in fit.avoid
            and (patiently or not (deployment.shut or deployment.session.suspended))
            and deployment.suits(fit.route, fit.version, fit.continuing, fit.where)
            for key, deployment in record.serving.items()
        )

    def _forget_one(self) -> bool:
        gone = [record for record in self._models.values() if record.lost_s is not None]
        if not gone:
            return False
        del self._models[min(gone, key=lambda record: record.lost_s or 0.0).name]
        return True


def _nothing(_: Deployment) -> None:
    """Nobody wants to know."""


def _well(_: Deployment) -> tuple[int, bool]:
    return NO_CAP, False


def _keep(index: dict[str, Deployment], deployment: Deployment, wanted: bool) -> None:
    if wanted:
        index[deployment.key] = deployment
    elif index.get(deployment.key) is deployment:
        del index[deployment.key]
