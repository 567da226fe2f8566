"""Carries out what the scheduler decided: requests wait, are bound late, go out as streams and come back.

Who waits is bound by :mod:`gateway.dispatch.assignment`. Everything belongs to the event loop's thread.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from weakref import WeakSet

from gateway.cluster.ownership import Ownership, SoleOwner
from gateway.cluster.placement_demands import PlacementDemands
from gateway.dispatch.arrival_gatherer import ArrivalGatherer
from gateway.dispatch.assignment import Assigner
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.begun_answer import run_begun
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.exchange import ExchangeState, MakeExchange, RequestExchange, Settle
from gateway.dispatch.placement import PlacementCluster, PlacementSettings, Placer
from gateway.dispatch.preemption import Preemption
from gateway.dispatch.response import EngineResponse
from gateway.dispatch.settings import DispatchSettings
from gateway.domain.engine_paths import EnginePaths
from gateway.domain.errors import NoDeployment, NoSlotFree, QueueFull, RequestError, ShuttingDown
from gateway.domain.request import Request
from gateway.domain.timers import Timers
from gateway.fleet.deployment import Deployment, DeploymentOwner
from gateway.fleet.registry import Registry
from gateway.fleet.session import AgentSession
from gateway.observability.gauges import UnreadFigures
from gateway.observability.metrics import Metrics
from gateway.scheduling.queue.tickets import Ticket
from gateway.scheduling.queue.waiting_room import QueueSettings
from shared.protocol.errors import ErrorCode, ProtocolError
from shared.protocol.messages import Usage
from shared.protocol.others import Others
from shared.protocol.peers import DEMAND, EPOCHS, GPU_SECONDS, OTHERS, PEERS, UPLINK
from shared.protocol.routes import ANY_ROUTE

__all__ = ["DispatchSettings", "Dispatcher", "EngineResponse", "QueueSettings"]

FOR_WANT_OF_ROOM = frozenset((QueueFull.code, NoDeployment.code))
"""Refused with one of these codes, a request counts among what is asked for."""

_AN_ERROR = 400
"""From this status on."""

_SHUTTING_DOWN = "This gateway is shutting down; send the request again."


class Dispatcher(DispatchContext):
    """Takes classified requests, gives engine responses."""

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
        ownership: Ownership | None = None,
        demands: PlacementDemands | None = None,
        at_turn_end: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """``timers`` is the running event loop; ``policy`` a name of ``gateway.scheduling.POLICIES``,
        ``policies`` others by model; without ``placement`` nothing is loaded on demand; ``jitter`` gives
        numbers from 0 to 1; ``ran`` is told a request, a deployment's key and the GPU-seconds that an attempt
        there used, when it is over. ``ownership`` says whether this process is the one of several that has
        models loaded, and ``demands`` what waits at the others; None: there is one. ``at_turn_end`` is
        :meth:`gateway.domain.turn_end.TurnEnd.call`; without it ``timers`` are asked, and :meth:`run` submits
        at once. Raises ValueError for a policy there is none of.
        """
        queue, settings = queue or QueueSettings(), settings or DispatchSettings()
        super().__init__(registry, metrics, timers, queue, settings, policy, policies, jitter, at_turn_end)
        registry.others = self.others
        self._accepting, self._gatherer = True, ArrivalGatherer(self.submit, at_turn_end)
        self._gives_back = False
        """Slots are given back that agents want for other processes."""
        self.exchanges: dict[int, RequestExchange] = {}
        """All requests that wait, run, or whose streams are not closed, by their ticket's number."""
        self._idle: asyncio.Event | None = None
        """Set when the last exchange is finished."""
        self._ran = ran
        self._preemption = Preemption(self.settings, self.index, self.room)
        self.admission.yielding = self._preemption.yielding
        self._assigner = Assigner(self, self.exchanges, self._preemption)
        self._preemption.mark = self._assigner.mark
        self._ownership = ownership or SoleOwner()
        self._knows_epochs: WeakSet[DeploymentOwner] = WeakSet()
        """Sessions whose agents refuse commands of former owners."""
        self._placer: Placer | None = None
        if placement is not None:
            self._placer = self._assigner.placer = self.admission.loads = Placer(
                registry,
                self.room,
                metrics,
                timers,
                placement,
                load_s=self.scheduling.load_s,
                loaded=self.scheduling.scheduler.loaded,
                refuse=self._assigner.refuse,
                cluster=PlacementCluster(self._ownership, demands, self._epoch),
            )
        self.index.watch_losses(self._engine_lost)
        metrics.gauges.queue_depths = self.room.depths
        metrics.gauges.predictions = self.scheduling.predictions
        metrics.gauges.unread = self._unread_figures

    # --- For the request path ---

    async def run(self, request: Request, make: MakeExchange | None = None) -> EngineResponse:
        """Wait for a slot, open a stream, upload the body beside; return when the response's head is there.
        What comes in one turn of the event loop is submitted together at its end.

        Raises :mod:`gateway.domain.errors` such as ModelNotFound, NoDeployment, QueueFull and EngineError,
        NotContinuable for a begun answer that cannot go on, and whatever ``request.body.rest`` raises.
        Cancelling the awaiting task releases everything: the place in the queue, the stream, the upload.
        """
        if request.begun is not None and make is None:
            return await run_begun(self, request, request.begun, self.run)
        arrival = self._gatherer.take(request, make)
        try:
            return await arrival.answer
        except asyncio.CancelledError:
            arrival.cancel()
            raise

    def submit(self, request: Request, settle: Settle, make: MakeExchange | None = None) -> RequestExchange:
        """:meth:`run` without awaiting: ``settle`` is called once, later, with the response or the error.

        Raises what admission raises, and ShuttingDown.
        """
        now, tenant = self.timers.time(), request.principal.tenant
        try:
            if not self._accepting:
                raise ShuttingDown(_SHUTTING_DOWN)
            self.scheduling.estimate(request)
            if request.route == ANY_ROUTE:
                self.sessions.bind(request, now)
            if self._placer is not None:
                self._placer.arrived(request, now)
            ticket = self.admission.admit(request, now)
        except RequestError as error:
            self.metrics.refused(request.model, error.code)
            if error.code in FOR_WANT_OF_ROOM:
                self.arrivals.note(request, now)
            raise
        self.arrivals.note(request, now)
        self._budgets.came(tenant, now)
        make = make or RequestExchange
        exchange = self.exchanges[ticket.number] = make(ticket, self, settle)
        if not request.at_once:
            self._assigner.mark(request.model)
        return exchange

    def submit_at_once(
        self,
        request: Request,
        settle: Settle,
        suits: Callable[[Deployment], bool],
    ) -> RequestExchange:
        """:meth:`submit` for a request that goes to one of the deployments that ``suits`` allows, now or not
        at all. ``settle`` may be called before this returns.

        Raises NoSlotFree as well: no slot is free there, or clients of this gateway wait for the model. Those
        that came in this turn of the event loop are served first.
        """
        request.at_once = True
        self._gatherer.submit_all()
        self._assigner.look_now(request.model)
        if self.room.depth(request.model):
            raise NoSlotFree("Other requests wait for a slot.")
        exchange = self.submit(request, settle)
        if not self._assigner.place(exchange, suits):
            exchange.cancel()
            raise NoSlotFree("No slot is free.")
        return exchange

    @property
    def loads(self) -> Placer | None:
        """Has models loaded on demand; None: nobody does."""
        return self._placer

    def bounds(self, request: Request) -> tuple[int, int]:
        """Tokens of its prompt and, at most, of its answer
        (:meth:`gateway.dispatch.scheduler_adapter.SchedulerAdapter.bounds`).
        """
        return self.scheduling.bounds(request)

    # --- For whoever starts and stops the gateway ---

    @property
    def open_exchanges(self) -> int:
        """Requests waiting, running or not yet confirmed as let go by their agent. Zero when all is quiet."""
        return len(self.exchanges)

    def stop_accepting(self) -> None:
        """From now on :meth:`run` raises ShuttingDown; what waits or runs goes on."""
        self._accepting = False

    def set_engine_paths(self, paths: EnginePaths) -> None:
        """Who may manage engines by their own paths from now on."""
        self.admission.engine_paths = paths

    def retune(self, policy: str, policies: Mapping[str, str], weights: Mapping[str, float]) -> None:
        """Policies and tenants' weights from now on, for what waits too. Raises ValueError for a policy there
        is none of; nothing has changed then."""
        self.scheduling.scheduler.choose_policies(policy, policies)
        self.share_out(weights)

    def share_out(self, weights: Mapping[str, float], shares: Mapping[str, float] | None = None) -> None:
        """Tenants' weights from now on, for what waits too, and, unless None, the shares of places in which
        requests wait that tenants may take at most."""
        self.room.reweigh(weights)
        if shares is not None:
            self.room.shares.set(shares)
        for model in self.room.depths():
            self._assigner.mark(model)

    async def wait_idle(self) -> None:
        """Returns once no exchange is open. Put a timeout around it."""
        while self.exchanges:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def close(self) -> None:
        """Fail what waits (ShuttingDown), reset what runs (StreamBroken for its reader), end every upload."""
        self._accepting = False
        for exchange in list(self.exchanges.values()):
            if exchange.state is ExchangeState.ANSWERING:
                exchange.break_off(ErrorCode.DRAINING, "This gateway is shutting down.")
            elif exchange.state is not ExchangeState.DONE:
                exchange.fail(ShuttingDown(_SHUTTING_DOWN), ErrorCode.DRAINING)
        self.health.close()
        if self._placer is not None:
            self._placer.close()
        self._assigner.close()
        self.sliced_parser.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.unread.close()

    # --- For the exchanges: see DispatchContext ---

    def taken(self, ticket: Ticket, attempt: Attempt) -> None:
        request, deployment, opened_s = ticket.request, attempt.deployment, attempt.opened_s
        self.decisions.taken(ticket, attempt)
        if ticket.waiting:  # a second copy takes a slot too, without having waited for it
            self.room.leave(ticket, opened_s, departed=True)
            self.metrics.queued(request.model, request.tier, opened_s - ticket.entered_s)
        if request.session_pin is not None:
            self.sessions.placed(request, deployment)
        self.index.take(deployment, attempt.work)
        if self.demand.tells:
            self.demand.opened(deployment.session, request.model)
        attempt.gpu_began_s = deployment.gpu_clock.start(opened_s)
        self.scheduling.taken(ticket.seen or ticket.as_pending(), attempt)
        self._preemption.taken(self.exchanges[ticket.number], attempt)
        if not deployment.settled:
            self.health.taken(deployment, request)

    def released(self, attempt: Attempt) -> None:
        request, deployment = attempt.request, attempt.deployment
        now = self.timers.time()
        self.scheduling.released(attempt, now)
        held_s = now - attempt.opened_s
        self._preemption.released(attempt, now)
        if not deployment.settled:
            self.health.released(deployment, request)
        self.index.give_back(deployment, attempt.work, None if attempt.refused else held_s)
        gpu_s, gpu_began_s = 0.0, attempt.gpu_began_s
        if gpu_began_s is not None:
            gpu_s = deployment.gpu_clock.end(gpu_began_s, now)
            attempt.gpu_began_s = None
        if deployment.asked_as and attempt.gpu_s is not None:
            # Behind a gateway are several engines: what runs beside it here may run elsewhere there.
            gpu_s = min(attempt.gpu_s, held_s)
        elif deployment.session.tells_gpu_s:
            gpu_s = deployment.gpu_share.used_s(gpu_s, attempt.gpu_s)
        request.gpu_s += gpu_s
        self.decisions.released(attempt, now, gpu_s)
        if self._ran is not None:
            self._ran(request, deployment.key, gpu_s)

    def began(self, attempt: Attempt) -> None:
        if self.scheduling.began(attempt, self.timers.time()):
            self._assigner.changed(attempt.request.model)

    def succeeded(
        self, attempt: Attempt, first_byte_s: float, total_s: float, now: float, usage: Usage | None
    ) -> None:
        request, deployment, response = attempt.request, attempt.deployment, attempt.response
        self.health.succeeded(deployment, request, first_byte_s, total_s, attempt.received_bytes, now)
        if response is not None and response.status >= _AN_ERROR:
            return  # how soon an engine refuses a request says nothing of how long answers take
        if not request.continuing:
            self.scheduling.succeeded(attempt, total_s, usage)
        self._preemption.succeeded(attempt, total_s)
        if not request.streaming:
            self._answer_times.note(request.model, request.route, total_s)

    def wait_again(self, ticket: Ticket, *, preempted: bool = False, refused: bool = False) -> None:
        now, request = self.timers.time(), ticket.request
        if refused:
            expires_s = ticket.expires_s
        elif preempted:
            expires_s = now + self.settings.total_s if request.deadline_s is None else request.deadline_s
        else:
            expires_s = self.admission.expiry(request, now)
        # Nothing speaks against where it ran that gave way, or against an engine that has enough to do.
        avoid = () if preempted or refused else request.deployments_to_avoid(now)
        if avoid and self.demand and (crossed := self.crossed(request)) in avoid:
            avoid = [key for key in avoid if key != crossed]
        self.room.requeue(ticket, avoid, now, expires_s=expires_s, refused=refused)
        if request.at_once:
            self.timers.call_soon(partial(self._place_again, ticket))
        else:
            self._assigner.mark(request.model)

    def _place_again(self, ticket: Ticket) -> None:
        exchange = self.exchanges.get(ticket.number)
        if exchange is not None and ticket.waiting and not self._assigner.place(exchange):
            exchange.fail(NoSlotFree("No other deployment has a slot free."))

    def withdraw(self, ticket: Ticket) -> None:
        now = self.timers.time()
        self.room.leave(ticket, now, departed=False)
        self._preemption.left(ticket, now)
        self.decisions.left(ticket, now)
        self.demand.look(ticket.request.model)

    def agreed(self, session: AgentSession, capabilities: Sequence[str]) -> None:
        """An agent's tunnel is up, and this is agreed on with it (PROTOCOL §8.5)."""
        if EPOCHS in capabilities:
            self._knows_epochs.add(session)
        session.is_gateway = UPLINK in capabilities
        session.tells_gpu_s = session.is_gateway or GPU_SECONDS in capabilities
        if OTHERS in capabilities:
            session.tells_others = True
            session.endpoint.session.control_frames.allow_others()
        if DEMAND not in capabilities:
            return
        if PEERS in capabilities and not self._gives_back:  # else nobody else is to have the slots
            self._gives_back = True
            self.index.subscribe(self._look_for_excess)
        self.demand.add(session)

    def others(self, session: AgentSession, others: Others) -> None:
        """An agent has said what it runs for other processes (PROTOCOL §4.11)."""
        try:
            changed = self.scheduling.others(session, others)
        except ProtocolError as error:
            session.close(error.code, str(error))
        else:
            for model in changed:
                self._assigner.changed(model)

    def _epoch(self, session: DeploymentOwner) -> int | None:
        """The latest that this process had, for a command to that agent."""
        return self._ownership.epoch if session in self._knows_epochs else None

    def _look_for_excess(self, model: str) -> None:
        """What serves ``model`` has changed: a level below what runs asks for slots back."""
        record = self.index.models.get(model)
        for deployment in () if record is None else record.serving.values():
            if deployment.in_flight > deployment.slots and deployment.session in self.demand:
                self.timers.call_soon(partial(self._give_back, deployment))

    def _give_back(self, deployment: Deployment) -> None:
        excess = deployment.in_flight - deployment.slots
        if excess > 0 and self._accepting:
            self._preemption.give_back(deployment, excess, self.timers.time())

    def finished(self, ticket: Ticket) -> None:
        self.exchanges.pop(ticket.number, None)
        if self._idle is not None and not self.exchanges:
            self._idle.set()
            self._idle = None

    # --- Within ---

    def _engine_lost(self, deployment: Deployment) -> None:
        for stream in list(deployment.session.endpoint.streams.values()):
            attempt = stream.handler
            if isinstance(attempt, Attempt) and attempt.deployment is deployment:
                attempt.on_engine_lost()

    def _unread_figures(self) -> UnreadFigures:
        return UnreadFigures(self.unread.used_bytes, self.unread.spilled_bytes, self.slow_readers.held_up)
