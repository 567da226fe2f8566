"""Binds requests that wait to deployments, late: when a slot is free, and to the one the policy chooses.

Decide, then act: whatever happens in a turn of the event loop only marks models as worth a look; once the
turn is over the policy is asked about each, and its assignments are carried out. Belongs to the event
loop's thread.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import structlog
from msgspec import structs

from gateway.dispatch.admission import no_deployment, not_in_version
from gateway.dispatch.context import DispatchContext
from gateway.dispatch.exchange import RequestExchange
from gateway.dispatch.placement import Placer
from gateway.dispatch.preemption import LOOK_AGAIN_S, Preemption
from gateway.domain.errors import EngineError, NoDeployment, RequestError
from gateway.domain.request import Request
from gateway.fleet.availability import Availability
from gateway.fleet.deployment import Deployment
from gateway.scheduling.base import Assignment, DeploymentConstraints, PendingRequest
from gateway.scheduling.policies.late_binding import offered_at_once
from gateway.scheduling.queue.tickets import Ticket
from shared.process.timers import Cancellable
from shared.protocol.errors import SessionClosed, TooManyStreams
from shared.protocol.messages import DeploymentStatus

_log = structlog.get_logger(__name__)

SHUN_S = 10.0
"""So long a request waits for a deployment whose tunnel or health may come back, rather than go once more to
one that failed on it."""


JOBS_LOOK_S = 0.5
"""Interval at which jobs that wait beside free slots are looked at: fewer may be kept free for others."""


class Assigner:
    """One for a dispatcher."""

    def __init__(
        self, context: DispatchContext, exchanges: Mapping[int, RequestExchange], preemption: Preemption
    ) -> None:
        """``exchanges`` are all there are, by ticket's number."""
        self.placer: Placer | None = None
        """Told who waits, where models are loaded on demand."""
        self._context = context
        self._exchanges = exchanges
        self._index = context.index
        self._room = context.room
        self._admission = context.admission
        self._preemption = preemption
        self._timers = context.timers
        self._marked: dict[str, None] = {}
        self._turn = False
        """Marked models are looked at when this turn of the loop is over."""
        self._grace: dict[str, Cancellable] = {}
        self._looks: dict[str, tuple[float, Cancellable]] = {}
        """When models are looked at again though nothing has happened."""
        self._index.subscribe(self.changed, slots=True)
        context.look_at = self.mark

    @property
    def timers_set(self) -> int:
        """Looks that are to come by themselves."""
        return len(self._grace) + len(self._looks)

    def mark(self, model: str) -> None:
        """Look at ``model`` once this turn of the loop is over."""
        self._marked[model] = None
        if not self._turn:
            self._turn = True
            self._context.at_turn_end(self._take_turn)

    def look_now(self, model: str) -> None:
        """Look at ``model`` now if it is to be looked at when this turn of the loop is over."""
        if model in self._marked:
            del self._marked[model]
            self._assign(model)

    def changed(self, model: str) -> None:
        """Something of what serves ``model`` is another than it was: who waits for it may go now."""
        if self._room.requests and self._room.depth(model):
            self.mark(model)

    def close(self) -> None:
        """Assign no more requests."""
        looks = (timer for _, timer in self._looks.values())
        for timer in (*self._grace.values(), *looks):
            timer.cancel()
        self._grace.clear()
        self._looks.clear()
        self._marked.clear()
        if self._context.regions is not None:
            self._context.regions.close()

    def refuse(self, model: str, fits: Collection[DeploymentConstraints], error: NoDeployment) -> None:
        """Those of these fits that wait for ``model``, whatever they avoid, wait in vain."""
        waiting = self._waiting(model)
        vain = [each for each in waiting if structs.replace(each.ticket.lane, avoid=frozenset()) in fits]
        self._send_away(vain, lambda _: error)

    def place(self, exchange: RequestExchange, suits: Callable[[Deployment], bool] | None = None) -> bool:
        """Give a request that waits to a deployment that ``suits`` allows and that has a slot free, whoever
        waits besides. False: there is none."""
        ticket, now = exchange.ticket, self._timers.time()
        lane, model = ticket.lane, exchange.request.model
        open_now = {
            key: each
            for key, each in self._index.open(model).items()
            if key not in lane.avoid and each.free and each.suits(lane) and (suits is None or suits(each))
        }
        if not open_now:
            return False
        scheduler, deployments = self._context.scheduling.scheduler, list(open_now.values())
        chosen = scheduler.assign(model, [ticket.as_pending(lane.avoid)], deployments, now)
        if not chosen:  # the policy would rather wait
            chosen = [Assignment(ticket.number, min(deployments, key=lambda each: each.outstanding).key)]
        self._carry_out(chosen[0], open_now.get(chosen[0].key), now)
        return not ticket.waiting

    # --- Within ---

    def _waiting(self, model: str) -> list[RequestExchange]:
        exchanges = self._exchanges.values()
        return [each for each in exchanges if each.ticket.waiting and each.request.model == model]

    def _take_turn(self) -> None:
        self._turn = False
        marked, self._marked = self._marked, {}
        failed: Exception | None = None
        for model in marked:
            try:
                self._assign(model)
            except Exception as error:  # the others wait for none of it
                failed = failed or error
        if failed is not None:
            raise failed

    def _assign(self, model: str) -> None:
        room, now = self._room, self._timers.time()
        newcomers = room.newcomers(model)
        depth = waiting = len(newcomers) or room.depth(model)
        if newcomers and self._may_go(model, newcomers):
            waiting = self._assign_newcomers(model, newcomers, now)
        if waiting and not self._context.scheduling.scheduler.is_resting(model, now):
            front = 1 if waiting == 1 else offered_at_once(waiting)
            if self._assign_front(model, front, now) and front < waiting:
                self._assign_front(model, waiting, now)
        depth = room.depth(model) if depth and room.requests else 0
        placed_all = model in self._marked and not room.ahead_of_batch(model)
        if not placed_all:  # else what they send leaves first, and the model is looked at again
            self._preemption.keep_room(model, now)
        waits = self._context.decisions.waits
        if depth:
            waits.note(model, self._why_waiting(model), now)
            placer = self.placer
            self._room.still_waiting(model, now, slots=self._index.slots(model) > 0)
            if placer is not None:
                placer.waiting(model)
            self._watch_for_loss(model)
            if self._preemption.make_room(model, now):
                self._look_again(model, now + LOOK_AGAIN_S)
            self._end_slow_readers(model, now)
        elif model in waits.notes:
            waits.clear(model, now)
        self._context.demand.look(model)

    def _why_waiting(self, model: str) -> str:
        """Why some wait whom nobody could be found for just now: a code of
        :data:`gateway.dispatch.decisions.words.WAITS`."""
        if not self._index.slots(model):
            record = self._index.models.get(model)
            found = () if record is None else record.serving_or_loadable
            coming = any(each.loadable or each.status is DeploymentStatus.LOADING for each in found)
            return "loading" if coming else "no_deployment"
        if not self._index.open(model):
            return "no_slot"
        held = self._context.scheduling.scheduler.look_again_s(model) is not None
        return "held" if held else "no_suitable_slot"

    def _end_slow_readers(self, model: str, now: float) -> None:
        """Those who wait get the slots of answers whose engines wait for their readers, if these are slow."""
        lanes = self._room.lanes(model)

        def suits(view: Deployment) -> bool:
            return any(view.suits(structs.replace(fit, agent=None)) for fit in lanes)

        again_s = self._context.slow_readers.make_room(model, self._room.depth(model), suits, now)
        if again_s is not None:
            self._look_again(model, again_s)

    def _may_go(self, model: str, newcomers: list[Ticket]) -> bool:
        """Whether there is a slot for each of them, and nobody but the policy is to be asked about it."""
        if self._context.regions is not None:
            return False
        for ticket in newcomers:
            if ticket.request.gives_way or ticket.lane.avoid:
                return False
        if len(newcomers) == 1:  # as most often
            return self._index.has_free(model, newcomers[0].lane)
        lanes = {ticket.lane for ticket in newcomers}
        return all(self._index.has_free(model, lane, len(newcomers)) for lane in lanes)

    def _assign_newcomers(self, model: str, newcomers: list[Ticket], now: float) -> int:
        """Place those who came when nobody waited for ``model``, one after the other, until there is one whom
        the policy does not place. Returns how many are to be asked about together then, with their turns."""
        index, scheduler = self._index, self._context.scheduling.scheduler
        for placed, ticket in enumerate(newcomers):
            open_now = index.open(model)
            pending = ticket.seen or ticket.as_pending()
            assignments = scheduler.assign(model, [pending], list(open_now.values()), now)
            if not assignments:
                again_s = scheduler.look_again_s(model)
                if again_s is not None:
                    self._look_again(model, again_s)
                left = len(newcomers) - placed
                if left == 1:
                    return 0  # it was asked about just now
                self._room.line_up(model)
                return left
            chosen = assignments[0]
            self._carry_out(chosen, open_now.get(chosen.key), now)
        return 0

    def _assign_front(self, model: str, most: int, now: float) -> bool:
        """Place whom the policy will of the first ``most`` of each lane. Whether nobody of them is held, so
        that those behind may be asked too."""
        open_now = self._index.open(model)
        tickets = self._candidates(model, most, now) if open_now else []
        if not tickets:
            return True
        scheduler = self._context.scheduling.scheduler
        assignments = scheduler.assign(model, tickets, list(open_now.values()), now)
        for assignment in assignments:
            self._carry_out(assignment, open_now.get(assignment.key), now)
        if len(assignments) == len(tickets):
            return True
        again_s = scheduler.look_again_s(model)
        if again_s is not None:
            self._look_again(model, again_s)
        return again_s is None

    def _candidates(self, model: str, most: int, now: float) -> list[PendingRequest]:
        """Those who wait for ``model``, which has slots free, and might be placed now, in order of turns: of
        each lane as many as there are slots, ``most`` of them."""
        room, index, regions = self._room, self._index, self._context.regions
        limits = {fit: index.free(model, fit, most) for fit in room.lanes(model)}
        tickets = self._without_held_jobs(model, room.next_tickets(model, limits, now), now)
        avoiding: dict[int, frozenset[str]] = {}
        for fit in {ticket.lane for ticket in tickets if ticket.lane.avoid}:
            if not index.someone_else(model, fit, patiently=True):
                continue
            at_once = index.someone_else(model, fit)
            front = [each for each in tickets if each.lane == fit]
            shunning = [each for each in front if at_once or now < each.entered_s + SHUN_S]
            avoiding.update((ticket.number, fit.avoid) for ticket in shunning)
            if shunning and not at_once:
                self._look_again(model, min(each.entered_s for each in shunning) + SHUN_S)
        if regions is not None and tickets:
            gated, again_s = regions.gate(model, tickets, now)
            if again_s is not None:
                self._look_again(model, again_s)
            tickets = gated.tickets
            for number, keys in gated.avoid.items():
                avoiding[number] = avoiding.get(number, frozenset()) | keys
        return [ticket.as_pending(avoiding.get(ticket.number, frozenset())) for ticket in tickets]

    def _without_held_jobs(self, model: str, tickets: list[Ticket], now: float) -> list[Ticket]:
        """Of the jobs behind all others as many as leave slots free for those that come."""
        jobs = 0
        while jobs < len(tickets) and tickets[-1 - jobs].request.gives_way:
            jobs += 1
        if not jobs:
            return tickets
        others, preemption = len(tickets) - jobs, self._preemption
        begun = preemption.room_for_jobs(model, now)
        lasting = preemption.room_for_lasting(model, now) if begun else 0
        let: list[Ticket] = []
        for ticket in tickets[others:]:
            exchange = self._exchanges.get(ticket.number)
            lasts = exchange is not None and not preemption.gives_way_again(exchange)
            if len(let) < begun and (lasting > 0 or not lasts):
                let.append(ticket)
                lasting -= lasts
        if len(let) < jobs:
            self._look_again(model, now + JOBS_LOOK_S)
        return tickets[:others] + let

    def _carry_out(self, assignment: Assignment, deployment: Deployment | None, now: float) -> None:
        """``deployment`` is the one assigned, which is open now; None: it is not."""
        exchange, regions = self._exchanges.get(assignment.number), self._context.regions
        if exchange is None or not exchange.ticket.waiting or deployment is None:
            return
        try:
            exchange.begin(deployment, now)
            if regions is not None:
                self._context.note_region(exchange.ticket, deployment)
        except SessionClosed:
            deployment.session.end()
        except TooManyStreams:
            deployment.session.set_full(True)
        except Exception:
            _log.exception("dispatch_failed", deployment=deployment.key)
            exchange.fail(EngineError("The request could not be passed on."))

    # --- Time ---

    def _look_again(self, model: str, at_s: float) -> None:
        look = self._looks.get(model)
        if look is None or look[0] > at_s:
            if look is not None:
                look[1].cancel()
            self._looks[model] = at_s, self._timers.call_at(at_s, lambda: self._look(model))

    def _look(self, model: str) -> None:
        del self._looks[model]
        self.mark(model)

    def _watch_for_loss(self, model: str) -> None:
        """Start the grace period of requests that nothing serves (their model, version or allowed place is
        gone); at its end they are refused."""
        now = self._timers.time()
        at_s = self._admission.wait_ends_at(model, now)
        if at_s is None and any(self._stranded(model, fit) for fit in self._room.lanes(model)):
            at_s = self._admission.wait_ends_there_at(model, now)
        if at_s is not None and model not in self._grace:
            self._grace[model] = self._timers.call_at(at_s, lambda: self._grace_over(model))

    def _grace_over(self, model: str) -> None:
        del self._grace[model]
        now = self._timers.time()
        waiting = self._waiting(model)
        if self._admission.gone_for_good(model, now):
            self._send_away(waiting, no_deployment)
            return
        if now >= self._admission.wait_ends_there_at(model, now):
            stranded = {fit: self._stranded(model, fit) for fit in self._room.lanes(model)}
            for each in waiting:
                because = stranded.get(each.ticket.lane)
                if because is not None and not self._moves(each, now):
                    self._send_away([each], because)
        self.mark(model)

    def _stranded(self, model: str, fit: DeploymentConstraints) -> Callable[[Request], RequestError] | None:
        """What to say to such requests when the model is served, but not where they may run, not by the
        agent they are for, by no engine that has what they need, or not in their version. Answers that have
        begun have a patience of their own."""
        if fit.continuing:
            return None
        availability = self._index.availability(model, fit.route, fit.where, fit.agent)
        if availability in (Availability.ELSEWHERE, Availability.OTHER_ROUTES):
            return self._admission.refusals[availability]
        return not_in_version if self._admission.misses_version(model, fit) else None

    def _send_away(
        self, waiting: Sequence[RequestExchange], because: Callable[[Request], RequestError]
    ) -> None:
        for exchange in waiting:
            error = because(exchange.request)
            self._context.metrics.refused(exchange.request.model, error.code)
            exchange.fail(error)

    def _moves(self, exchange: RequestExchange, now: float) -> bool:
        """Who waits for the agent of its session in vain goes elsewhere, if there is anywhere."""
        ticket, request = exchange.ticket, exchange.request
        if not self._context.sessions.move(request):
            return False
        self._room.leave(ticket, now, departed=False)
        self._room.requeue(ticket, request.deployments_to_avoid(now), now, expires_s=ticket.expires_s)
        return True
