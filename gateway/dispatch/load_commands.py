"""Tells agents to load and to unload models, and follows what becomes of it (PROTOCOL §4.8).

A RESULT says at once whether an agent takes a command on; what comes of it is in its STATEs. A command that
is not answered, or whose work does not end in time, has failed. Belongs to the event loop's thread.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment, DeploymentOwner
from gateway.fleet.model_index import ModelIndex
from gateway.fleet.session import AgentSession
from gateway.observability.metrics import Metrics
from gateway.scheduling.placement.data import LoadState
from gateway.scheduling.placement.history import PlacementHistory
from shared.protocol.errors import TrunklineError
from shared.protocol.messages import Command, CommandResult, CommandVerb, DeploymentStatus

ANSWER_S = 10.0
"""A command is answered at once; this is for a slow tunnel."""

UNLOAD_S = 60.0
"""An engine that has not let go of its memory after so long will not."""

_log = structlog.get_logger(__name__)

_OUT = frozenset({DeploymentStatus.LOADABLE, DeploymentStatus.FAILED})


@dataclass(slots=True)
class _Order:
    """One command that is under way."""

    id: int
    verb: CommandVerb
    deployment: Deployment
    sent_s: float
    due_s: float
    epoch: int | None = None
    """By which right it was sent; None: the agent does not know of rights."""


class LoadCommands:
    """All commands of one gateway, at most one for each deployment."""

    def __init__(
        self,
        index: ModelIndex,
        history: PlacementHistory,
        metrics: Metrics,
        timers: Timers,
        *,
        load_timeout_s: float,
        changed: Callable[[Deployment], None],
        loaded: Callable[[Deployment, float], None],
        epoch: Callable[[DeploymentOwner], int | None] = lambda session: None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """``changed`` is called with what may be decided on anew, ``loaded`` when a model was loaded and in
        how many seconds. ``epoch`` is what a command to that agent says of it; None: nothing. ``may_act``
        says whether this process still has the right to command, as far as it knows."""
        self._index = index
        self._history = history
        self._metrics = metrics
        self._timers = timers
        self._load_timeout_s = load_timeout_s
        self._changed = changed
        self._loaded = loaded
        self._epoch = epoch
        self._may_act = may_act
        self._ids = itertools.count(1)
        self._orders: dict[str, _Order] = {}
        """Orders to load or unload, by the deployment's key."""
        index.watch_loading(self._moved)

    @property
    def busy(self) -> bool:
        """Something is under way."""
        return bool(self._orders)

    def load_state(self, deployment: Deployment) -> LoadState:
        """Where its model is in its life, what was commanded included."""
        order = self._orders.get(deployment.key)
        verb = order.verb if order is not None and order.deployment is deployment else None
        status = deployment.status
        if status in _OUT:
            return LoadState.LOADING if verb is CommandVerb.LOAD else LoadState.UNLOADED
        if deployment.leaving or verb is CommandVerb.UNLOAD:
            return LoadState.UNLOADING
        return LoadState.LOADED if status is DeploymentStatus.LOADED else LoadState.LOADING

    def command(self, verb: CommandVerb, deployment: Deployment, why: str) -> None:
        """Have it loaded or unloaded. What is unloaded must run nothing, and gets nothing from now on."""
        assert verb is CommandVerb.LOAD or not deployment.in_flight, deployment.key
        event = "model_load" if verb is CommandVerb.LOAD else "model_unload"
        _log.info(event, deployment=deployment.key, model=deployment.model, why=why)
        now = self._timers.time()
        epoch = self._epoch(deployment.session)
        order = _Order(next(self._ids), verb, deployment, now, now + ANSWER_S, epoch)
        try:
            command = Command(order.id, verb, deployment.id, epoch)
            deployment.session.endpoint.send_command(command.to_dict())
        except TrunklineError as error:
            _log.warning("model_command_failed", deployment=deployment.key, error=str(error))
            self._history.keep(deployment.key, now)
            self._history.failures.pause(deployment.key, now)
            return
        self._orders[deployment.key] = order
        if verb is CommandVerb.UNLOAD:
            deployment.closing = deployment.told_to_go = True
            self._index.update(deployment)

    def began_s(self, deployment: Deployment) -> float:
        """When it began loading."""
        order = self._orders.get(deployment.key)
        return deployment.loading_s if order is None else max(deployment.loading_s, order.sent_s)

    @property
    def due_s(self) -> float | None:
        """When to look whether something takes too long."""
        return min((order.due_s for order in self._orders.values()), default=None)

    def look(self, now: float) -> None:
        """Give up what has taken too long, or has lost its agent."""
        for order in list(self._orders.values()):
            deployment = order.deployment
            if not deployment.listed:
                self._over(order)
                if order.verb is CommandVerb.LOAD and deployment.session.closed:
                    self._failed(deployment, "its agent was lost meanwhile", now, deadly=True)
            elif now >= order.due_s and order.verb is CommandVerb.LOAD:
                self._over(order)
                self._failed(deployment, "it took too long", now)
                if deployment.status is DeploymentStatus.LOADING:
                    self.command(CommandVerb.UNLOAD, deployment, "loading took too long")
            elif now >= order.due_s:
                self._stays(order, "it took too long", now)

    # --- What agents say ---

    def answered(self, session: AgentSession, result: CommandResult) -> None:
        """An agent takes a command on, or does not."""
        now = self._timers.time()
        for order in self._orders.values():
            if order.id == result.id and order.deployment.session is session:
                break
        else:
            return
        if result.ok:
            load = order.verb is CommandVerb.LOAD
            order.due_s = order.sent_s + (self._load_timeout_s if load else UNLOAD_S)
        elif order.epoch is not None and not (self._may_act() and self._epoch(session) == order.epoch):
            self._outdated(order, result.error, now)
        elif order.verb is CommandVerb.LOAD:
            self._over(order)
            self._refused(order.deployment, result.error, now)
        else:
            self._stays(order, result.error, now)
        self._changed(order.deployment)

    def _moved(self, deployment: Deployment, before: DeploymentStatus | None) -> None:
        """Its agent says another status of it, or (``before`` is None) names it for the first time."""
        if before is None:
            self._history.failures.agent_changed(deployment.key)
            self._changed(deployment)
            return
        now, order = self._timers.time(), self._orders.get(deployment.key)
        loading = before is DeploymentStatus.LOADING
        commanded = order is not None and order.verb is CommandVerb.LOAD
        if deployment.status is DeploymentStatus.LOADED:
            self._done(deployment, order, now)
        elif deployment.status in _OUT and (loading or commanded) and not deployment.told_to_go:
            self._failed(deployment, deployment.reason or "its agent gave up", now)
        elif deployment.status is DeploymentStatus.LOADABLE:
            self._metrics.unloaded(deployment.model)
            _log.info("model_unloaded", deployment=deployment.key, model=deployment.model)
        out = deployment.status in _OUT
        if order is not None and (out or (commanded and deployment.status is DeploymentStatus.LOADED)):
            self._over(order)
        self._changed(deployment)

    # --- What becomes of it ---

    def _done(self, deployment: Deployment, order: _Order | None, now: float) -> None:
        began_s = self.began_s(deployment)
        self._history.failures.note_loaded(deployment.key)
        if order is None and began_s < 0:
            return
        took_s = now - began_s
        self._metrics.loaded(deployment.model, took_s)
        _log.info("model_loaded", deployment=deployment.key, model=deployment.model, took_s=round(took_s, 1))
        self._loaded(deployment, took_s)

    def _failed(self, deployment: Deployment, why: str, now: float, *, deadly: bool = False) -> None:
        again_s = self._history.failures.failed(deployment.key, why, now, deadly=deadly)
        self._metrics.loads(deployment.model, "failed")
        _log.warning(
            "model_load_failed",
            deployment=deployment.key,
            model=deployment.model,
            reason=why,
            again_in_s=again_s,
        )

    def _refused(self, deployment: Deployment, why: str, now: float) -> None:
        """Its agent would not load it: for want of memory, where it may be so."""
        session = deployment.session
        beside = frozenset(
            each.key
            for each in session.deployments.values()
            if each is not deployment and each.managed and self.load_state(each) is not LoadState.UNLOADED
        )
        known = session.model_memory_bytes is not None and deployment.memory_bytes is not None
        if known or not beside:
            self._failed(deployment, why, now)
            return
        self._history.failures.note_crowded(deployment.key, beside)
        _log.info("model_does_not_fit", deployment=deployment.key, reason=why, beside=len(beside))

    def _outdated(self, order: _Order, why: str, now: float) -> None:
        """Refused after this process lost the right to command: that says nothing of the model. It is up to
        the process that has the right now; if this one has it again, it waits for a moment first."""
        self._over(order)
        self._history.keep(order.deployment.key, now)
        self._history.failures.pause(order.deployment.key, now)
        deployment = order.deployment.key
        _log.warning("model_command_outdated", deployment=deployment, verb=order.verb.value, reason=why)

    def _stays(self, order: _Order, why: str, now: float) -> None:
        """Its agent does not unload it."""
        self._over(order)
        self._history.keep(order.deployment.key, now)
        _log.warning("model_unload_failed", deployment=order.deployment.key, reason=why)

    def _over(self, order: _Order) -> None:
        deployment = order.deployment
        if self._orders.get(deployment.key) is order:
            del self._orders[deployment.key]
        if deployment.told_to_go:
            deployment.closing = deployment.told_to_go = False
            self._index.update(deployment)
