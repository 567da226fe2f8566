"""What the dispatcher does for its exchanges: it takes and gives back slots, has requests wait again, and
tells whoever has to know what became of an attempt. Everything belongs to the event loop's thread."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from gateway.dispatch.admission import Admission
from gateway.dispatch.assignment import Assigner
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.decisions import Decisions
from gateway.dispatch.exchange import ExchangeState, RequestExchange
from gateway.dispatch.placement import PlacementSettings, Placer
from gateway.dispatch.preemption import Preemption
from gateway.dispatch.readings import Readings
from gateway.dispatch.recovery import RecordBudget
from gateway.dispatch.sessions import Sessions
from gateway.dispatch.settings import DispatchSettings
from gateway.dispatch.slow_readers import SlowReaders
from gateway.dispatch.unread import UnreadBudget
from gateway.domain.errors import (
    QueueTimeout,
    RequestError,
)
from gateway.domain.request import Request, Tier
from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment
from gateway.fleet.health import FleetHealth
from gateway.fleet.registry import Registry
from gateway.observability.gauges import UnreadFigures
from gateway.observability.metrics import Metrics
from gateway.quota.usage import GpuTimeMeter
from gateway.scheduling.base import Fit
from gateway.scheduling.health import AnswerTimes, HealthSettings, HedgeBudget, RetryBudget
from gateway.scheduling.health.failover import ENGINES_FAULT, Refusals, Trouble
from gateway.scheduling.queue.tickets import Ticket
from gateway.scheduling.queue.waiting_room import QueueSettings, WaitingRoom
from shared.protocol.messages import Usage
from shared.protocol.routes import ANY_ROUTE

_FREE = frozenset({Trouble.REFUSED, Trouble.NO_PATH, Trouble.LOST, Trouble.ENGINE_LOST, Trouble.DRAINING})
"""Retries for these cost no budget: no engine began on it, or the one that did is gone."""

_SILENCES = frozenset({Trouble.TIMEOUT, Trouble.STALLED})
"""No fault on an engine's own paths, where it may have nothing to say for as long as it likes."""


class ExchangeCallbacks:
    """Holds what the dispatcher decides with, and answers its exchanges."""

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        timers: Timers,
        *,
        queue: QueueSettings | None = None,
        settings: DispatchSettings | None = None,
        policy: str = "cost",
        policies: Mapping[str, str] = MappingProxyType({}),
        placement: PlacementSettings | None = None,
        jitter: Callable[[], float] = random.random,
        ran: Callable[[Request, str, float], None] | None = None,
    ) -> None:
        """``timers`` is the running event loop; ``policy`` a name of ``gateway.scheduling.POLICIES``,
        ``policies`` others by model; without ``placement`` nothing is loaded on demand; ``jitter`` gives
        numbers from 0 to 1; ``ran`` is told a request, a deployment's key and the GPU-seconds that an attempt
        there used, when it is over.

        Raises ValueError for a policy there is none of.
        """
        self.timers = timers
        self.settings = settings or DispatchSettings()
        self.metrics = metrics
        self.room = WaitingRoom(queue or QueueSettings())
        self._index = registry.index
        self._decisions = Decisions(self._index, policy, timers.time)
        self._decisions.choose_policies(policy, policies)
        self._preemption = Preemption(self.settings, self._index, self.room)
        self._admission = Admission(
            self._index, self.room, self.settings.reconnect_grace_s, self._preemption.yielding
        )
        self._sessions = Sessions(self._index, self._admission)
        self.unread = UnreadBudget(self.settings.unread_bytes)
        self.slow_readers = SlowReaders(self.settings.least_read_bytes_s, self.settings.held_up_s)
        self._assigner = Assigner(
            self._index,
            self.room,
            self._decisions,
            self._admission,
            self._preemption,
            metrics,
            timers,
            self.slow_readers,
        )
        self._assigner.moves = self._moves
        self._preemption.mark = self._assigner.mark
        self._waiting = self._assigner.waiting
        self._placer: Placer | None = None
        if placement is not None:
            self._placer = self._assigner.placer = self._admission.loads = Placer(
                registry,
                self.room,
                metrics,
                timers,
                placement,
                load_s=self._decisions.load_s,
                loaded=self._decisions.loaded,
                refuse=self._assigner.refuse,
            )
        rests = HealthSettings(self.settings.rest_s, self.settings.rest_max_s, self.settings.slow_start_s)
        self._health = FleetHealth(self._index, timers, metrics, rests, jitter)
        self.readings = Readings(timers)
        self.records = RecordBudget(self.settings.records_total_bytes)
        self._retries = RetryBudget(self.settings.retry_share)
        self._hedges = HedgeBudget(self.settings.hedge_share)
        self._answer_times = AnswerTimes()
        self._gpu_time = GpuTimeMeter()
        self._ran = ran
        self._exchanges: set[RequestExchange] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Event | None = None
        """Set when the last exchange is finished."""
        self._index.watch_losses(self._engine_lost)
        metrics.watch_queue(self.room.depths)
        metrics.watch_predictions(self._decisions.predictions)
        metrics.watch_unread(self._unread_figures)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start an upload; each open attempt has one at most."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def taken(self, exchange: RequestExchange, attempt: Attempt) -> None:
        ticket = exchange.ticket
        if ticket.waiting:  # a second copy takes a slot too, without having waited for it
            del self._waiting[ticket.number]
            self.room.leave(ticket, attempt.opened_s, departed=True)
            request = exchange.request
            self.metrics.queued(request.model, request.tier, attempt.opened_s - ticket.entered_s)
        self._sessions.placed(exchange.request, attempt.deployment)
        self._index.take(attempt.deployment, attempt.work)
        self._gpu_time.started(attempt, attempt.deployment, attempt.opened_s)
        self._decisions.taken(ticket.as_waiting(), attempt)
        self._preemption.taken(exchange, attempt)
        self._health.taken(attempt.deployment, exchange.request)

    def released(self, attempt: Attempt) -> None:
        self._decisions.released(attempt)
        self._preemption.released(attempt)
        self._health.released(attempt.deployment, attempt.request)
        now = self.timers.time()
        held_s = None if attempt.refused else now - attempt.opened_s
        self._index.give_back(attempt.deployment, attempt.work, held_s)
        gpu_s = self._gpu_time.ended(attempt, attempt.deployment, now)
        attempt.request.gpu_s += gpu_s
        if self._ran is not None:
            self._ran(attempt.request, attempt.deployment.key, gpu_s)

    def answered(self, attempt: Attempt, now: float) -> None:
        self._health.answered(attempt.deployment, attempt.request, now)

    def began(self, attempt: Attempt) -> None:
        if self._decisions.began(attempt, self.timers.time()):
            self._assigner.changed(attempt.request.model)

    def succeeded(
        self, attempt: Attempt, first_byte_s: float, total_s: float, now: float, usage: Usage | None
    ) -> None:
        request = attempt.request
        if not request.continuing:
            self._decisions.succeeded(attempt, total_s, usage)
        self._health.succeeded(
            attempt.deployment, request, first_byte_s, total_s, attempt.received_bytes, now
        )
        self._preemption.succeeded(attempt, total_s)
        if not request.streaming:
            self._answer_times.note(request.model, request.route, total_s)

    def failed(self, attempt: Attempt, trouble: Trouble, now: float, rest_s: float = 0.0) -> None:
        attempt.request.note_trouble(attempt.deployment.key, trouble.name.lower())
        if trouble in ENGINES_FAULT:
            attempt.request.note_failure(attempt.deployment.key, now)
        if attempt.request.route == ANY_ROUTE and trouble in _SILENCES:
            return
        self._health.failed(attempt.deployment, attempt.request, trouble, now, rest_s)

    def lacks_path(self, attempt: Attempt) -> None:
        request, deployment = attempt.request, attempt.deployment
        request.note_trouble(deployment.key, Trouble.NO_PATH.name.lower())
        deployment.lacks |= {request.need}
        deployment.routes -= {request.need}
        self._index.update(deployment)

    def nobody_has(self, request: Request) -> RequestError:
        return self._admission.path_missing(request)

    def _moves(self, exchange: RequestExchange) -> bool:
        """Who waits for the agent of its session in vain goes elsewhere, if there is anywhere."""
        now, ticket, request = self.timers.time(), exchange.ticket, exchange.request
        if not self._sessions.move(request):
            return False
        self.room.leave(ticket, now, departed=False)
        self.room.requeue(ticket, request.shunned(now), now, expires_s=ticket.expires_s)
        self._assigner.mark(request.model)
        return True

    def may_retry(self, request: Request, trouble: Trouble) -> bool:
        if trouble in _FREE or self._retries.take(request.principal.tenant, self.timers.time()):
            return True
        self.metrics.retry_refused(request.model)
        return False

    def someone_else(self, request: Request, *, patiently: bool = False) -> bool:
        fit = Fit.of(request, request.shunned(self.timers.time()))
        return self._index.someone_else(request.model, fit, patiently=patiently)

    def hedge_at(self, request: Request, now: float) -> float | None:
        if request.streaming or request.tier is not Tier.REALTIME or request.route == ANY_ROUTE:
            return None
        usual_s = self._answer_times.quantile_s(request.model, request.route)
        return now + (self.settings.stall_s if usual_s is None else usual_s)

    def hedge(self, request: Request, ticket: Ticket, now: float) -> Deployment | None:
        well = {key: each for key, each in self._index.open(request.model).items() if each.well}
        copy = ticket.as_waiting(frozenset(request.attempts))
        chosen = self._decisions.assign(request.model, [copy], well, now)
        if not chosen or not self._hedges.take(request.principal.tenant):
            return None
        self.metrics.hedged(request.model)
        return well[chosen[0].key]

    def wait_again(self, exchange: RequestExchange, *, preempted: bool = False) -> None:
        now, request = self.timers.time(), exchange.request
        if preempted:  # nothing speaks against where it ran
            until_s = now + self.settings.total_s if request.deadline_s is None else request.deadline_s
            self.room.requeue(exchange.ticket, (), now, expires_s=until_s)
        else:
            until_s = self._admission.expiry(request, now)
            self.room.requeue(exchange.ticket, request.shunned(now), now, expires_s=until_s)
        self._waiting[exchange.ticket.number] = exchange
        self._assigner.mark(request.model)

    def hold(self, exchange: RequestExchange) -> None:
        now, ticket = self.timers.time(), exchange.ticket
        self.room.requeue(ticket, (), now, expires_s=ticket.expires_s, refused=True)
        self._waiting[ticket.number] = exchange
        self._assigner.mark(exchange.request.model)

    def slot_expected_s(self, request: Request) -> float:
        now = self.timers.time()
        return self.room.retry_after_s(request, self._admission.capacity(request, now), now)

    def spent(self, ticket: Ticket, work: float) -> None:
        self.room.settle(ticket, work, self.timers.time())

    def withdraw(self, ticket: Ticket) -> None:
        del self._waiting[ticket.number]
        self.room.leave(ticket, self.timers.time(), departed=False)
        self._preemption.left(ticket, self.timers.time())

    def may_wait_until(self, request: Request, ticket: Ticket) -> float | None:
        if self._placer is None or not self._admission.awaits_load(request):
            return None
        return self._placer.hold_longer(request, ticket.entered_s, self.timers.time())

    def waited_too_long(self, request: Request, refusals: Refusals | None) -> RequestError:
        error = self._admission.too_late(request, self.timers.time())
        if refusals is not None and isinstance(error, QueueTimeout):
            error = refusals.error(error.retry_after_s or 0.0, self.timers.time())
        self.metrics.refused(request.model, error.code)
        return error

    def finished(self, exchange: RequestExchange) -> None:
        if exchange.state is ExchangeState.DONE and not exchange.open_attempts:
            self._exchanges.discard(exchange)
            if self._idle is not None and not self._exchanges:
                self._idle.set()
                self._idle = None

    def _engine_lost(self, deployment: Deployment) -> None:
        streams = deployment.session.endpoint.streams.values()
        handlers = [stream.handler for stream in streams if isinstance(stream.handler, Attempt)]
        for attempt in handlers:
            if attempt.deployment is deployment:
                attempt.on_engine_lost()

    def _unread_figures(self) -> UnreadFigures:
        return UnreadFigures(self.unread.used_bytes, self.unread.spilled_bytes, self.slow_readers.held_up)
