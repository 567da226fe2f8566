"""Preempts running requests of lower tiers for realtime requests, and requests of jobs for all others.

:mod:`gateway.scheduling.preempt` decides which requests are preempted for realtime ones,
:mod:`gateway.scheduling.interactive_reserve` how many slots jobs leave free. This module collects what these
decisions need, and carries them out. A slot is free only when the agent has confirmed that the engine
stopped; until then it counts as becoming free, and no second request is preempted for the same realtime
request.
"""

from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.exchange import RequestExchange
from gateway.dispatch.settings import DispatchSettings
from gateway.domain.request import Tier
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.base import PREFILL_WORK, PendingRequest
from gateway.scheduling.health.failover import Effect, may_be_repeated
from gateway.scheduling.interactive_reserve import InteractiveReserve
from gateway.scheduling.preempt import PreemptibleRequest, PreemptRules, choose_preempted
from gateway.scheduling.queue.tickets import Ticket
from gateway.scheduling.queue.waiting_room import WaitingRoom

_REALTIME, _HARMLESS = Tier.REALTIME, Effect.HARMLESS
"""Members of enumerations for the path of every request: a global is found faster."""

MOST_AT_ONCE = 16
"""Realtime requests for which others are preempted in one round."""

LOOKED_AT = 128
"""How many running requests of each tier and model are considered: the latest, because they lose least."""

ROUNDS = 4
"""How many times another request is chosen in one round when the chosen one cannot be interrupted safely."""

LOOK_AGAIN_S = 1.0
"""Interval at which the wait of realtime requests is checked while others run."""

PACE_WEIGHT = 0.05
"""Weight of the latest request in the mean time a unit of work takes."""

PACES = 4096
"""Models whose pace is remembered."""

PACE_GUESS_S = 0.02
"""Seconds that a unit of work (an output token) is assumed to take before it has been measured."""

VAIN = 4
"""How many requests of a tenant may be cancelled within ``VAIN_S`` after others were preempted for them. From
then on none is preempted for this tenant until the first of them is ``VAIN_S`` ago: preemption throws work
away."""

VAIN_S = 60.0

TENANTS = 4096
"""Tenants for which this is remembered; the oldest is forgotten first."""

_LOWER = (Tier.BATCH, Tier.STANDARD)

_Attempts = dict[tuple[str, Tier], dict[Attempt, RequestExchange]]
"""Attempts and their requests, by model and tier."""


class Preemption:
    """Belongs to the event loop's thread."""

    def __init__(self, settings: DispatchSettings, index: ModelIndex, room: WaitingRoom) -> None:
        self._index = index
        self._room = room
        self._rules = PreemptRules(
            settings.preempt_batch,
            settings.preempt_standard,
            settings.preempt_after_s,
            settings.reserved_share,
        )
        self._most = settings.max_preemptions
        self._running: _Attempts = {}
        """Those that could give way, as far as is known, the latest last."""
        self._freeing: _Attempts = {}
        """Those that gave way and still hold their slots, or whose answers are being read for whether they
        can."""
        self.mark: Callable[[str], None] = lambda model: None
        """Has a model looked at once this turn of the loop is over."""
        self._realtime = Tally[str]()
        """Slots that realtime requests hold, by model."""
        self._reserve = InteractiveReserve()
        self._jobs = Tally[str]()
        """Slots that requests of jobs hold, by model."""
        self._asked_s: dict[Attempt, float] = {}
        """When requests of jobs were preempted that still hold their slots."""
        self._paces: dict[str, float] = {}
        self._gave_way_for: set[int] = set()
        """Ticket numbers of waiting requests for which others were preempted."""
        self._vain: dict[str, deque[float]] = {}
        """When the latest such requests were cancelled without a slot, by tenant."""

    # --- What runs ---

    def taken(self, exchange: RequestExchange, attempt: Attempt) -> None:
        """A request got a slot."""
        request, model = exchange.request, exchange.request.model
        if request.tier is _REALTIME:
            self._gave_way_for.discard(exchange.ticket.number)
            self._realtime[model] += 1
        elif self.gives_way_again(exchange) and may_be_repeated(request, _HARMLESS):
            self._running.setdefault((model, request.tier), {})[attempt] = exchange
        if request.gives_way:
            self._jobs[model] += 1
            self._reserve.began(model, self._staying(model), attempt.opened_s)
        else:
            self._reserve.came(model, attempt.opened_s)
            if model in self._jobs:
                self.mark(model)

    def released(self, attempt: Attempt, now: float) -> None:
        """Its slot is free."""
        request, model = attempt.request, attempt.request.model
        if request.gives_way:
            self._jobs[model] -= 1
            if not self._jobs[model]:
                del self._jobs[model]
            asked_s = self._asked_s.pop(attempt, None)
            if asked_s is not None:
                self._reserve.freed(now - asked_s)
        else:
            self._reserve.left(model, now - attempt.opened_s)
        if request.tier is _REALTIME:
            self._realtime[model] -= 1
            if not self._realtime[model]:
                del self._realtime[model]
        else:
            _drop(self._running, attempt)
            if self._freeing:
                _drop(self._freeing, attempt)

    def left(self, ticket: Ticket, now: float) -> None:
        """It waits no more, and got no slot."""
        if ticket.number not in self._gave_way_for:
            return
        self._gave_way_for.discard(ticket.number)
        if now >= ticket.expires_s:
            return  # others took the slots: that is not its doing
        if ticket.tenant not in self._vain and len(self._vain) >= TENANTS:
            del self._vain[next(iter(self._vain))]
        self._vain.setdefault(ticket.tenant, deque(maxlen=VAIN)).append(now)

    def succeeded(self, attempt: Attempt, total_s: float) -> None:
        """An answer came whole: what a unit of work takes."""
        model, work = attempt.request.model, attempt.work
        pace = total_s / (work if work > 1.0 else 1.0)
        paces, before = self._paces, self._paces.get(model)
        if before is not None:
            paces[model] = before + PACE_WEIGHT * (pace - before)
            return
        if len(paces) >= PACES:
            paces.clear()
        paces[model] = pace

    # --- Giving way ---

    def yielding(self, model: str, slots: int) -> int:
        """How many of ``slots`` of ``model`` would be given back if realtime requests waited."""
        batch, standard = (len(self._running.get((model, tier), ())) for tier in _LOWER)
        by_rule = batch * self._rules.preempt_batch + standard * self._rules.preempt_standard
        borrowed = self._rules.reserved(slots) - self._realtime[model]
        return max(by_rule, min(borrowed, batch + standard))

    def give_back(self, deployment: Deployment, count: int, now: float) -> None:
        """The agent wants slots back that requests of other gateway processes should have: the batch requests
        which began last there give way, as far as there are any (PROTOCOL §4.7)."""
        if not self._rules.preempt_batch:
            return
        lane = deployment.model, Tier.BATCH
        count -= sum(each.deployment is deployment for each in self._freeing.get(lane, ()))
        running = [each for each in self._running.get(lane, ()) if each.deployment is deployment]
        for attempt in reversed(running):
            if count > 0 and not attempt.given_up and self._preempt(attempt, now):
                count -= 1

    def keep_room(self, model: str, now: float) -> None:
        """Have requests of jobs give way until as many slots are free, or coming free, as others need that
        wait for ``model`` or will come soon."""
        if model not in self._jobs or not self._rules.preempt_batch:
            return
        record = self._index.models.get(model)
        if record is None:  # forgotten, though some have not been let go yet
            return
        running = self._running.get((model, Tier.BATCH), {})
        wanted = self._reserve.kept(model, record.slots, now) + self._room.ahead_of_batch(model)
        lacking = wanted - record.free_slots - self._giving_way(model)
        if lacking <= 0:
            return
        latest = islice(reversed(running), lacking + LOOKED_AT)
        for attempt in [each for each in latest if each.request.gives_way and not each.given_up]:
            if lacking > 0 and self._preempt(attempt, now):
                lacking -= 1

    def room_for_jobs(self, model: str, now: float) -> int:
        """How many requests of jobs may begin for ``model``."""
        record = self._index.models.get(model)
        if record is None:
            return 0
        running = sum(each.in_flight for each in record.serving.values()) - self._jobs.get(model, 0)
        kept = self._reserve.kept_from_new(model, record.slots, max(0, running), now)
        room = max(0, record.free_slots - kept - self._room.ahead_of_batch(model))
        if not (room and kept):
            return room
        return min(room, self._reserve.more_jobs(model, self._staying(model), record.slots, now))

    def room_for_lasting(self, model: str, now: float) -> int:
        """How many of them may be such as could not give way again."""
        record = self._index.models.get(model)
        if record is None:
            return 0
        running = self._running.get((model, Tier.BATCH), {})
        lasting = self._staying(model) - sum(each.request.gives_way for each in running)
        return max(0, record.slots - self._reserve.kept_from_lasting(model, record.slots, now) - lasting)

    def gives_way_again(self, exchange: RequestExchange) -> bool:
        """Whether it may be asked to once it runs. A job whose answer is gone on with where it was loses
        little."""
        request = exchange.request
        return request.preempted < self._most or (request.gives_way and exchange.answering)

    def _giving_way(self, model: str) -> int:
        """Requests of jobs that gave way and still hold their slots, or whose answers are being read."""
        return sum(each.request.gives_way for each in self._freeing.get((model, Tier.BATCH), ()))

    def _staying(self, model: str) -> int:
        """Requests of jobs that run and do not give way now."""
        return self._jobs.get(model, 0) - self._giving_way(model)

    def make_room(self, model: str, now: float) -> bool:
        """Have others give way to the realtime requests that are next for ``model`` and fit no free slot.
        True when there are any: to be asked again after ``LOOK_AGAIN_S``."""
        lower = any((model, tier) in self._running for tier in _LOWER)
        if not lower or not self._room.realtime_waits(model):
            return False
        waiting = self._next_in_vain(model, now)
        if waiting:
            route, where = waiting[0].route, waiting[0].where
            there = self._index.capacity(model, route, 1, where)
            rate = self._room.departures_per_s(model, there, now)
            whole = there if where is None else self._index.capacity(model, route, 1)
            self._have_given_way(model, waiting, whole.slots, rate, now)
        return bool(waiting)

    def _next_in_vain(self, model: str, now: float) -> list[PendingRequest]:
        """The realtime requests that are next and fit no free slot."""
        waiting: list[PendingRequest] = []
        limits = dict.fromkeys(self._room.lanes(model), MOST_AT_ONCE)
        for ticket in self._room.next_tickets(model, limits, now):
            if ticket.request.tier is not Tier.REALTIME:
                break
            if not self._index.has_free(model, ticket.lane) and not self._wastes(ticket.tenant, now):
                waiting.append(ticket.as_pending(ticket.lane.avoid))
        return waiting

    def _wastes(self, tenant: str, now: float) -> bool:
        """Whether too many of the tenant's requests were cancelled lately after others were preempted for
        them."""
        times = self._vain.get(tenant)
        return times is not None and len(times) == VAIN and now - times[0] < VAIN_S

    def _have_given_way(
        self, model: str, waiting: Sequence[PendingRequest], slots: int, departures_per_s: float, now: float
    ) -> None:
        for _ in range(ROUNDS):
            latest = [
                each
                for tier in _LOWER
                for each in islice(reversed(self._running.get((model, tier), {}).items()), LOOKED_AT)
            ]
            running = {
                exchange.ticket.number: (attempt, self._as_running(exchange, attempt, now))
                for attempt, exchange in latest
                if not attempt.given_up
            }
            freeing = [each for tier in _LOWER for each in self._freeing.get((model, tier), ())]
            freeing += [each for each, _ in latest if each.given_up]
            served = _without(waiting, freeing)
            numbers = choose_preempted(
                served,
                [each for _, each in running.values()],
                rules=self._rules,
                borrowed=self._rules.reserved(slots) - self._realtime[model] - len(freeing),
                departures_per_s=departures_per_s,
                now=now,
            )
            # Each for one who waits, in their order; who of several was passed over does not matter here.
            self._gave_way_for.update(item.number for item, _ in zip(served, numbers, strict=False))
            if all(self._preempt(running[number][0], now) for number in numbers):
                return

    def _as_running(self, exchange: RequestExchange, attempt: Attempt, now: float) -> PreemptibleRequest:
        request, pace = exchange.request, self._paces.get(exchange.request.model, PACE_GUESS_S)
        ran_s = now - attempt.opened_s
        lost_s = ran_s
        if exchange.answering:
            lost_s = min(ran_s, pace * PREFILL_WORK * (request.input_tokens + attempt.pieces))
        # One that is late is taken to need as long again as it is late.
        remaining_s = abs(attempt.work * pace - ran_s)
        return PreemptibleRequest(
            exchange.ticket.number, attempt.deployment, request.tier, remaining_s, lost_s
        )

    def _preempt(self, attempt: Attempt, now: float) -> bool:
        exchange = _drop(self._running, attempt)  # what cannot give way soundly now is not asked again
        if exchange is None:
            return False
        request = attempt.request
        self._freeing.setdefault((request.model, request.tier), {})[attempt] = exchange
        if exchange.reads_first(attempt, lambda: self._ask_again(attempt)):
            return True
        given_back = exchange.preempt(attempt, now)
        if not given_back:
            _drop(self._freeing, attempt)
        elif request.gives_way:
            self._asked_s[attempt] = now
            self._reserve.gave_way(request.model, self._staying(request.model), now)
        return given_back

    def _ask_again(self, attempt: Attempt) -> None:
        """The answer of ``attempt`` has been read, so that it is known now whether it can be preempted."""
        exchange = _drop(self._freeing, attempt)
        if exchange is not None:
            request = attempt.request
            self._running.setdefault((request.model, request.tier), {})[attempt] = exchange
            self.mark(request.model)


def _drop(attempts: _Attempts, attempt: Attempt) -> RequestExchange | None:
    request = attempt.request
    lane = request.model, request.tier
    alike = attempts.get(lane)
    if alike is None:
        return None
    exchange = alike.pop(attempt, None)
    if not alike:
        del attempts[lane]
    return exchange


def _without(waiting: Sequence[PendingRequest], freeing: Iterable[Attempt]) -> list[PendingRequest]:
    """Those for whom no slot is coming free."""
    left = list(waiting)
    for attempt in freeing:
        view = attempt.deployment
        if view.session.suspended:
            continue
        for item in left:
            if view.may_take(item):
                left.remove(item)
                break
    return left
