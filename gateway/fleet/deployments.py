"""Deployments and the index over them: who serves which model, and where a slot is free (SCHEDULING §4).

The index is kept up to date at every change, so that finding a free slot never scans the fleet. Everything
belongs to the event loop's thread.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from gateway.domain.residency import Residency
from gateway.fleet.deployment import Deployment as Deployment
from gateway.scheduling.base import NO_CAP
from gateway.scheduling.queue.tickets import Capacity, Fit
from shared.protocol.messages import DeploymentStatus

HOLD_GUESS_S = 2.0
"""How long a request is taken to keep its slot before one has been seen to give it back."""

HOLD_WEIGHT = 0.05
"""Weight of the latest request in the mean time a slot is kept: about the last twenty count."""


PLACES = 16
"""Constraints for which the deployments with a free slot are remembered, for each model: each is kept up to
date at every change."""

KINDS = 64
"""Constraints for which the slots that meet them are remembered, for each model."""


class Availability(Enum):
    """What there is for a model and route."""

    UNKNOWN = auto()
    """Nothing ever served the model."""
    GONE = auto()
    """Something did, nothing does now."""
    OTHER_ROUTES = auto()
    """The model is served, but not for this route."""
    ELSEWHERE = auto()
    """The model is served for this route, but not where the request may run, or not by the agent it is
    for."""
    SERVED = auto()
    """Served now, or being loaded."""


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
    loadable: dict[str, Deployment] = field(default_factory=dict)
    """Those that could be loaded, by key; none unless somebody sees to that."""
    managed: dict[str, Deployment] = field(default_factory=dict)
    """Those whose agents load them when told, loaded or not; none unless somebody sees to that."""
    slots: int = 0
    """Slots of ``serving`` together, as far as their health lets them be used; of those on trial none."""
    lost_s: float | None = None
    """When the last of ``serving`` and ``loadable`` went, on the gateway's clock; None while there is one."""
    limit: tuple[int | None] | None = None
    """What :meth:`ModelIndex.context_limit` says; None: to be computed."""
    judged_s: float = float("-inf")
    """When the paces of ``serving`` were last compared."""
    hold_s: float = HOLD_GUESS_S
    held: bool = False
    left_s: float = float("-inf")
    """When one of ``serving`` went last, on the gateway's clock."""
    slots_of: dict[tuple[Residency | None, str | None, str | None], int] = field(default_factory=dict)
    """What :meth:`slots_there` said, as long as it is true."""

    open_of: dict[Residency, dict[str, Deployment]] = field(default_factory=dict)
    """Of ``open`` those that a constraint allows, for the constraints that were asked for."""

    def open_there(self, where: Residency) -> Mapping[str, Deployment]:
        """Of ``open`` those that ``where`` allows."""
        found = self.open_of.get(where)
        if found is None:
            if len(self.open_of) >= PLACES:
                self.open_of.clear()
            there = {key: each for key, each in self.open.items() if where.allows(each.labels)}
            found = self.open_of[where] = there
        return found

    def note_open(self, deployment: Deployment, is_open: bool) -> None:
        """It has a slot free, or has none."""
        _keep(self.open, deployment, is_open)
        for where, there in self.open_of.items():
            if where.allows(deployment.labels):
                _keep(there, deployment, is_open)

    def slots_there(
        self, where: Residency | None, version: str | None = None, agent: str | None = None
    ) -> int:
        """Of ``slots`` those of deployments that ``where`` allows, and of ``version`` and of ``agent`` where
        that is said."""
        found = self.slots_of.get((where, version, agent))
        if found is None:
            if len(self.slots_of) >= KINDS:
                self.slots_of.clear()
            found = self.slots_of[where, version, agent] = self._slots_there(where, version, agent)
        return found

    def _slots_there(self, where: Residency | None, version: str | None, agent: str | None) -> int:
        return sum(
            each.counted_slots
            for each in self.serving.values()
            if (version is None or each.version == version)
            and (agent is None or each.agent == agent)
            and (where is None or where.allows(each.labels))
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
        self._moved: Callable[[Deployment, DeploymentStatus | None], None] | None = None
        self._lost: Callable[[Deployment], None] = _nothing

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

    def watch_loading(self, moved: Callable[[Deployment, DeploymentStatus | None], None]) -> None:
        """From now on what is loadable counts. ``moved`` is called with the status before when that of a
        managed deployment is another one, and with None when its agent names it for the first time."""
        self._moved = moved

    def watch_losses(self, lost: Callable[[Deployment], None]) -> None:
        """``lost(deployment)`` is called when the agent of a deployment, which stays connected, declares its
        engine lost, after everything else that it said has been taken note of."""
        self._lost = lost

    def engine_lost(self, deployment: Deployment) -> None:
        """Its agent has just declared its engine lost."""
        self._lost(deployment)

    def moved(self, deployment: Deployment, before: DeploymentStatus | None) -> None:
        """A deployment's status is another one, or it is new."""
        if self._moved is not None and deployment.managed:
            self._moved(deployment, before)

    def learn(self, model: str, wall_s: float, *, lately: bool = False) -> bool:
        """Remember that ``model`` is, or once was, served. False when there is no room for one more name.

        Until a deployment of it comes it counts as lost just now: requests for it wait, for a while.
        ``lately``: it was served before this process began, and not all that did may be back at once.
        """
        if model in self._models:
            return True
        if len(self._models) >= self._max_models and not self._forget_one():
            return False
        record = self._models[model] = ModelRecord(model, int(wall_s), lost_s=self._clock())
        if lately:
            record.left_s = self._clock()
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
        counts = promising and not deployment.trial and not deployment.closing
        slots = min(deployment.slots, deployment.cap) if counts else 0
        if counts and not deployment.shut:
            slots = max(
                slots, min(deployment.in_flight, deployment.slots)
            )  # it rests; these go on being used
        if slots != deployment.counted_slots or deployment.version != deployment.counted_version:
            record.slots += slots - deployment.counted_slots
            deployment.counted_slots, deployment.counted_version = slots, deployment.version
            record.slots_of.clear()
        if promising != (record.serving.get(deployment.key) is deployment):
            (self._came if promising else self._gone)(deployment)
            record.limit = None
            if not promising:
                record.left_s = self._clock()
        _keep(record.serving, deployment, promising)
        record.note_open(deployment, deployment.free > 0)
        if self._moved is not None and (deployment.managed or record.managed):
            self._update_managed(record, deployment)
        if record.serving or record.loadable:
            record.lost_s = None
        elif record.lost_s is None:
            record.lost_s = self._clock()
        for listener in self._listeners:
            listener(deployment.model)

    def _update_managed(self, record: ModelRecord, deployment: Deployment) -> None:
        _keep(record.managed, deployment, deployment.managed and deployment.listed)
        if deployment.loadable != (record.loadable.get(deployment.key) is deployment):
            _keep(record.loadable, deployment, deployment.loadable)
            record.limit = None

    def take(self, deployment: Deployment, work: float) -> None:
        """A request goes to ``deployment``, which must have a slot free."""
        assert deployment.free > 0, deployment.key
        deployment.in_flight += 1
        deployment.outstanding += work
        if deployment.managed:
            deployment.used_s = self._clock()
        if deployment.free == 0:
            self._models[deployment.model].note_open(deployment, False)

    def give_back(self, deployment: Deployment, work: float, held_s: float | None) -> None:
        """A request's stream is closed at both ends; it kept its slot for ``held_s``, None: it was refused,
        which says nothing of how long others keep one."""
        assert deployment.in_flight > 0, deployment.key
        deployment.in_flight -= 1
        if deployment.managed:
            deployment.used_s = self._clock()
        deployment.outstanding = max(0.0, deployment.outstanding - work) if deployment.in_flight else 0.0
        record = self._models.get(deployment.model)
        if record is not None and held_s is not None:
            record.hold_s = (
                held_s if not record.held else record.hold_s + HOLD_WEIGHT * (held_s - record.hold_s)
            )
            record.held = True
        deployment.session.stream_closed(deployment)
        self.update(deployment)

    def availability(
        self, model: str, need: str, where: Residency | None = None, agent: str | None = None
    ) -> Availability:
        """What there is for requests with this need, as far as ``where`` allows it, at ``agent`` if it is
        said."""
        record = self._models.get(model)
        if record is None:
            return Availability.UNKNOWN
        does = False
        for known in (record.serving, record.loadable):
            for each in known.values():
                if each.does(need):
                    does = True
                    if each.suits(need, None, False, where, agent):
                        return Availability.SERVED
        if does:
            return Availability.ELSEWHERE
        return Availability.OTHER_ROUTES if record.serving or record.loadable else Availability.GONE

    def served(self, model: str, fit: Fit, *, patiently: bool = True) -> bool:
        """Whether something that is loaded, or being loaded, suits a request of this fit, whomever it avoids;
        ``patiently``: or will once its tunnel is back or its circuit closes."""
        return any(
            not each.leaving
            and (patiently or not (each.shut or each.session.suspended))
            and each.suits(fit.route, fit.version, fit.continuing, fit.where, fit.agent)
            for each in self.serving(model)
        )

    def awaits_load(self, model: str, fit: Fit) -> bool:
        """Whether a request of this fit has to wait until something is loaded."""
        record = self._models.get(model)
        if record is None or not record.managed:
            return False
        suiting = [
            each
            for each in (*record.serving.values(), *record.loadable.values())
            if each.suits(fit.route, fit.version, fit.continuing, fit.where, fit.agent)
        ]
        loaded = (
            each.status is DeploymentStatus.LOADED and not each.closing and not each.leaving
            for each in suiting
        )
        return bool(suiting) and not any(loaded)

    def context_limit(self, model: str) -> int | None:
        """The most tokens a request can have at any deployment of ``model``, loaded or not; None when one of
        them does not say, or there is none."""
        record = self._models.get(model)
        if record is None:
            return None
        if record.limit is None:
            there = (*record.serving.values(), *record.loadable.values())
            limits = [each.most_tokens for each in there]
            known = [each for each in limits if each is not None]
            record.limit = (max(known) if known and len(known) == len(limits) else None,)
        return record.limit[0]

    def largest_context(self, model: str) -> int | None:
        """The most tokens a request can have at deployments of ``model`` that say so; None: none does."""
        record = self._models.get(model)
        there = () if record is None else (*record.serving.values(), *record.loadable.values())
        return max((each.most_tokens for each in there if each.most_tokens), default=None)

    def routes(self, model: str) -> frozenset[str]:
        """What can be asked of ``model`` now, or once it is loaded."""
        record = self._models.get(model)
        if record is None:
            return frozenset()
        there = (*record.serving.values(), *record.loadable.values())
        return frozenset(route for each in there for route in each.routes)

    def forget_limit(self, model: str) -> None:
        """A deployment of ``model`` says something else of how much it holds."""
        record = self._models.get(model)
        if record is not None:
            record.limit = None

    def capacity(
        self,
        model: str,
        route: str,
        enough: int,
        where: Residency | None = None,
        version: str | None = None,
        agent: str | None = None,
    ) -> Capacity:
        """What serves ``model``, or one ``version`` of it, now, as far as ``where`` allows it, at ``agent``
        if it is said. Free slots for ``route`` are counted up to ``enough``, no further."""
        record = self._models.get(model)
        if record is None:
            return Capacity(0, 0, HOLD_GUESS_S)
        everywhere = where is None and version is None and agent is None
        slots = record.slots if everywhere else record.slots_there(where, version, agent)
        fit = Fit(route, version=version, where=where, agent=agent)
        return Capacity(slots, self.free(model, fit, enough), record.hold_s)

    def kinds(self, model: str) -> frozenset[str]:
        """The kinds of engine that serve ``model``, or would once it is loaded, as agents tell them."""
        record = self._models.get(model)
        if record is None:
            return frozenset()
        there = (record.serving, record.loadable, record.managed)
        return frozenset(each.kind for deployments in there for each in deployments.values())

    def slots(self, model: str) -> int:
        """Slots that serve ``model`` now, free or not."""
        record = self._models.get(model)
        return record.slots if record is not None else 0

    def free(self, model: str, fit: Fit, enough: int) -> int:
        """Free slots for requests of this fit, whomever they avoid, counted up to ``enough``."""
        free, version = 0, fit.version
        record = self._models.get(model)
        if record is None:
            return 0
        there = record.open if fit.where is None else record.open_there(fit.where)
        for deployment in there.values():
            if free >= enough:
                break
            if version is not None and version != deployment.version:
                continue  # most, where a version is that of a few
            if deployment.suits(fit.route, fit.version, fit.continuing, fit.where, fit.agent):
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

        Those whose session is suspended, those that may take nothing for their health and those that have to
        be loaded count only for those who would rather wait than fail (``patiently``).
        """
        record = self._models.get(model)
        if record is None:
            return False
        return any(
            key not in fit.avoid
            and (patiently or not (deployment.shut or deployment.session.suspended))
            and deployment.suits(fit.route, fit.version, fit.continuing, fit.where, fit.agent)
            for key, deployment in record.serving.items()
        ) or (
            patiently
            and any(
                key not in fit.avoid
                and deployment.suits(fit.route, fit.version, fit.continuing, fit.where, fit.agent)
                for key, deployment in record.loadable.items()
            )
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
