"""The scheduler of all models: keeps what policies choose by, asks the policy of a model, learns from
outcomes.

Pure: it decides, somebody else carries out. The owner of the deployments calls, in this order:

- :meth:`Scheduler.deployment_added` when a deployment is there, :meth:`Scheduler.deployment_removed` when it
  is no more;
- :meth:`Scheduler.assign` whenever a slot came free or a request came, and again at ``look_again_s``;
- :meth:`Scheduler.placed` for each assignment that was carried out, before ``assign`` is called again;
- :meth:`Scheduler.first_token` when it sees one, as far as it can;
- :meth:`Scheduler.finished` when the request has given its slot back, however it went.

Of requests that other processes gave to the same deployments it calls :meth:`Scheduler.placed_elsewhere`,
:meth:`Scheduler.first_token` and :meth:`Scheduler.finished_elsewhere`, with numbers that no request of its
own has. They count as load and as prompts that were read; nothing is learnt from how long they took.

``in_flight``, ``slots`` and whatever else a view holds but ``load`` is the owner's to keep.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.scheduling import policy_named
from gateway.scheduling.base import Assignment, DeploymentView, Outcome, PendingRequest, Policy
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.learning.performance import Performance, PredictedWork, Speeds
from gateway.scheduling.policies.late_binding import is_busy

MOST_MODELS = 4096
"""Models that nothing serves are forgotten beyond so many, the one used longest ago first."""


@dataclass(slots=True, eq=False)
class ModelScheduling:
    """What is kept for one model."""

    knowledge: Knowledge
    policy: Policy


_Placed = tuple[ModelScheduling, PendingRequest, Speeds, PredictedWork, bool]
"""What is kept of the model of a request that runs; the request; what it was predicted by, and to take; and
whether its model had to be loaded first: how long it took says nothing then of how fast it runs."""


class Scheduler:
    """One for a gateway, or for a simulated one. Equal calls give equal answers for an equal ``seed``."""

    def __init__(
        self,
        policy: str = "cost",
        *,
        seed: int = 0,
        performance: Performance | None = None,
        make: Callable[[str, Knowledge | None], Policy] = policy_named,
    ) -> None:
        """``policy`` is a name that ``make`` knows: of ``gateway.scheduling.POLICIES``, unless the caller has
        others. Raises ValueError for any other."""
        make(policy, None)
        self._make = make
        self.performance = performance or Performance()
        self._default = policy
        self._names: dict[str, str] = {}
        self._seed = seed
        self.models: dict[str, ModelScheduling] = {}
        """By name; only read by others."""

    # --- Which policy ---

    def choose_policies(self, default: str, named: Mapping[str, str]) -> None:
        """From now on ``default`` is the policy of every model that is not ``named`` with another; nothing
        learnt is lost. Raises ValueError for a policy there is none of, and has changed nothing then."""
        for name in (default, *named.values()):
            self._make(name, None)
        before = {model: self.policy_of(model) for model in self.models}
        self._default, self._names = default, dict(named)
        for model, known in self.models.items():
            if self.policy_of(model) != before[model]:
                known.policy = self._policy(model, known.knowledge)

    def policy_of(self, model: str) -> str:
        return self._names.get(model, self._default)

    # --- Who serves ---

    def deployment_added(self, view: DeploymentView, now: float) -> None:
        """A deployment is there; ``view`` is kept up to date by its owner until it is gone."""
        known = self._model(view.model)
        known.knowledge.add(view)
        known.knowledge.note_room(view)
        known.policy.deployment_added(view, now)

    def deployment_removed(self, view: DeploymentView, now: float) -> None:
        """A deployment is gone. What still runs there may yet be reported as finished."""
        known = self.models.get(view.model)
        if known is not None and known.knowledge.views.get(view.key) is view:
            known.knowledge.remove(view)
            known.policy.deployment_removed(view.key, now)

    def loaded(self, view: DeploymentView, load_s: float) -> None:
        """A deployment has loaded its model in ``load_s``: the prompts it had read before are lost."""
        known = self._model(view.model)
        known.knowledge.forget(view.key)
        known.knowledge.speeds(view).loaded(load_s)

    # --- Deciding ---

    def assign(
        self, model: str, waiting: Sequence[PendingRequest], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        """Who goes where: :meth:`gateway.scheduling.base.Policy.assign` of the model's policy."""
        known = self.models.get(model) or self._model(model)
        return known.policy.assign(waiting, deployments, now)

    def is_resting(self, model: str, now: float) -> bool:
        """Whether ``assign`` would assign nothing now, whichever requests wait: it need not be called."""
        known = self.models.get(model)
        return known is not None and now < known.policy.rests_until_s

    def look_again_s(self, model: str) -> float | None:
        """When to call ``assign`` again though nothing has changed; None for not at all."""
        known = self.models.get(model)
        return known.policy.look_again_s if known is not None else None

    # --- What becomes of requests ---

    def placed(self, item: PendingRequest, view: DeploymentView, now: float) -> PredictedWork:
        """``item`` was given to ``view``. Returns the work predicted for it."""
        known = self.models.get(view.model) or self._model(view.model)
        knowledge, cached_tokens = known.knowledge, 0
        known.policy.placed(item, view.key, now)
        if view.kv_free_tokens is not None:
            knowledge.note_room(view)
        speeds = knowledge.by_device.get(view.device) or knowledge.speeds(view)
        if item.prefix:
            cached_tokens = knowledge.cached_tokens(item, view.key)
            knowledge.prefixes.note_read(view.key, item.prefix, knowledge.capacity_blocks(item, view))
        predicted = self._predict(item, view, speeds, cached_tokens, now)
        placed: _Placed = known, item, speeds, predicted, not view.loaded
        view.load.begin(
            item.number,
            now,
            item.input_tokens + item.output_tokens,
            predicted.read_s,
            predicted.total_s - predicted.first_token_s,
            placed,
        )
        return predicted

    def first_token(self, number: int, view: DeploymentView, now: float) -> bool:
        """The first token of the request ``number`` came from ``view``. True when a request that is
        held may be placed there now: then :meth:`assign` should be called."""
        known = self.models.get(view.model)
        holding = known is not None and known.policy.look_again_s is not None and is_busy(view, now)
        view.load.first_token(number, now)
        if known is None or not holding or is_busy(view, now):
            return False
        known.policy.rests_until_s = 0.0
        return True

    def placed_elsewhere(
        self, item: PendingRequest, view: DeploymentView, now: float, *, read: bool = False
    ) -> PredictedWork:
        """Another process gave ``item`` to ``view``; with ``read`` its first token has come. Returns the work
        predicted for it."""
        known = self.models.get(view.model) or self._model(view.model)
        knowledge, cached_tokens = known.knowledge, 0
        knowledge.shared = True
        if item.prefix:
            cached_tokens = knowledge.cached_tokens(item, view.key)
            knowledge.prefixes.note_read(view.key, item.prefix, knowledge.capacity_blocks(item, view))
        predicted = self._predict(item, view, knowledge.speeds(view), cached_tokens, now)
        kv_tokens = item.input_tokens + item.output_tokens
        output_s = predicted.total_s - predicted.first_token_s
        if read:
            view.load.begun(item.number, now, kv_tokens=kv_tokens, output_s=output_s)
        else:
            view.load.begin(item.number, now, kv_tokens=kv_tokens, read_s=predicted.read_s, output_s=output_s)
        return predicted

    def finished_elsewhere(self, number: int, view: DeploymentView, now: float) -> bool:
        """A request of another process has ended. True when a request that is held may be placed there now:
        then :meth:`assign` should be called."""
        known = self.models.get(view.model)
        holding = known is not None and known.policy.look_again_s is not None and is_busy(view, now)
        view.load.end(number, now)
        if known is None or not holding or is_busy(view, now):
            return False
        known.policy.rests_until_s = 0.0
        return True

    def finished(self, number: int, view: DeploymentView, outcome: Outcome, now: float) -> None:
        """The request ``number`` has given back its slot at ``view``."""
        ended = view.load.end(number, now)
        placed: _Placed | None = None if ended is None else ended[2]
        if ended is None or placed is None:
            return
        known, item, speeds, predicted, cold = placed
        if outcome.ok and not cold and speeds.should_learn(now):
            concurrency = view.load.company(ended, now)
            paces = self.performance.learn(speeds, predicted, outcome, concurrency, view.rtt_s)
            view.load.note_pace(*paces)
        known.policy.finished(item, view.key, outcome, now)

    # --- Within ---

    def _predict(
        self, item: PendingRequest, view: DeploymentView, speeds: Speeds, cached_tokens: int, now: float
    ) -> PredictedWork:
        load, input_tokens, output_tokens = view.load, item.input_tokens, item.output_tokens
        pace, running = load.reading_pace, load.count
        uncached_tokens = input_tokens
        if cached_tokens:
            uncached_tokens -= int(cached_tokens * speeds.hit_share)
        read_s = speeds.read_s(uncached_tokens, input_tokens - uncached_tokens) * pace
        wait_s = load.ready_s - now if load.ready_s > now else 0.0
        if not view.loaded:
            wait_s += speeds.load_s if view.load_s is None else view.load_s
        first_s = wait_s + speeds.fixed_s * pace + read_s
        kv_tokens = load.kv_tokens + input_tokens + output_tokens
        reading_share = load.reading_share if running else 0.0
        output_s = speeds.output_s(output_tokens, running + 1, kv_tokens, reading_share) * load.writing_pace
        return PredictedWork(
            cached_tokens,
            uncached_tokens,
            input_tokens,
            output_tokens,
            first_s,
            first_s + output_s,
            read_s,
            speeds.token_s * pace,
        )

    def _policy(self, model: str, knowledge: Knowledge) -> Policy:
        policy = self._make(self.policy_of(model), knowledge)
        for view in knowledge.views.values():
            policy.deployment_added(view, 0.0)
        return policy

    def _model(self, model: str) -> ModelScheduling:
        known = self.models.get(model)
        if known is None:
            knowledge = Knowledge(model, self.performance, seed=self._seed)
            known = self.models[model] = ModelScheduling(knowledge, self._policy(model, knowledge))
            if len(self.models) > MOST_MODELS:
                self._forget_one()
        return known

    def _forget_one(self) -> None:
        for name, known in self.models.items():
            if not known.knowledge.views and name != next(reversed(self.models)):
                del self.models[name]
                return
