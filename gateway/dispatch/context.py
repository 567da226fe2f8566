"""What all requests on their way share: the waiting room, what is known of deployments, and every budget."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from gateway.cluster.demand import DemandSender, DemandSession
from gateway.dispatch.admission import Admission
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.decisions.decision import DecisionLog
from gateway.dispatch.recovery import RecordBudget
from gateway.dispatch.region_gate import RegionGate
from gateway.dispatch.response_buffers import UnreadBudget
from gateway.dispatch.scheduler_adapter import SchedulerAdapter
from gateway.dispatch.session_pinning import SessionPinning
from gateway.dispatch.settings import DispatchSettings
from gateway.dispatch.sliced_parsing import SlicedParser
from gateway.dispatch.slow_readers import SlowReaders
from gateway.domain.errors import QueueTimeout, RequestError
from gateway.domain.request import Request, Tier
from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment
from gateway.fleet.health import FleetHealth
from gateway.fleet.registry import Registry
from gateway.observability.metrics import Metrics
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.health import (
    AnswerTimes,
    AttemptBudgets,
    HealthSettings,
    HedgeBudget,
    RetryBudget,
)
from gateway.scheduling.health.failover import ENGINES_FAULT, Refusals, Trouble
from gateway.scheduling.queue.tickets import Ticket
from gateway.scheduling.queue.waiting_room import QueueSettings, WaitingRoom
from gateway.scheduling.regions.settings import RegionSettings
from gateway.scheduling.scaling.arrivals import ArrivalCounts
from shared.protocol.messages import Usage
from shared.protocol.routes import ANY_ROUTE

_FREE = frozenset(
    {
        Trouble.REFUSED,
        Trouble.DECLINED,
        Trouble.NO_PATH,
        Trouble.LOST,
        Trouble.ENGINE_LOST,
        Trouble.DRAINING,
    }
)
"""Retries for these cost no budget: no engine began on it, or the one that did is gone."""

_REFUSED = Trouble.REFUSED.name.lower()

_SILENCES = frozenset({Trouble.TIMEOUT, Trouble.STALLED})
"""No fault on an engine's own paths, where it may have nothing to say for as long as it likes."""


class DispatchContext(ABC):
    """What a request on its way needs of :class:`gateway.dispatch.dispatcher.Dispatcher`, which is the one
    subclass: it knows the requests themselves. Belongs to the event loop's thread."""

    __slots__ = (  # an object's dictionary has no room for all of these: then methods are found slowly
        "_answer_times",
        "_budgets",
        "_hedges",
        "_retries",
        "_tasks",
        "admission",
        "arrivals",
        "at_turn_end",
        "decisions",
        "demand",
        "health",
        "index",
        "look_at",
        "metrics",
        "records",
        "regions",
        "registry",
        "room",
        "scheduling",
        "sessions",
        "settings",
        "sliced_parser",
        "slow_readers",
        "timers",
        "unread",
    )

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        timers: Timers,
        queue: QueueSettings,
        settings: DispatchSettings,
        policy: str,
        policies: Mapping[str, str],
        jitter: Callable[[], float],
        at_turn_end: Callable[[Callable[[], None]], object] | None,
    ) -> None:
        self.timers = timers
        self.at_turn_end = at_turn_end or timers.call_soon
        """Has something called once the present turn of the event loop is over."""
        self.settings = settings
        self.metrics = metrics
        self.room = WaitingRoom(queue)
        self.registry = registry
        self.index = registry.index
        self.scheduling = SchedulerAdapter(self.index, policy, timers.time)
        self.scheduling.scheduler.choose_policies(policy, policies)
        self.decisions = DecisionLog(self.scheduling.scheduler)
        self.admission = Admission(self.index, self.room, settings.reconnect_grace_s)
        self.sessions = SessionPinning(self.index, self.admission)
        rests = HealthSettings(settings.rest_s, settings.rest_max_s, settings.slow_start_s)
        self.health = FleetHealth(self.index, timers, metrics, rests, jitter)
        self.unread = UnreadBudget(settings.unread_bytes)
        self.slow_readers = SlowReaders(settings.least_read_bytes_s, settings.held_up_s)
        metrics.gauges.answer_stalls = lambda: self.slow_readers.stalls
        self.sliced_parser = SlicedParser(timers)
        self.records = RecordBudget(settings.records_total_bytes)
        self.arrivals = ArrivalCounts()
        self.regions: RegionGate | None = None
        """Says which regions requests may use; None: regions are not set."""
        self.look_at: Callable[[str], None] = lambda model: None
        """Has those looked at who wait for a model, once this turn is over."""
        self.demand = DemandSender(
            timers, lambda model: self.room.demand(model, timers.time()), self._sessions_serving
        )
        """Tells agents with several sessions what waits."""
        self._retries = RetryBudget(settings.retry_share)
        self._hedges = HedgeBudget(settings.hedge_share)
        self._budgets = AttemptBudgets(self._retries, self._hedges)
        self._answer_times = AnswerTimes()
        self._tasks: set[asyncio.Task[None]] = set()

    def follow_regions(self, settings: RegionSettings) -> RegionGate:
        """From now on requests go to regions as these settings say."""
        gate = RegionGate(settings, self.registry, self.room, self.timers, lambda model: self.look_at(model))
        self.regions = gate
        self.admission.constrained = gate.constrained
        return gate

    def note_region(self, ticket: Ticket, chosen: Deployment) -> None:
        """With regions set: a request was given to ``chosen``."""
        if self.regions is not None:
            self.regions.placed(ticket.number, chosen)
            self.decisions.note_regions(ticket, chosen, self.regions)

    # --- What becomes of attempts ---

    @abstractmethod
    def taken(self, ticket: Ticket, attempt: Attempt) -> None:
        """An attempt has its stream: the request takes a slot, and leaves the waiting room if it is there."""

    @abstractmethod
    def released(self, attempt: Attempt) -> None:
        """An attempt's stream is closed at both ends: its slot is free."""

    @abstractmethod
    def began(self, attempt: Attempt) -> None:
        """The first of an answer's body came."""

    @abstractmethod
    def succeeded(
        self, attempt: Attempt, first_byte_s: float, total_s: float, now: float, usage: Usage | None
    ) -> None:
        """An answer came whole; times from the opening of its stream. ``usage`` is that of this attempt
        alone, None when there is none to be had."""

    def failed(self, attempt: Attempt, trouble: Trouble, now: float, rest_s: float = 0.0) -> None:
        """The attempt failed before or during its response. ``rest_s``: its engine asks to be left alone for
        so long."""
        request, deployment = attempt.request, attempt.deployment
        request.note_trouble(deployment.key, trouble.name.lower())
        if trouble is Trouble.DECLINED:
            # Nothing is wrong there, but this request is to go there no more.
            request.note_failure(deployment.key, now)
            self.health.released(deployment, request)
            return
        if trouble is Trouble.REFUSED and (deployment.asked_as or deployment.session in self.demand):
            # Its slot went to another process, or to a client of the gateway that is the agent: nothing is
            # wrong there, and its level says what it takes.
            self.health.released(deployment, request)
            return
        if trouble in ENGINES_FAULT:
            request.note_failure(deployment.key, now)
        if request.route != ANY_ROUTE or trouble not in _SILENCES:
            self.health.failed(deployment, request, trouble, now, rest_s)

    def lacks_path(self, attempt: Attempt) -> None:
        """The attempt's engine has nothing at the request's path: such requests go there no more."""
        request, deployment = attempt.request, attempt.deployment
        request.note_trouble(deployment.key, Trouble.NO_PATH.name.lower())
        deployment.lacks |= {request.need}
        deployment.routes -= {request.need}
        self.index.update(deployment)

    def _sessions_serving(self, model: str) -> list[DemandSession]:
        record = self.index.models.get(model)
        return [] if record is None else [each.session for each in record.serving.values()]

    # --- Where a request may go next ---

    def may_retry(self, request: Request, trouble: Trouble) -> bool:
        """Whether one more try is within the budget; takes from it."""
        if trouble in _FREE or self._budgets.take_retry(request.principal.tenant, self.timers.time()):
            return True
        self.metrics.retry_refused(request.model)
        return False

    def someone_else(self, request: Request, *, patiently: bool = False) -> bool:
        """Whether a deployment that the request was not given to yet could take it, now or soon;
        ``patiently``: or once its tunnel is back or its circuit closes."""
        fit = DeploymentConstraints.of(request, request.deployments_to_avoid(self.timers.time()))
        return self.index.someone_else(request.model, fit, patiently=patiently)

    def hedge_at(self, request: Request, now: float) -> float | None:
        """When a second copy of a unary request is worth it; None: never. A silence of ``stall_s`` is late
        where too few answers have been seen to know how long they take."""
        if request.streaming or request.tier is not Tier.REALTIME or request.route == ANY_ROUTE:
            return None
        usual_s = self._answer_times.quantile_s(request.model, request.route)
        return now + (self.settings.stall_s if usual_s is None else usual_s)

    def hedge(self, ticket: Ticket, now: float) -> Deployment | None:
        """Where a second copy of a request goes; None: there is no slot or no budget. Takes from the
        budget."""
        request = ticket.request
        well = {key: each for key, each in self.index.open(request.model).items() if each.healthy}
        copy = ticket.as_pending(frozenset(request.attempts))
        if self.regions is not None:
            gated, _ = self.regions.gate(request.model, [ticket], now)
            if not gated.tickets:
                return None
            copy = ticket.as_pending(copy.avoid | gated.avoid.get(ticket.number, frozenset()))
        chosen = self.scheduling.scheduler.assign(request.model, [copy], list(well.values()), now)
        if not chosen or not self._budgets.take_second_copy(request.principal.tenant):
            return None
        self.metrics.hedges(request.model, "started")
        return well[chosen[0].key]

    def crossed(self, request: Request) -> str | None:
        """The deployment that refused the request last because its slot had gone to another process: with
        the next slot there the request may go there as to any."""
        record = self.index.models.get(request.model)
        if record is None or not request.troubles or request.troubles[-1][1] != _REFUSED:
            return None
        deployment = record.serving.get(request.troubles[-1][0])
        return deployment.key if deployment is not None and deployment.session in self.demand else None

    # --- Who waits ---

    @abstractmethod
    def wait_again(self, ticket: Ticket, *, preempted: bool = False, refused: bool = False) -> None:
        """Back into the waiting room. ``preempted``: it gave way, and may wait until its time is over.
        ``refused``: engines have enough to do, and it may wait no longer than it might at first."""

    @abstractmethod
    def withdraw(self, ticket: Ticket) -> None:
        """Takes a request out of the waiting room that gets no slot."""

    @abstractmethod
    def finished(self, ticket: Ticket) -> None:
        """The request is over, and its streams are closed."""

    def waited_too_long(self, request: Request, refusals: Refusals | None) -> RequestError:
        """What to say to a request that waited as long as it may, and that engines refused meanwhile that
        had enough to do; None: none did."""
        now = self.timers.time()
        error = self.admission.too_late(request, now)
        if refusals is not None and isinstance(error, QueueTimeout):
            error = refusals.error(error.retry_after_s or 0.0, now)
        self.metrics.refused(request.model, error.code)
        return error

    # --- Tasks ---

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start an upload, and own its task; each open attempt has one at most."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
