"""The policy ``cost``: each request goes where it is predicted to be done first.

For every deployment that may serve it the prediction is::

    (wait + network + load, if not loaded + reading what is not cached + writing in company) / health

It knows what was learnt of the model on the deployment's class of device, what the deployment has to do,
and how much of the prompt it has read before. A cached prompt is worth the seconds that it saves. The seconds
are added that it costs those who run there: they stand still while a prompt is read, and write more slowly.

Nothing is handed to a deployment that has enough to read (:mod:`gateway.scheduling.policies.late_binding`). A
request waits for such a deployment, 20 s at most, where it is predicted to be done earlier so. It waits for a
deployment without a slot on the same condition: not for long (``PATIENCE_S``), and not many do.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from gateway.domain.residency import Residency
from gateway.scheduling.base import (
    Assignment,
    DeploymentConstraints,
    DeploymentView,
    Outcome,
    PendingRequest,
    Policy,
)
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.policies.affinity import MOST_SESSIONS
from gateway.scheduling.policies.at_once import choose_at_once
from gateway.scheduling.policies.completion import (
    ENGINE_QUEUE_WEIGHTS,
    GATEWAY_QUEUE_WEIGHTS,
    Completion,
    RoundLoad,
)
from gateway.scheduling.policies.fitting import eligible_deployments, native_first, reservation
from gateway.scheduling.policies.late_binding import (
    LOOK_S,
    MAX_HELD_QUEUE,
    MAX_HOLD_S,
    REST_S,
    BusyDeployments,
    DeclinedOffers,
    HoldTimer,
    is_busy,
)
from gateway.scheduling.policies.sampling import FULL, SAMPLE, spread
from gateway.scheduling.recent import RecentDict

ALL = 64
"""Up to this many open deployments, all are considered. Of more a sample is, and no request is held."""

AFFINE = 6
"""Deployments looked at, at most, because they have read some of the prompt."""

SESSION_SHARE = 0.5
"""The share of a prompt without fingerprints that is assumed to be cached where its session was last."""

PLACES = 64
"""Constraints on where to run for which the deployments are remembered that meet them."""

HELD_MOST = 4
"""Requests of one round that are let wait though a slot is free, at most: the next one takes it."""

WORTH_A_LOOK_S = 0.01  # what costs no more than this now needs no better place

WORTH_WAITING = 0.9
"""A full deployment must be predicted to be done in this share of the time of the best open one."""

TRIAL_S = -1.0
"""What one on trial is taken to cost: else, where it is slow, it might never be tried."""

NEVER = float("inf")
_Known = Mapping[str, int]
_NOTHING: _Known = {}
_Waiting = Sequence[PendingRequest]
_Views = Sequence[DeploymentView]


class Cost(Policy):
    """The policy ``cost``, as this module's docstring describes it."""

    name = "cost"

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.hold_timer = HoldTimer()
        self.declined = DeclinedOffers()
        self.session_keys = RecentDict[str, str](MOST_SESSIONS)
        """The deployment that each session used last."""
        self.look_again_s: float | None = None
        self.rests_until_s = 0.0
        self._views: list[DeploymentView] | None = None
        self._there: dict[Residency, list[DeploymentView]] = {}

    @property
    def views(self) -> list[DeploymentView]:
        """All deployments of the model, full or not."""
        if self._views is None:
            self._views = list(self.knowledge.views.values())
        return self._views

    def views_allowed_by(self, where: Residency) -> list[DeploymentView]:
        """The views that ``where`` allows. An agent whose labels change counts as gone and new."""
        found = self._there.get(where)
        if found is None:
            if len(self._there) >= PLACES:
                self._there.clear()
            found = self._there[where] = [view for view in self.views if where.allows(view.labels)]
        return found

    def deployment_added(self, view: DeploymentView, now: float) -> None:
        self._views = None
        self.rests_until_s = 0.0
        self._there.clear()

    def deployment_removed(self, key: str, now: float) -> None:
        self._views = None
        self._there.clear()

    def placed(self, item: PendingRequest, key: str, now: float) -> None:
        if self.hold_timer.since:
            self.hold_timer.forget(item.number)
        if self.declined.known:
            self.declined.forget(item.number)

    def finished(self, item: PendingRequest, key: str, outcome: Outcome, now: float) -> None:
        if self.rests_until_s:
            view = self.knowledge.views.get(key)
            if view is not None and not is_busy(view, now):
                self.rests_until_s = 0.0
        if item.session_key is not None and (outcome.ok or item.session_key not in self.session_keys):
            # a copy that was given up for another read little of the prompt, if any
            self.session_keys[item.session_key] = key

    def assign(
        self, waiting: Sequence[PendingRequest], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        """See :class:`~gateway.scheduling.base.Policy`."""
        self.look_again_s, self.rests_until_s = None, 0.0
        if not waiting or not deployments:
            return []
        if len(waiting) == 1 and len(self.knowledge.views) == len(deployments) <= ALL:
            view = choose_at_once(waiting[0], deployments, self, now)
            if view is not None:
                return [Assignment(waiting[0].number, view.key)]
        round_ = _Round(self, waiting, deployments, now)
        round_.place(waiting)
        self.look_again_s = round_.look_again_s
        if round_.is_resting and round_.look_again_s is not None:
            self.rests_until_s = min(round_.look_again_s, now + REST_S)
        return round_.assignments

    def known_to(self, item: PendingRequest) -> _Known:
        """Deployments that have read some of the prompt, and how many of its tokens."""
        if item.prefix:
            return self.knowledge.readers(item, AFFINE)
        if item.session_key is None:
            return _NOTHING
        last_key = self.session_keys.get(item.session_key)
        return _NOTHING if last_key is None else {last_key: int(SESSION_SHARE * item.input_tokens)}


class _Round:
    """One call of ``assign``."""

    def __init__(self, policy: Cost, waiting: _Waiting, deployments: _Views, now: float) -> None:
        self.assignments: list[Assignment] = []
        self.look_again_s: float | None = None
        self.is_resting = False
        """Whether nothing can be assigned, whichever requests wait."""
        self._policy = policy
        self._knowledge = policy.knowledge
        self._deployments = deployments
        self._now = now
        self._given: dict[str, RoundLoad] = {}
        self._weights = GATEWAY_QUEUE_WEIGHTS if len(deployments) <= ALL else ENGINE_QUEUE_WEIGHTS
        self._busy = BusyDeployments(
            deployments if len(deployments) <= ALL else (), self._given, self._knowledge, now, waiting
        )
        self._booked: dict[str, int] = {}
        """Requests that wait for a full deployment."""
        self._held = 0
        self._reserved: str | None = None
        """A deployment that takes nothing more before a large context fits it that waits."""
        self._hopeless: dict[DeploymentConstraints, int] = {}
        """Fits no deployment has room for, and for a context of how many tokens."""

    def place(self, waiting: Sequence[PendingRequest]) -> None:
        """Decide on each, in order."""
        busy, crowd = self._busy, len(waiting) - MAX_HELD_QUEUE
        for place, item in enumerate(waiting):
            patient = place >= crowd and self._now - item.arrived_s < MAX_HOLD_S
            if busy and patient:
                if not busy.ready:
                    self._again(busy.next_ready_in_s())
                    self.is_resting = not self._given and len(self._deployments) == len(self._policy.views)
                    return
                if self._stays(item):
                    continue
            if not self._decide(item, patient=patient):
                return

    def _decide(self, item: PendingRequest, *, patient: bool) -> bool:
        """Decide where ``item`` goes. It is held for a busy deployment only if it is ``patient``. False when
        no deployment has a slot free any more."""
        fit = item.fit
        context_tokens = item.input_tokens + item.output_tokens
        if context_tokens >= self._hopeless.get(fit, context_tokens + 1):
            return True
        known = self._policy.known_to(item)
        completion = Completion(item, self._knowledge, self._given, self._now, self._weights)
        best, cost_s = self._best(item, known, completion)
        native = best is not None and best.loaded and item.route not in best.translated
        if self._busy:
            other, other_s = self._worth_waiting(item, known, completion, native=native)
            if other is not None and other_s < cost_s:
                if patient:
                    self._decline(item, other, known.get(other.key, 0))
                    return True
                best, cost_s = other, other_s
        if best is None:
            self._hopeless[fit] = context_tokens
            self._reserve(item)
            return any(self._room(view) > 0 for view in self._deployments)
        if not self._waits(item, known, completion, cost_s, native=native):
            self._give(item, best, known.get(best.key, 0), completion)
        return True

    def _again(self, in_s: float) -> None:
        again_s = self._now + max(in_s, LOOK_S)
        self.look_again_s = again_s if self.look_again_s is None else min(self.look_again_s, again_s)

    # --- Waiting for a busy deployment ---

    def _stays(self, item: PendingRequest) -> bool:
        """Whether it recently declined all deployments that are ready now."""
        waits_for = self._policy.declined.waits_for(item.number, self._busy.keys, self._now)
        if waits_for is None:
            return False
        self._busy.add_held(*waits_for)
        if self.look_again_s is None:
            self._again(self._busy.next_ready_in_s())
        return True

    def _worth_waiting(
        self, item: PendingRequest, known: _Known, completion: Completion, *, native: bool
    ) -> tuple[DeploymentView | None, float]:
        """The busy deployment where it would be done first, after those who wait for one of its class, and
        its cost. ``native``: none that would translate it."""
        best, best_s = None, NEVER
        for view in self._fitting(item, self._busy.worth_waiting_for(item, known), known):
            if native and item.route in view.translated:
                continue
            cost_s = completion.cost_s(view, known.get(view.key, 0))
            cost_s += GATEWAY_QUEUE_WEIGHTS.first * self._busy.held_s(view) / view.health_factor
            if cost_s < best_s:
                best, best_s = view, cost_s
        return best, best_s

    def _decline(self, item: PendingRequest, other: DeploymentView, cached_tokens: int) -> None:
        """It waits for ``other``."""
        tokens = item.input_tokens - cached_tokens
        self._policy.declined.note(item.number, self._busy.keys, other.device, tokens, self._now)
        self._busy.add_held(other.device, tokens)
        self._again(self._busy.ready_in_s(other))

    # --- Where it could go now ---

    def _best(
        self, item: PendingRequest, known: _Known, completion: Completion
    ) -> tuple[DeploymentView | None, float]:
        """The open deployment that is predicted to be done first, and its cost."""
        deployments = self._deployments
        if len(deployments) <= ALL:
            return self._cheapest(item, self._busy.ready, known, completion)
        best, cost_s = self._cheapest(item, self._sample(item, known), known, completion)
        if best is None:
            return self._cheapest(item, deployments, known, completion)
        if item.route in best.translated:  # of which the sample may have no other
            native = [view for view in deployments if view.loaded and item.route not in view.translated]
            some = spread(item.number, native, SAMPLE, self._knowledge.seed)
            other, other_s = self._cheapest(item, some, known, completion)
            best, cost_s = (best, cost_s) if other is None else (other, other_s)
        return best, cost_s

    def _sample(self, item: PendingRequest, known: _Known) -> list[DeploymentView]:
        """Evenly spread, another subset for another request, and those that know something of it."""
        seed = self._knowledge.seed
        if item.where is None:
            sample = list(spread(item.number, self._deployments, SAMPLE, seed))
        else:  # some of these may be full
            there = spread(item.number, self._policy.views_allowed_by(item.where), ALL, seed)
            sample = list(islice(filter(self._offered, there), SAMPLE))
        views = self._knowledge.views
        sample += [views[key] for key in known if key in views and not views[key].trial]
        return sample

    def _offered(self, view: DeploymentView) -> bool:
        """Whether it has a slot and, when it is on trial, is one of those to choose from."""
        return view.in_flight < view.slots and (not view.trial or view in self._deployments)

    def _cheapest(
        self, item: PendingRequest, views: _Views, known: _Known, completion: Completion
    ) -> tuple[DeploymentView | None, float]:
        best, best_s, cost_at = None, NEVER, completion.cost_s
        for view in self._fitting(item, views, known):
            if view.trial:
                return view, TRIAL_S
            cost_s = cost_at(view, known.get(view.key, 0) if known else 0)
            if cost_s < best_s or (cost_s == best_s and best is not None and view.key < best.key):
                best, best_s = view, cost_s
        return best, best_s

    def _fitting(
        self, item: PendingRequest, views: Sequence[DeploymentView], known: _Known
    ) -> list[DeploymentView]:
        """Those that may take it now."""
        fitting = eligible_deployments(
            item, views, lambda view: self._kv_fits(item, view, known.get(view.key, 0))
        )
        if self._given or self._reserved is not None:
            fitting = [view for view in fitting if self._room(view) > 0 and view.key != self._reserved]
        return native_first(item.route, fitting)

    def _kv_fits(self, item: PendingRequest, view: DeploymentView, cached_tokens: int) -> bool:
        """Cached tokens take no more room; but all of it must fit the whole of the memory."""
        if cached_tokens and self._knowledge.too_large(item, view):
            return False
        given = self._given.get(view.key)
        free = (view.kv_free_tokens or 0) - (given.kv_tokens if given is not None else 0)
        return item.input_tokens - cached_tokens + item.output_tokens <= free

    def _reserve(self, item: PendingRequest) -> None:
        """Its context fits no open deployment: keep one free for it. One at a time."""
        if self._reserved is None:
            self._reserved = reservation(
                item,
                self._deployments,
                lambda view: view.free > 0 and self._knowledge.could_hold(item, view),
                self._now,
            )

    def _room(self, view: DeploymentView) -> int:
        given = self._given.get(view.key)
        return view.free - (given.count if given is not None else 0)

    def _give(
        self, item: PendingRequest, view: DeploymentView, cached_tokens: int, completion: Completion
    ) -> None:
        given = self._given.setdefault(view.key, RoundLoad())
        context_tokens = item.input_tokens - cached_tokens + item.output_tokens
        given.add(completion.read_s(view, cached_tokens), context_tokens)
        self._busy.note(view)
        self.assignments.append(Assignment(item.number, view.key))

    # --- Waiting for a full deployment ---

    def _waits(
        self, item: PendingRequest, known: _Known, completion: Completion, cost_s: float, *, native: bool
    ) -> bool:
        """Whether it had better wait for a full deployment; if so its next slot is taken as booked.
        ``native``: not for one that would translate it."""
        now, hold_timer = self._now, self._policy.hold_timer
        if self._held >= HELD_MOST or cost_s <= WORTH_A_LOOK_S:
            return False
        left_s = hold_timer.left_s(item.number, now)
        best, best_wait_s, bound_s = None, 0.0, cost_s * WORTH_WAITING
        for view in self._full(item, known) if left_s > 0.0 else ():
            wait_s = view.load.slot_wait_s(now, self._booked.get(view.key, 0))
            if native and item.route in view.translated:
                continue
            if wait_s < left_s and wait_s < bound_s:
                full_s = completion.cost_s(view, known.get(view.key, 0), wait_s)
                if full_s < bound_s:
                    best, best_wait_s, bound_s = view, wait_s, full_s
        if best is None or not hold_timer.begin(item.number, now):
            return False
        self._held += 1
        self._booked[best.key] = self._booked.get(best.key, 0) + 1
        self._again(min(left_s, max(best_wait_s, hold_timer.LOOK_S)))
        return True

    def _full(self, item: PendingRequest, known: _Known) -> list[DeploymentView]:
        """Deployments that suit it and have no room for it now: those that know something of it, and of those
        whose slots are taken some, evenly spread."""
        views, by_key = self._policy.views, self._knowledge.views
        full = [
            view
            for view in (by_key[key] for key in known if key in by_key)
            if view.in_flight >= view.slots
            or (view.kv_free_tokens is not None and not self._kv_fits(item, view, known[view.key]))
        ]
        if len(views) > len(self._deployments):
            full += [v for v in spread(item.number, views, FULL) if v.in_flight >= v.slots]
        return [view for view in full if view.usable and view.cap >= view.slots > 0 and view.may_take(item)]
