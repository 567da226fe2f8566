"""The health of the fleet: the outcomes of requests decide how much each deployment may take.

The index calls it at every change of a deployment. It checks a deployment again by itself when time alone
changes something: a rest, a cool-down or an ejection ends, or a slow start climbs a step. Each deployment of
which that is true has one timer, the others have none.

**Panic.** When nothing that serves a model may take anything for its health, the one whose time ends first
is tried within ``PANIC_S``, whatever its cool-down: with nothing to lose, one request a second is a fair
price for knowing that an engine is back. (Envoy's panic threshold sends traffic to all unhealthy hosts
then; here requests can wait, so one at a time will do.)

**Failing keys.** An error may be an engine's answer to what a client asks. Where the engine serves others
well meanwhile, an error is no failure of its: when two engines answered a request so, or there is one only,
and of the same key for a while after. When a further engine serves the request, they are at fault after all.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from itertools import islice

import structlog

from gateway.domain.request import Request
from gateway.domain.slices import Stepwise
from gateway.domain.timers import Timers
from gateway.fleet.availability import ModelRecord
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.fleet.suspects import suspects
from gateway.observability.metrics import Metrics
from gateway.scheduling.base import NO_CAP
from gateway.scheduling.health import (
    AnswerPace,
    CircuitState,
    DeploymentHealth,
    FailingKeys,
    Fault,
    GivenHints,
    HealthRegistry,
    HealthSettings,
    outliers,
)
from gateway.scheduling.health.failover import Trouble
from shared.process.timers import Cancellable
from shared.protocol.messages import DeploymentStatus

PANIC_S = 1.0
JUDGE_S = 1.0
"""How often the deployments of one model are compared at most."""
MOST_EJECTED = 3
"""One in so many deployments of a model may be set aside for being slow."""
ASKED = 32
"""So many of a model's deployments, the oldest, are checked for one that has served for a while."""
LOSS_S = 1.0
"""Requests lost with a session or an engine are lost together: losses so close together count once."""
_LOSSES = frozenset({Trouble.LOST, Trouble.ENGINE_LOST})

_FAULTS = {
    Trouble.UNREACHABLE: Fault.GONE,
    Trouble.STATUS: Fault.FAILURE,
    Trouble.TIMEOUT: Fault.FAILURE,
    Trouble.LOST: Fault.FAILURE,
    Trouble.ENGINE_LOST: Fault.FAILURE,
    Trouble.BROKEN: Fault.CUT,
    Trouble.STALLED: Fault.STALL,
}
_STATUS = Trouble.STATUS.name.lower()
_RESTS = frozenset({Trouble.REFUSED, Trouble.OVERLOADED})
"""The engine is busy, which is no fault: it gets nothing for a short time."""

_log = structlog.get_logger(__name__)


class FleetHealth:
    """Belongs to the event loop's thread. ``jitter`` gives numbers from 0 to 1."""

    def __init__(
        self,
        index: ModelIndex,
        timers: Timers,
        metrics: Metrics,
        settings: HealthSettings,
        jitter: Callable[[], float],
    ) -> None:
        self._index = index
        self._timers = timers
        self._metrics = metrics
        self._jitter = jitter
        self._records = HealthRegistry(settings)
        self._present: dict[str, Deployment] = {}
        """Deployments that are loaded and serve, by key."""
        self._looks: dict[Deployment, tuple[float, Cancellable]] = {}
        self._failing_keys = FailingKeys()
        self.hints = GivenHints()
        """What other gateways are told."""
        self._doubtful: dict[str, None] = {}
        """Models of which perhaps nothing may take anything."""
        self._turn: Cancellable | None = None
        index.watch_health(self._assess)
        metrics.gauges.health = self.figures

    # --- Outcomes of requests ---

    def taken(self, deployment: Deployment, request: Request) -> None:
        """A request goes there."""
        health = deployment.health
        if health is None:
            return
        if health.circuit.state is CircuitState.HALF_OPEN:
            health.circuit.started(request.id, self._timers.time())
        elif health.suspicion.active:
            health.suspicion.started(request.id)
        else:
            return
        self._changed(deployment)

    def released(self, deployment: Deployment, request: Request) -> None:
        """A request's slot is about to be given back, which updates the index."""
        if deployment.health is not None:
            if deployment.health.circuit.probes:
                deployment.health.circuit.released(request.id)
            deployment.health.suspicion.released(request.id)
            if self._present.get(deployment.key) is not deployment:
                self._changed(deployment)

    def answered(self, deployment: Deployment, request: Request, now: float) -> None:
        """The head of a usable answer is there."""
        health = deployment.health
        if health is not None:
            if health.refusals:
                health.accepted()
            if not deployment.settled:
                if health.circuit.answered(request.id, now):
                    self._recovered(deployment, health, now)
                elif health.suspicion.answered(request.id, now):
                    self._changed(deployment)

    def succeeded(
        self,
        deployment: Deployment,
        request: Request,
        first_byte_s: float,
        total_s: float,
        size_bytes: int,
        now: float,
    ) -> None:
        """An answer came whole; times from the opening of its stream."""
        health = deployment.health
        if health is None:
            return
        if health.refusals:
            health.accepted()
        health.pace.note(request.streaming, first_byte_s, total_s, size_bytes)
        health.served.note(request.principal.key_id, now)
        if request.troubles is not None:
            self._blame(request, now)
        circuit = health.circuit
        before = circuit.state
        if deployment.settled:  # the circuit is closed, and nobody suspects the deployment
            circuit.note_success(now)
        elif circuit.succeeded(request.id, now):
            self._recovered(deployment, health, now)
        elif health.suspicion.succeeded(now) or circuit.state is not before:
            self._changed(deployment)
        record = self._index.models.get(deployment.model)
        if record is not None and now - record.judged_s >= JUDGE_S:
            self._judge(record, now)

    def failed(
        self, deployment: Deployment, request: Request, trouble: Trouble, now: float, rest_s: float = 0.0
    ) -> None:
        """A request failed there. ``rest_s``: the engine wants no requests for so long."""
        health = deployment.health
        if health is None:
            return
        if trouble in _RESTS:
            health.rest(now, rest_s)
            health.released(request.id)
        elif trouble is Trouble.STATUS and self._its_own(deployment, health, request, now):
            health.released(request.id)
        elif trouble in _LOSSES and now - health.lost_s < LOSS_S:
            return
        elif trouble in _FAULTS:
            if trouble in _LOSSES:
                health.lost_s = now
            self._count(deployment, health, request, trouble, now)
        self._changed(deployment)

    def _count(
        self, deployment: Deployment, health: DeploymentHealth, request: Request, trouble: Trouble, now: float
    ) -> None:
        was_closed, reason = health.circuit.state is CircuitState.CLOSED, trouble.name.lower()
        suspect, fault = health.suspicion.active, _FAULTS[trouble]
        if health.circuit.failed(request.id, fault, now, self._jitter(), suspect=suspect):
            health.suspicion.confirmed()
            self._metrics.circuit_opened(deployment.model, reason)
            if was_closed:
                _log.warning("circuit_opened", deployment=deployment.key, reason=reason)
                if not suspect and trouble is not Trouble.LOST:  # that was this gateway's tunnel
                    self.hints.add(deployment.key, reason, now)
        deployment.health_factor = health.circuit.success_probability(now)

    # --- Whose fault it is ---

    def _its_own(
        self, deployment: Deployment, health: DeploymentHealth, request: Request, now: float
    ) -> bool:
        """Whether ``request`` itself, and not the engine, is the reason for its error."""
        key = request.principal.key_id
        if not health.served.served_others(key, now):
            return False
        well = [
            (each, its)
            for each, its in self._refusing(request)
            if each is not deployment and its.served.served_others(key, now)
        ]
        for each, its in well:
            its.circuit.discard_failure(request.id, now)
            each.health_factor = its.circuit.success_probability(now)
            self._changed(each)
        known = self._failing_keys.is_failing(key, now)
        if not (well or len(self._index.serving(deployment.model)) == 1):
            return known
        if not known:
            _log.warning("requests_make_engines_fail", key=request.principal.key_name, model=deployment.model)
        self._failing_keys.add(key, now)
        return True

    def _blame(self, request: Request, now: float) -> None:
        """It was served at last: what was taken for its own fault was the engines'."""
        key, refusing = request.principal.key_id, self._refusing(request)
        if len(refusing) < 2 and not self._failing_keys.is_failing(key, now):
            return
        self._failing_keys.clear(key)
        for each, health in refusing:
            self._count(each, health, request, Trouble.STATUS, now)
            self._changed(each)

    def _refusing(self, request: Request) -> list[tuple[Deployment, DeploymentHealth]]:
        """The deployments that are there and answered ``request`` with an error."""
        keys = dict.fromkeys(key for key, why in request.troubles or () if why == _STATUS)
        found = (self._present.get(key) for key in keys)
        return [(each, each.health) for each in found if each is not None and each.health is not None]

    # --- What other gateways say ---

    def suspect(self, keys: Iterable[str]) -> None:
        """Other gateways have ejected these, or opened their circuits: they are to be probed."""
        for deployment in suspects(keys, self._present, self._index, self._timers.time()):
            _log.info("deployment_suspect", deployment=deployment.key, reason="another gateway says so")
            self._changed(deployment)

    # --- Figures ---

    def figures(self) -> Stepwise[Tally[tuple[str, str]]]:
        """Deployments that are loaded and serve, by model and state of health; one a step."""
        figures = Tally[tuple[str, str]]()
        for deployment in list(self._present.values()):
            assert deployment.health is not None
            figures[deployment.model, deployment.health.state_label] += 1
            yield
        return figures

    def close(self) -> None:
        """Looks no more."""
        for _, timer in self._looks.values():
            timer.cancel()
        self._looks.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    # --- How much a deployment may take ---

    def _assess(self, deployment: Deployment) -> tuple[int, bool]:
        now = self._timers.time()
        if deployment.promising and deployment.status is DeploymentStatus.LOADED:
            if self._present.get(deployment.key) is not deployment:
                self._arrived(deployment, now)
        elif self._present.get(deployment.key) is deployment:
            self._departed(deployment, now)
        health = deployment.health
        if health is None:
            return NO_CAP, False
        if deployment.health_factor != 1.0:  # what failed makes it look slower until it is forgotten
            deployment.health_factor = health.circuit.success_probability(now)
        if health.steady(now) and deployment not in self._looks:
            if deployment.session.suspended:
                self._doubt(deployment.model)
            return NO_CAP, False
        health.advance(now)
        self._watch(deployment, health, now)
        shut = health.blocked()
        if shut or deployment.session.suspended:
            self._doubt(deployment.model)
        return health.cap(deployment.slots, deployment.in_flight, now), shut

    def _arrived(self, deployment: Deployment, now: float) -> None:
        self._present[deployment.key] = deployment
        deployment.health, new = self._records.arrived(deployment.key, now)
        if new and self._others_established(deployment.model, now):
            deployment.health.slow_start.begin(now)

    def _others_established(self, model: str, now: float) -> bool:
        oldest = islice(self._index.serving(model), ASKED)
        return any(
            each.health is not None and each.health.established(now) and not each.session.suspended
            for each in oldest
        )

    def _departed(self, deployment: Deployment, now: float) -> None:
        del self._present[deployment.key]
        self._records.departed(deployment.key, now)
        self._doubt(deployment.model)

    def _recovered(self, deployment: Deployment, health: DeploymentHealth, now: float) -> None:
        health.slow_start.begin(now)
        _log.info("circuit_closed", deployment=deployment.key)
        self._changed(deployment)

    def _changed(self, deployment: Deployment) -> None:
        """Its health is another. After a reconnect this may be the old session's deployment with streams
        that are still closing, while the new one has the same health."""
        self._index.update(self._present.get(deployment.key, deployment))

    # --- Time ---

    def _watch(self, deployment: Deployment, health: DeploymentHealth, now: float) -> None:
        """Look again when it is due; a timer that comes earlier will do."""
        due_s = None
        if self._present.get(deployment.key) is deployment:
            due_s = health.next_change_s(deployment.slots, now)
        due = self._looks.get(deployment)
        if due is not None and (due_s is None or due_s < due[0]):
            due[1].cancel()
            del self._looks[deployment]
            due = None
        if due is None and due_s is not None:
            timer = self._timers.call_at(due_s, lambda: self._look(deployment))
            self._looks[deployment] = due_s, timer

    def _look(self, deployment: Deployment) -> None:
        del self._looks[deployment]
        self._index.update(deployment)

    # --- Panic ---

    def _doubt(self, model: str) -> None:
        self._doubtful[model] = None
        if self._turn is None:
            self._turn = self._timers.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        doubtful, self._doubtful = self._doubtful, {}
        for model in doubtful:
            self._try_someone(model)

    def _try_someone(self, model: str) -> None:
        now = self._timers.time()
        shut: list[tuple[float, Deployment]] = []
        for deployment in self._index.serving(model):
            health = deployment.health
            if health is None or deployment.session.suspended:
                continue
            if not deployment.shut or health.circuit.state is CircuitState.PROBING:
                return
            shut.append((health.blocked_until_s, deployment))
        if not shut:
            return
        until_s, first = min(shut, key=lambda each: each[0])
        if until_s > now + PANIC_S and first.health is not None:
            first.health.shorten(now + PANIC_S)
            self._index.update(first)

    # --- Outliers ---

    def _judge(self, record: ModelRecord, now: float) -> None:
        record.judged_s = now
        peers: dict[str, dict[str, AnswerPace]] = {}
        aside = 0
        for key, deployment in record.serving.items():
            if deployment.health is not None:
                peers.setdefault(deployment.device, {})[key] = deployment.health.pace
                aside += deployment.health.ejected_until_s > 0.0
        for device, group in peers.items():
            for key in outliers(group, alike=bool(device)):
                if (aside + 1) * MOST_EJECTED > len(record.serving):
                    return
                aside += 1
                self._eject(record.serving[key], now)

    def _eject(self, deployment: Deployment, now: float) -> None:
        assert deployment.health is not None
        deployment.health.eject(now)
        self._metrics.ejected(deployment.model)
        self.hints.add(deployment.key, "slow", now)
        _log.warning("deployment_ejected", deployment=deployment.key, reason="far slower than its peers")
        self._index.update(deployment)
