"""The waiting room: one bounded queue per model. Pure data, ``now`` is an argument.

A worked example of the bounds. A model with 8 slots and answers of 4 s drains 2 requests a second. With
``max_wait_s`` 60 the 121st request in line is refused, long before ``max_requests`` 1000, and is told to
come back in half a second: by then one has left the line. The next one refused is told one second, and
so on, so that those who were sent away do not all come back at once.

How fast a queue drains is measured while requests wait, and estimated before that
(:mod:`gateway.scheduling.queue.drain`).
:mod:`gateway.scheduling.queue.order` decides whose turn it is.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.domain.errors import QueueFull
from gateway.domain.request import Request, Tier
from gateway.scheduling.base import DeploymentConstraints, estimated_work
from gateway.scheduling.queue.foreign import WorkKey, by_model
from gateway.scheduling.queue.model_queue import ModelQueue
from gateway.scheduling.queue.shares import QueueShares
from gateway.scheduling.queue.tickets import Backlog, Capacity, Ticket
from shared.protocol.demand import Demand

MAX_RETRY_AFTER_S = 120.0
"""SDKs ignore a longer ``Retry-After``."""

MIN_RETRY_AFTER_S = 0.05
UNKNOWN_RETRY_AFTER_S = 5.0
"""The ``Retry-After`` when none can be computed: there is no slot, and none was seen recently."""

YIELD_S = 1.0
"""A slot that a running request gives back is free within this time."""

SETTLING_S = 2.0
"""So long after nothing had a slot no wait is predicted: agents that connect to one of several gateways
divide their slots anew within a second, by what waits where."""

SHARED_SETTLING_S = 5.0
"""So long after requests began to wait no wait is predicted at one of several gateways that has measured none
yet: agents give it slots as requests of the others end, and how many, it cannot know before."""

EMPTY_QUEUES = 4096
"""Empty queues that are kept for their drain rate."""

_TIERS = (Tier.REALTIME, Tier.STANDARD, Tier.BATCH)
_TIER_RANK = {tier: rank for rank, tier in enumerate(_TIERS)}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Bounds of the waiting room, and its order."""

    max_requests: int = 1000
    """Requests that may wait for one model."""
    max_requests_total: int = 10_000
    """Requests that may wait in all."""
    max_body_bytes: int = 256 * 1024 * 1024
    """Body bytes that all waiting requests together may hold in memory."""
    max_wait_s: float = 60.0
    """A request predicted to wait longer is refused; one that did wait as long gets QueueTimeout."""
    ageing_s: float = 20.0
    """A tier with a request that has waited this long gets slots although higher tiers wait."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    """Tenants' shares beside each other, above 0; those not named have 1."""
    shared_slots: bool = False
    """Agents may lend slots to other gateways, and take them back, by what waits where."""


class WaitingRoom:
    """Every request that waits for a slot."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._takes_any = settings.max_requests > 0 and settings.max_requests_total > 0
        self._weights = dict(settings.tenant_weights)
        self._queues: dict[str, ModelQueue] = {}
        self._numbers = itertools.count(1)
        self.shares = QueueShares()
        self._told = False
        self.requests = 0
        self.body_bytes = 0

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Tenants' shares from now on; those not named have 1."""
        self._weights.clear()
        self._weights.update(weights)
        for queue in self._queues.values():
            queue.line_up().reweigh()

    def tell(self, told: bool) -> None:
        """Whether :meth:`take_given` is called from now on, because there are other gateways."""
        self._told = told
        for queue in self._queues.values():
            queue.turns.record_given(told)

    def take_given(self) -> dict[WorkKey, float]:
        """The work given since this was called last; below 0 for what is taken back."""
        return {
            (model, _TIERS[rank], tenant): work
            for model, queue in self._queues.items()
            for (rank, tenant), work in queue.turns.take_given().items()
        }

    def note_elsewhere(self, given: Mapping[WorkKey, float], now: float) -> None:
        """The work that other gateways gave since this was called last, of models asked for here."""
        for model, told in by_model(given, _TIER_RANK).items():
            if model in self._queues:
                self._queues[model].line_up().note_elsewhere(told, now)

    def would_take(self, request: Request) -> bool:
        """Whether :meth:`enter` refuses ``request`` only for want of a slot: nobody waits in line for its
        model, and no bound is reached."""
        if not self.requests:
            return self._takes_any
        settings, queue = self._settings, self._queues.get(request.model)
        if queue is not None and not len(queue.newcomers) == queue.count < settings.max_requests:
            return False
        size_bytes = self.body_bytes + request.body.held_bytes
        return self.requests < settings.max_requests_total and size_bytes <= settings.max_body_bytes

    def enter(
        self,
        request: Request,
        capacity: Capacity | None,
        now: float,
        hold_s: float = 0.0,
        lane: DeploymentConstraints | None = None,
    ) -> Ticket:
        """A place for ``request``. Raises QueueFull, with an honest ``retry_after_s``, over any bound. It may
        wait for ``hold_s`` where that is longer than others may. ``capacity`` may be None where
        :meth:`would_take` is true and there is a slot for it besides those for all who wait for the model.
        ``lane`` is its fit, where the caller has it."""
        queue = self._queues.get(request.model) or self._queue(request.model, now)
        if hold_s or request.deadline_s is not None:
            expires_s = self.expiry(request, now, hold_s)
        else:
            expires_s = now + self._settings.max_wait_s
        if capacity is not None and (
            self.requests or not capacity.free or expires_s < now or not self._takes_any
        ):
            self._check(request, queue, capacity, expires_s - now, now)
        ticket = Ticket(
            next(self._numbers),
            _TIER_RANK[request.tier],
            request,
            lane or DeploymentConstraints.of(request),
            estimated_work(request.input_tokens + request.work_tokens, request.output_tokens),
            now,
            expires_s,
            queue.count,
        )
        self._put(queue, ticket, now)
        if capacity is None or capacity.free:
            queue.promised_s = None
        return ticket

    def requeue(
        self,
        ticket: Ticket,
        avoid: Iterable[str],
        now: float,
        *,
        expires_s: float | None = None,
        refused: bool = False,
    ) -> None:
        """Take a request in again that left for a slot and could not be served. Never refused: it was here
        before, and keeps its turn. What its tenant was charged for it is given back, unless its answer has
        begun. ``expires_s`` is for those who may wait for another time than others; ``refused``: no engine
        began on it, so that its slot was none."""
        assert not ticket.waiting
        request = ticket.request
        queue = self._queue(request.model, now)
        ticket.lane = DeploymentConstraints.of(request, avoid)
        ticket.begun, ticket.seen = request.continuing, None
        if ticket.charged and not ticket.begun:
            queue.line_up().settle(ticket, 0.0, now)
        if refused:
            queue.drain.undo_departure(now)
        ticket.entered_s, ticket.ahead = now, queue.count
        ticket.expires_s = self.expiry(request, now) if expires_s is None else expires_s
        self._put(queue, ticket, now)

    def leave(self, ticket: Ticket, now: float, *, departed: bool) -> None:
        """Take a waiting ticket out: for a slot (``departed``), or because its request was withdrawn."""
        assert ticket.waiting
        self._queues[ticket.request.model].remove(ticket, now, departed)
        self.requests -= 1
        if ticket.counted:
            ticket.counted = False
            self.shares.left(ticket.tenant, ticket.request.model)
        self.body_bytes -= ticket.body_bytes

    def settle(self, ticket: Ticket, work: float, now: float) -> None:
        """What a request really cost that has left for a slot; until then its estimate counts."""
        if ticket.charged:
            model = ticket.request.model
            queue = self._queues.get(model) or self._queue(model, now)
            queue.line_up().settle(ticket, work, now)

    def lanes(self, model: str) -> list[DeploymentConstraints]:
        """The fits of those who wait for ``model``."""
        queue = self._queues.get(model)
        if queue is None:
            return []
        return list(dict.fromkeys(each.lane for each in queue.newcomers.values()) or queue.lanes)

    def next_tickets(
        self, model: str, limits: Mapping[DeploymentConstraints, int], now: float
    ) -> list[Ticket]:
        """The next tickets, in order of turns, of each lane no more than its limit. They stay where they
        are."""
        queue = self._queues.get(model)
        if queue is None:
            return []
        if len(queue.newcomers) == 1:
            return [each for each in queue.newcomers.values() if limits.get(each.lane)]
        return queue.line_up().first(limits, now)

    def newcomers(self, model: str) -> list[Ticket]:
        """Those who wait for ``model`` and are not in line, in the order in which they came. Where there are
        any, nobody else waits for it."""
        queue = self._queues.get(model)
        return [] if queue is None else list(queue.newcomers.values())

    def line_up(self, model: str) -> None:
        """Those who wait for ``model`` could not be placed as they came."""
        queue = self._queues.get(model)
        if queue is not None:
            queue.line_up()

    def still_waiting(self, model: str, now: float, *, slots: bool = True) -> None:
        """Those who wait for ``model`` now could not be given a slot: from here on the drain is measured.
        Time without any ``slots`` says nothing of it."""
        queue = self._queues.get(model)
        if queue is not None and queue.count:
            if not queue.drain.backlogged:
                queue.short_since_s = now
            queue.drain.set_backlogged(slots, now)
            if not slots:
                queue.without_slots_s = now

    def backlog(self, model: str) -> Backlog | None:
        """The requests that wait for ``model``; None when none does."""
        queue = self._queues.get(model)
        if queue is None or not queue.count:
            return None
        oldest = {rank: came_s for rank, came_s in enumerate(queue.line_up().oldest()) if came_s is not None}
        return Backlog(queue.count, min(oldest.values()), _TIERS[min(oldest)])

    def depth(self, model: str) -> int:
        """Requests waiting for ``model``."""
        queue = self._queues.get(model)
        return queue.count if queue else 0

    def tiers(self, model: str) -> dict[str, int]:
        """How many requests of each tier wait for ``model``; tiers without any are left out."""
        queue, found, before = self._queues.get(model), {}, 0
        for rank, tier in enumerate(_TIERS if queue is not None else ()):
            until = queue.ahead_of(rank) if queue is not None else 0
            if until > before:
                found[tier.value] = until - before
            before = until
        return found

    def ahead_of_batch(self, model: str) -> int:
        """How many requests of the tiers above batch wait for ``model``."""
        queue = self._queues.get(model)
        return queue.ahead_of(1) if queue else 0

    def realtime_waits(self, model: str) -> bool:
        """Whether a realtime request waits for ``model``."""
        queue = self._queues.get(model)
        return queue is not None and queue.ahead_of(0) > 0

    def demand(self, model: str, now: float) -> Demand | None:
        """What waits for ``model``, as an agent is told; None when nothing does."""
        backlog, queue = self.backlog(model), self._queues.get(model)
        if backlog is None or queue is None:
            return None
        weight = queue.line_up().weight()
        return Demand(backlog.requests, queue.ahead_of(0), max(0.0, now - backlog.oldest_s), weight)

    def depths(self) -> dict[str, int]:
        """Requests waiting, by model; models without any are left out."""
        return {model: queue.count for model, queue in self._queues.items() if queue.count}

    def predicted_wait_s(
        self, model: str, tier: Tier, tenant: str, capacity: Capacity, now: float
    ) -> float | None:
        """How long a request of ``tier`` and ``tenant`` that comes now would probably wait; None when nothing
        can be said."""
        queue, rank = self._queues.get(model), _TIER_RANK[tier]
        if capacity.free > (queue.ahead_of(rank) if queue is not None else 0):
            return 0.0
        if not (capacity.slots or capacity.coming):
            return None  # they are all resting, on trial or away: how long for cannot be known
        if capacity.slots and queue is not None and self._is_settling(queue, now):
            return None
        rate = self._rate(model, capacity, now)
        if rate <= 0:
            return None
        wait_s = queue.line_up().wait_s(rank, tenant, rate, now) if queue is not None else 1 / rate
        if not capacity.slots:
            return capacity.ready_s + max(0.0, wait_s - capacity.hold_s)  # the first of them do not wait
        if tier is Tier.REALTIME and capacity.yielding > (queue.ahead_of(rank) if queue else 0):
            return min(wait_s, YIELD_S)
        return wait_s

    def _is_settling(self, queue: ModelQueue, now: float) -> bool:
        """Whether the slots that are there now say little of how many there will be in a moment."""
        if now - queue.without_slots_s < SETTLING_S:
            return True  # agents that have just come say how many they have here a moment later
        drain = queue.drain
        if not self._settings.shared_slots or drain.measured:
            return False
        return drain.backlogged and now - queue.short_since_s < SHARED_SETTLING_S

    def departures_per_s(self, model: str, capacity: Capacity, now: float) -> float:
        """How many who wait for ``model`` get a slot in a second."""
        return self._rate(model, capacity, now) if capacity.slots else 0.0

    def retry_after_s(self, request: Request, capacity: Capacity, now: float, least_s: float = 0.0) -> float:
        """When the client of a request that is refused now should try again: each one departure of its tier
        later than the one before, and not before ``least_s``, when the wait will be short enough."""
        rate, rank = self._rate(request.model, capacity, now), _TIER_RANK[request.tier]
        if rate <= 0:
            return UNKNOWN_RETRY_AFTER_S
        queue = self._queue(request.model, now)
        after_s = 1 / queue.line_up().left_per_s(rank, rate, now)
        from_s = now if capacity.slots else now + capacity.ready_s
        promises_s = queue.promised_s = queue.promised_s or [now] * len(_TIERS)
        promised_s = min(max(promises_s[rank], from_s) + after_s, now + MAX_RETRY_AFTER_S)
        promises_s[rank] = promised_s
        return min(max(MIN_RETRY_AFTER_S, least_s, promised_s - now), MAX_RETRY_AFTER_S)

    def _check(
        self, request: Request, queue: ModelQueue, capacity: Capacity, allowed_s: float, now: float
    ) -> None:
        settings, least_s = self._settings, 0.0
        tenant = request.principal.tenant
        wait_s = self.predicted_wait_s(request.model, request.tier, tenant, capacity, now)
        size_bytes = request.body.held_bytes
        if queue.count >= settings.max_requests or self.requests >= settings.max_requests_total:
            message = f"too many requests are waiting for the model {request.model!r}; try again later"
        elif (
            self.shares.any
            and wait_s != 0.0
            and self.shares.full(tenant, request.model, settings.max_requests, settings.max_requests_total)
        ):
            message = (
                f"the tenant {tenant!r} has as many requests waiting as its share of the queue; try again "
                "later"
            )
        elif self.body_bytes + size_bytes > settings.max_body_bytes and (self.requests or wait_s != 0.0):
            message = "the requests that wait hold as much memory as they may; try again later"
        elif wait_s is not None and wait_s > allowed_s:
            message = (
                f"a slot for the model {request.model!r} is expected in {wait_s:.1f} s, "
                f"and this request may wait {max(0.0, allowed_s):.1f} s; try again later"
            )
            least_s = wait_s - allowed_s
        else:
            return
        raise QueueFull(message, retry_after_s=self.retry_after_s(request, capacity, now, least_s))

    def _rate(self, model: str, capacity: Capacity, now: float) -> float:
        guess = capacity.departures_per_s
        if capacity.coming and not capacity.slots:
            return guess  # what was is over
        queue = self._queues.get(model)
        return queue.drain.per_s(now, guess) if queue else guess

    def expiry(self, request: Request, now: float, hold_s: float = 0.0) -> float:
        """When ``request`` has waited as long as it may: as all may, or for ``hold_s`` if that is more."""
        wait_s, deadline_s = self._settings.max_wait_s, request.deadline_s
        expires_s = now + (wait_s if wait_s > hold_s else hold_s)
        return expires_s if deadline_s is None or deadline_s > expires_s else deadline_s

    def _put(self, queue: ModelQueue, ticket: Ticket, now: float) -> None:
        queue.put(ticket, now)
        self.requests += 1
        if self.shares.any:
            ticket.counted = self.shares.entered(ticket.tenant, ticket.request.model)
        ticket.body_bytes = ticket.request.body.held_bytes
        self.body_bytes += ticket.body_bytes

    def _queue(self, model: str, now: float) -> ModelQueue:
        queue = self._queues.get(model)
        if queue is None:
            if len(self._queues) >= EMPTY_QUEUES:
                self._queues = {name: each for name, each in self._queues.items() if each.count}
            queue = self._queues[model] = ModelQueue(self._weights, self._settings.ageing_s, now)
            if self._told:
                queue.turns.record_given()
        return queue
