"""Which deployments serve which model, for which routes and where, and how many of their slots are free.

The records are kept up to date by :class:`gateway.fleet.model_index.ModelIndex`. Everything belongs to the
event loop's thread.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain

from gateway.domain.residency import Residency
from gateway.fleet.deployment import Deployment
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.queue.tickets import Capacity
from shared.protocol.messages import DeploymentStatus

HOLD_GUESS_S = 2.0
"""How long a request is assumed to keep its slot until one has given its slot back."""

PLACES = 16
"""For so many constraints of each model the deployments with a free slot are kept, up to date at every
change."""

KINDS = 64
"""For so many constraints of each model the number of slots that meet them is kept."""


class Availability(Enum):
    """Whether a model is available for a route."""

    UNKNOWN = auto()
    """Nothing ever served the model."""
    GONE = auto()
    """Something did, nothing does now."""
    OTHER_ROUTES = auto()
    """The model is served, but not for this route."""
    ELSEWHERE = auto()
    """The model is served for this route, but not where the request may run or not by its agent."""
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
    """Those that could be loaded, by key. Empty unless ``watch_loading`` was called."""
    managed: dict[str, Deployment] = field(default_factory=dict)
    """Those whose agents load them on command, loaded or not. Empty unless ``watch_loading`` was called."""
    slots: int = 0
    """Slots of ``serving`` together that their health lets them use; those on trial count none."""
    lost_s: float | None = None
    """When the last of ``serving`` and ``loadable`` left, on the gateway's clock; None while there is one."""
    limit: tuple[int | None] | None = None
    """The answer of :meth:`ModelAvailability.context_limit`; None: it must be computed."""
    judged_s: float = float("-inf")
    """When the paces of ``serving`` were last compared."""
    hold_s: float | None = None
    """How long requests keep their slots in the mean; None until one has given its slot back."""
    left_s: float = float("-inf")
    """When one of ``serving`` last left, on the gateway's clock."""
    slots_of: dict[tuple[Residency | None, str | None, str | None], int] = field(default_factory=dict)
    """Answers of :meth:`slots_there`, as long as they are true."""

    availabilities: dict[tuple[str, Residency | None, str | None], Availability] = field(default_factory=dict)
    """Answers of :meth:`ModelAvailability.availability`, as long as they are true."""

    open_of: dict[Residency, dict[str, Deployment]] = field(default_factory=dict)
    """Constraint → those of ``open`` that it allows; see :meth:`open_there`."""

    has_open: dict[DeploymentConstraints, bool] = field(default_factory=dict)
    """Answers of :meth:`has_open_for`, as long as they are true."""

    @property
    def free_slots(self) -> int:
        """Slots that are free now, for any request of the model."""
        open_now = self.open.values()
        return sum(max(0, min(each.slots, each.cap) - each.in_flight) for each in open_now if each.usable)

    @property
    def serving_or_loadable(self) -> list[Deployment]:
        """What serves the model, or will once it is loaded."""
        return [*self.serving.values(), *self.loadable.values()]

    def open_there(self, where: Residency) -> Mapping[str, Deployment]:
        """Those of ``open`` that ``where`` allows."""
        found = self.open_of.get(where)
        if found is None:
            if len(self.open_of) >= PLACES:
                self.open_of.clear()
            there = {key: each for key, each in self.open.items() if where.allows(each.labels)}
            found = self.open_of[where] = there
        return found

    def note_open(self, deployment: Deployment, is_open: bool) -> None:
        """Notes whether it has a slot free; what it serves may have changed too."""
        keep(self.open, deployment, is_open)
        self.has_open.clear()
        for where, there in self.open_of.items():
            if where.allows(deployment.labels):
                keep(there, deployment, is_open)

    def has_open_for(self, fit: DeploymentConstraints) -> bool:
        """Whether one of ``open`` suits requests of this fit, avoided or not."""
        found = self.has_open.get(fit)
        if found is None:
            if len(self.has_open) >= KINDS:
                self.has_open.clear()
            there = self.open if fit.where is None else self.open_there(fit.where)
            found = self.has_open[fit] = any(each.suits(fit) for each in there.values())
        return found

    def slots_there(
        self, where: Residency | None, version: str | None = None, agent: str | None = None
    ) -> int:
        """How many of ``slots`` belong to deployments that ``where`` allows, and to ``version`` and ``agent``
        where they are given."""
        found = self.slots_of.get((where, version, agent))
        if found is None:
            if len(self.slots_of) >= KINDS:
                self.slots_of.clear()
            found = self.slots_of[where, version, agent] = sum(
                each.counted_slots
                for each in self.serving.values()
                if (version is None or each.version == version)
                and (agent is None or each.agent == agent)
                and (where is None or where.allows(each.labels))
            )
        return found


class ModelAvailability:
    """Says what is available for requests, from the records of all models."""

    def __init__(self) -> None:
        self.models: dict[str, ModelRecord] = {}

    def _record(self, model: str) -> ModelRecord:
        """The record of ``model``; an empty one when it is not known."""
        return self.models.get(model) or _NO_MODEL

    def availability(
        self, model: str, need: str, where: Residency | None = None, agent: str | None = None
    ) -> Availability:
        """What is available for requests with this need, where ``where`` allows it, at ``agent`` if given."""
        record = self.models.get(model)
        if record is None:
            return Availability.UNKNOWN
        found = record.availabilities.get((need, where, agent))
        if found is None:
            if len(record.availabilities) >= KINDS:
                record.availabilities.clear()
            found = record.availabilities[need, where, agent] = self._availability(record, need, where, agent)
        return found

    def _availability(
        self, record: ModelRecord, need: str, where: Residency | None, agent: str | None
    ) -> Availability:
        supported, fit = False, DeploymentConstraints(need, where=where, agent=agent)
        for each in chain(record.serving.values(), record.loadable.values()):
            if each.supports(need):
                supported = True
                if each.suits(fit):
                    return Availability.SERVED
        if supported:
            return Availability.ELSEWHERE
        return Availability.OTHER_ROUTES if record.serving or record.loadable else Availability.GONE

    def served(self, model: str, fit: DeploymentConstraints, *, patiently: bool = True) -> bool:
        """Whether a deployment that is loaded, or being loaded, suits a request of this fit, avoided or not.

        With ``patiently``, one counts that will suit once its tunnel is back or its circuit closes.
        """
        return any(
            not each.leaving and (patiently or not (each.shut or each.session.suspended)) and each.suits(fit)
            for each in self.serving(model)
        )

    def awaits_load(self, model: str, fit: DeploymentConstraints) -> bool:
        """Whether a request of this fit has to wait until something is loaded."""
        record = self._record(model)
        if not record.managed:
            return False
        suiting = [each for each in record.serving_or_loadable if each.suits(fit)]
        loaded = (
            each.status is DeploymentStatus.LOADED and not each.closing and not each.leaving
            for each in suiting
        )
        return bool(suiting) and not any(loaded)

    def context_limit(self, model: str) -> int | None:
        """The most tokens a request can have at any deployment of ``model``, loaded or not; None when one of
        them does not say, or there is none."""
        record = self.models.get(model) or _NO_MODEL
        if record.limit is None:
            there = record.serving_or_loadable
            limits = [each.most_tokens for each in there]
            known = [each for each in limits if each is not None]
            record.limit = (max(known) if known and len(known) == len(limits) else None,)
        return record.limit[0]

    def largest_context(self, model: str) -> int | None:
        """The most tokens a request can have at those deployments of ``model`` that know; None: none does."""
        there = self._record(model).serving_or_loadable
        return max((each.most_tokens for each in there if each.most_tokens), default=None)

    def routes(self, model: str) -> frozenset[str]:
        """The routes of ``model`` now, or once it is loaded."""
        return frozenset(route for each in self._record(model).serving_or_loadable for route in each.routes)

    def capacity(
        self,
        model: str,
        route: str,
        enough: int,
        where: Residency | None = None,
        version: str | None = None,
        agent: str | None = None,
    ) -> Capacity:
        """The slots that serve ``model`` now, of ``version``, where ``where`` allows and at ``agent``.

        Free slots for ``route`` are counted up to ``enough``, no further.
        """
        record = self.models.get(model) or _NO_MODEL
        everywhere = where is None and version is None and agent is None
        slots = record.slots if everywhere else record.slots_there(where, version, agent)
        fit = DeploymentConstraints(route, version=version, where=where, agent=agent)
        return Capacity(
            slots, self.free(model, fit, enough), HOLD_GUESS_S if record.hold_s is None else record.hold_s
        )

    def kinds(self, model: str) -> frozenset[str]:
        """The kinds of engine that serve ``model``, or would once it is loaded, as agents name them."""
        record = self._record(model)
        there = (record.serving, record.loadable, record.managed)
        return frozenset(each.kind for deployments in there for each in deployments.values())

    def slots(self, model: str) -> int:
        """Slots that serve ``model`` now, free or not."""
        return self._record(model).slots

    def free(self, model: str, fit: DeploymentConstraints, enough: int) -> int:
        """Free slots for requests of this fit, whatever they avoid, counted up to ``enough``."""
        free = 0
        need, version, where = fit.route, fit.version, fit.where
        record = self.models.get(model) or _NO_MODEL
        by_route = version is None and where is None and fit.agent is None and not fit.continuing
        for deployment in (record.open if where is None else record.open_there(where)).values():
            if version is not None and version != deployment.version:
                continue  # cheaper than suits(), where few have the version
            if (by_route and need in deployment.routes) or deployment.suits(fit):
                left = deployment.slots - deployment.in_flight if deployment.settled else deployment.free
                if left > 0:
                    free += left
                    if free >= enough:
                        return enough
        return free

    def has_free(self, model: str, fit: DeploymentConstraints, enough: int = 1) -> bool:
        """Whether so many slots are free for requests of this fit, whatever they avoid."""
        if enough > 1:
            return self.free(model, fit, enough) >= enough
        record = self.models.get(model)
        return record is not None and record.has_open_for(fit)

    def open(self, model: str) -> Mapping[str, Deployment]:
        """Deployments of ``model`` with a slot free, by key."""
        record = self.models.get(model)
        return _NO_MODEL.open if record is None else record.open

    def serving(self, model: str) -> Collection[Deployment]:
        """Promising deployments of ``model``."""
        return self._record(model).serving.values()

    def someone_else(self, model: str, fit: DeploymentConstraints, *, patiently: bool = False) -> bool:
        """Whether a request of this fit can go, now or soon, to a deployment that it does not avoid.

        Deployments whose session is suspended, whose health lets them take nothing, or that must be loaded
        first count only with ``patiently``: for requests that would rather wait than fail.
        """
        record = self._record(model)
        there = record.serving_or_loadable if patiently else record.serving.values()
        return any(
            each.key not in fit.avoid
            and (patiently or not (each.shut or each.session.suspended))
            and each.suits(fit)
            for each in there
        )


def keep(index: dict[str, Deployment], deployment: Deployment, wanted: bool) -> None:
    """Adds ``deployment`` to ``index`` under its key, or removes it."""
    if wanted:
        index[deployment.key] = deployment
    elif index.get(deployment.key) is deployment:
        del index[deployment.key]


_NO_MODEL = ModelRecord("", 0)
