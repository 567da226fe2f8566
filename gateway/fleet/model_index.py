"""The index of deployments by model, which is kept up to date at every change.

So finding a free slot never scans the fleet. Everything belongs to the event loop's thread.
"""

from collections.abc import Callable

from gateway.fleet.availability import ModelAvailability, ModelRecord, keep
from gateway.fleet.deployment import Deployment
from gateway.scheduling.base import NO_CAP
from shared.protocol.messages import DeploymentStatus
from shared.protocol.work import WorkScale

HOLD_WEIGHT = 0.05
"""Weight of the latest request in the mean time a slot is kept: about the last twenty count."""

ONE_MODEL_KINDS = frozenset(("tgi", "sglang"))
"""Kinds of engines that serve one model, so that a request need not name it."""

SEARCHED = 2048
"""Where more models are known, each request has to name its own."""


class ModelIndex(ModelAvailability):
    """Models ever served, and what serves them now. Bounded: the models longest gone are forgotten first."""

    def __init__(self, clock: Callable[[], float], max_models: int) -> None:
        super().__init__()
        self._clock = clock
        self._max_models = max_models
        self._listeners: list[Callable[[str], None]] = []
        self._slot_listeners: list[Callable[[str], None]] = []
        self._assess: Callable[[Deployment], tuple[int, bool]] = _well
        self._came: Callable[[Deployment], None] = _nothing
        self._gone: Callable[[Deployment], None] = _nothing
        self._moved: Callable[[Deployment, DeploymentStatus | None], None] | None = None
        self._taken: Callable[[str], None] | None = None
        self._lost: Callable[[Deployment], None] = _nothing

    def subscribe(self, on_change: Callable[[str], None], *, slots: bool = False) -> None:
        """``on_change(model)`` is called, within the same turn, whenever what serves a model has changed.

        With ``slots`` it is also called when a slot was given back and nothing else has changed."""
        self._listeners.append(on_change)
        if slots:
            self._slot_listeners.append(on_change)

    def subscribe_slots(self, on_free: Callable[[str], None]) -> None:
        """``on_free(model)`` is called when a slot was given back and nothing else has changed."""
        self._slot_listeners.append(on_free)

    def watch_taken(self, taken: Callable[[str], None]) -> None:
        """``taken(model)`` is called when a slot was taken."""
        self._taken = taken

    def watch_health(self, assess: Callable[[Deployment], tuple[int, bool]]) -> None:
        """``assess(deployment)`` is called at every change of a deployment, before anything is counted. It
        returns how many slots its health lets it use, and whether that is none for longer than a rest."""
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
        if model in self.models:
            return True
        if len(self.models) >= self._max_models and not self._forget_one():
            return False
        record = self.models[model] = ModelRecord(model, int(wall_s), lost_s=self._clock())
        if lately:
            record.left_s = self._clock()
        return True

    def update(self, deployment: Deployment) -> None:
        """Updates the records after something about ``deployment`` has changed."""
        record = self.models.get(deployment.model)
        if record is None:
            return
        deployment.cap, deployment.shut = self._assess(deployment)
        deployment.usable = deployment.compute_usable()
        promising = deployment.promising
        deployment.trial = deployment.cap > 0 and not deployment.healthy
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
        keep(record.serving, deployment, promising)
        record.availabilities.clear()
        deployment.settled = (
            deployment.usable
            and slots == deployment.slots
            and deployment.cap == NO_CAP
            and deployment.health_factor == 1.0
        )
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
        keep(record.managed, deployment, deployment.managed and deployment.listed)
        if deployment.loadable != (record.loadable.get(deployment.key) is deployment):
            keep(record.loadable, deployment, deployment.loadable)
            record.limit = None

    def take(self, deployment: Deployment, work: float) -> None:
        """A request goes to ``deployment``, which must have a slot free."""
        in_flight = deployment.in_flight
        free = deployment.slots - in_flight if deployment.settled else deployment.free
        assert free > 0, deployment.key
        deployment.in_flight = in_flight + 1
        deployment.outstanding += work
        if deployment.managed:
            deployment.used_s = self._clock()
        if free == 1:
            self.models[deployment.model].note_open(deployment, False)
        if self._taken is not None:
            self._taken(deployment.model)

    def give_back(self, deployment: Deployment, work: float, held_s: float | None) -> None:
        """A request's stream is closed at both ends; it kept its slot for ``held_s``, None: it was refused,
        which says nothing of how long others keep one."""
        in_flight = deployment.in_flight - 1
        assert in_flight >= 0, deployment.key
        deployment.in_flight = in_flight
        if deployment.managed:
            deployment.used_s = self._clock()
        outstanding = deployment.outstanding - work if in_flight else 0.0
        deployment.outstanding = outstanding if outstanding > 0.0 else 0.0
        model = deployment.model
        record = self.models.get(model)
        if record is not None and held_s is not None:
            before_s = record.hold_s
            record.hold_s = held_s if before_s is None else before_s + HOLD_WEIGHT * (held_s - before_s)
        if not deployment.settled or record is None:
            deployment.session.stream_closed(deployment)
            self.update(deployment)
            return
        if deployment.slots - in_flight == 1:
            record.note_open(deployment, True)
        for listener in self._slot_listeners:
            listener(model)

    def continues(self, model: str, route: str) -> bool:
        """Whether a deployment that serves ``model`` can go on with answers of ``route`` that another
        began."""
        record = self.models.get(model)
        return record is not None and any(route in each.continues for each in record.serving.values())

    def work_scale(self, model: str) -> WorkScale | None:
        """What tells how much work a request for ``model`` is, as one that serves it says; None: none
        does."""
        record = self.models.get(model)
        serving = () if record is None else record.serving.values()
        return next((each.work_scale for each in serving if each.work_scale is not None), None)

    def only_model(self, route: str, shows: Callable[[str], bool] | None) -> str | None:
        """The one model, of those that ``shows`` allows (None: all), that an engine serves which has
        ``route`` and, as all of its kind, a single model; None: there is none, or there are several."""
        found = None
        for name, record in self.models.items() if len(self.models) <= SEARCHED else ():
            served = any(
                route in each.routes and each.kind in ONE_MODEL_KINDS for each in record.serving.values()
            )
            if served and (shows is None or shows(name)):
                if found is not None:
                    return None
                found = name
        return found

    def forget_limit(self, model: str) -> None:
        """A deployment of ``model`` says something else of how much it holds."""
        record = self.models.get(model)
        if record is not None:
            record.limit = None

    def _forget_one(self) -> bool:
        gone = [record for record in self.models.values() if record.lost_s is not None]
        if not gone:
            return False
        del self.models[min(gone, key=lambda record: record.lost_s or 0.0).name]
        return True


def _nothing(_: Deployment) -> None:
    """Stands where no listener is set."""


def _well(_: Deployment) -> tuple[int, bool]:
    return NO_CAP, False
