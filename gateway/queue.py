"""The waiting room: one bounded queue per model (SCHEDULING §3). Pure data, ``now`` is an argument.

A worked example of the bounds. A model with 8 slots and answers of 4 s drains 2 requests a second. With
``max_wait_s`` 60 the 121st request in line is refused, long before ``max_requests`` 1000, and is told to come
back in half a second: by then one has left the line. The next one refused is told one second, and so on, so
that those who were sent away do not all come back at once.
"""

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.domain import Request, Tier
from gateway.drain_rate import DrainRate
from gateway.errors import QueueFull
from gateway.scheduling.base import estimated_work

MAX_RETRY_AFTER_S = 120.0
"""SDKs ignore a longer ``Retry-After``."""

MIN_RETRY_AFTER_S = 0.05
UNKNOWN_RETRY_AFTER_S = 5.0
"""Told when there is nothing to compute a promise from: no slot now, and none was seen lately."""

EMPTY_QUEUES = 4096
"""Queues of models nobody waits for that are remembered for their drain rate."""

_TIER_RANK = {Tier.REALTIME: 0, Tier.STANDARD: 1, Tier.BATCH: 2}


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Bounds of the waiting room."""

    max_requests: int = 1000
    """Requests that may wait for one model."""
    max_requests_total: int = 10_000
    """Requests that may wait in all."""
    max_body_bytes: int = 256 * 1024 * 1024
    """Body bytes that all waiting requests together may hold in memory."""
    max_wait_s: float = 60.0
    """A request predicted to wait longer is refused; one that did wait as long gets QueueTimeout."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What serves a model now: ``slots`` in all, ``free`` of them for the route in question, and ``hold_s``,
    how long a request keeps a slot."""

    slots: int
    free: int
    hold_s: float

    @property
    def departures_per_s(self) -> float:
        """What a queue should drain at, by Little's law."""
        return self.slots / max(self.hold_s, 1e-3)


class Fit(NamedTuple):
    """What decides which deployments may take a request. Requests of equal fit are interchangeable."""

    route: str
    avoid: frozenset[str] = frozenset()
    version: str | None = None
    continuing: bool = False

    @classmethod
    def of(cls, request: Request, avoid: Iterable[str] = ()) -> "Fit":
        return cls(request.route, frozenset(avoid), request.version, request.continuing)


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's place in the room. ``number`` counts arrivals and is kept when it comes back."""

    number: int
    request: Request
    work: float
    fit: Fit
    entered_s: float
    expires_s: float
    """When it has waited as long as it may; not later than its request's deadline."""
    _entry: "_Entry | None" = field(default=None, repr=False)

    @property
    def waiting(self) -> bool:
        return self._entry is not None


_Entry = tuple[tuple[float, ...], int, Ticket]


class Order(Protocol):
    """Whose turn it is: the smallest key first. Asked once, when a ticket enters or comes back."""

    def key(self, ticket: Ticket, now: float) -> tuple[float, ...]: ...


class TierThenArrival:
    """Realtime before standard before batch; within a tier those whose answer has begun, their clients are in
    the middle of a sentence, and then who came first."""

    def key(self, ticket: Ticket, now: float) -> tuple[float, ...]:
        return (_TIER_RANK[ticket.request.tier], not ticket.request.continuing, ticket.number)


class WaitingRoom:
    """Every request that waits for a slot."""

    def __init__(self, settings: QueueSettings, order: Order | None = None) -> None:
        self._settings = settings
        self._order: Order = order or TierThenArrival()
        self._queues: dict[str, _ModelQueue] = {}
        self._numbers = itertools.count(1)
        self.requests = 0
        self.body_bytes = 0

    def enter(self, request: Request, capacity: Capacity, now: float) -> Ticket:
        """A place for ``request``. Raises QueueFull, with an honest ``retry_after_s``, over any bound."""
        queue = self._queue(request.model, now)
        self._check(request, queue, capacity, now)
        ticket = Ticket(
            number=next(self._numbers),
            request=request,
            work=estimated_work(request.input_tokens, request.output_tokens),
            fit=Fit.of(request),
            entered_s=now,
            expires_s=self._expiry(request, now),
        )
        self._put(queue, ticket, now)
        queue.promised_s = now
        return ticket

    def come_back(self, ticket: Ticket, avoid: Iterable[str], now: float) -> None:
        """Take a request in again that left for a slot and could not be served. Never refused: it was here
        before, and keeps its turn."""
        assert not ticket.waiting
        ticket.fit = Fit.of(ticket.request, avoid)
        ticket.entered_s = now
        ticket.expires_s = self._expiry(ticket.request, now)
        self._put(self._queue(ticket.request.model, now), ticket, now)

    def leave(self, ticket: Ticket, now: float, *, departed: bool) -> None:
        """Take a waiting ticket out: for a slot (``departed``), or because nobody wants it any more."""
        assert ticket.waiting
        queue = self._queues[ticket.request.model]
        if departed:
            queue.drain.departed(now)
        queue.remove(ticket, now)
        self.requests -= 1
        self.body_bytes -= len(ticket.request.body.prefix)

    def lanes(self, model: str) -> list[Fit]:
        """The fits of those who wait for ``model``."""
        queue = self._queues.get(model)
        return list(queue.lanes) if queue else []

    def front(self, model: str, fit: Fit, limit: int) -> list[Ticket]:
        """The first ``limit`` tickets of one lane, in order of turns. They stay where they are."""
        queue = self._queues.get(model)
        lane = queue.lanes.get(fit) if queue else None
        return lane.front(limit) if lane else []

    def in_turn(self, tickets: Iterable[Ticket]) -> list[Ticket]:
        """Waiting tickets of several lanes in the order of their turns."""
        return sorted(tickets, key=lambda ticket: ticket._entry or ())

    def still_waiting(self, model: str, now: float) -> None:
        """Those who wait for ``model`` now could not be given a slot: from here on the drain is measured."""
        queue = self._queues.get(model)
        if queue is not None and queue.count:
            queue.drain.set_backlogged(True, now)

    def depth(self, model: str) -> int:
        """Requests waiting for ``model``."""
        queue = self._queues.get(model)
        return queue.count if queue else 0

    def depths(self) -> dict[str, int]:
        """Requests waiting, by model; models nobody waits for are left out."""
        return {model: queue.count for model, queue in self._queues.items() if queue.count}

    def predicted_wait_s(self, model: str, tier: Tier, capacity: Capacity, now: float) -> float | None:
        """How long a request of ``tier`` that comes now would wait; None when nothing can be said."""
        ahead = self._queues[model].ahead_of(tier) if model in self._queues else 0
        if capacity.free > ahead:
            return 0.0
        if not capacity.slots:  # they are all resting, on trial or away: how long for cannot be known
            return None
        rate = self._rate(model, capacity, now)
        return (ahead + 1) / rate if rate > 0 else None

    def retry_after_s(self, model: str, capacity: Capacity, now: float) -> float:
        """When somebody turned away now should come back: each a departure later than the one before."""
        rate = self._rate(model, capacity, now)
        if rate <= 0:
            return UNKNOWN_RETRY_AFTER_S
        queue = self._queue(model, now)
        latest_s = now + MAX_RETRY_AFTER_S
        queue.promised_s = min(max(queue.promised_s, now) + 1 / rate, latest_s)
        return max(MIN_RETRY_AFTER_S, queue.promised_s - now)

    def _check(self, request: Request, queue: "_ModelQueue", capacity: Capacity, now: float) -> None:
        settings = self._settings
        wait_s = self.predicted_wait_s(request.model, request.tier, capacity, now)
        allowed_s = self._expiry(request, now) - now
        size_bytes = len(request.body.prefix)
        if queue.count >= settings.max_requests or self.requests >= settings.max_requests_total:
            message = f"too many requests are waiting for the model {request.model!r}; try again later"
        elif self.body_bytes + size_bytes > settings.max_body_bytes and (self.requests or wait_s != 0.0):
            message = "the requests that wait hold as much memory as they may; try again later"
        elif wait_s is not None and wait_s > allowed_s:
            message = (
                f"a slot for the model {request.model!r} is expected in {wait_s:.1f} s, "
                f"and this request may wait {max(0.0, allowed_s):.1f} s; try again later"
            )
        else:
            return
        raise QueueFull(message, retry_after_s=self.retry_after_s(request.model, capacity, now))

    def _rate(self, model: str, capacity: Capacity, now: float) -> float:
        guess = capacity.departures_per_s
        queue = self._queues.get(model)
        return queue.drain.per_s(now, guess) if queue else guess

    def _expiry(self, request: Request, now: float) -> float:
        expires_s = now + self._settings.max_wait_s
        return expires_s if request.deadline_s is None else min(expires_s, request.deadline_s)

    def _put(self, queue: "_ModelQueue", ticket: Ticket, now: float) -> None:
        queue.put(ticket, self._order.key(ticket, now))
        self.requests += 1
        self.body_bytes += len(ticket.request.body.prefix)

    def _queue(self, model: str, now: float) -> "_ModelQueue":
        queue = self._queues.get(model)
        if queue is None:
            if len(self._queues) >= EMPTY_QUEUES:
                self._queues = {name: each for name, each in self._queues.items() if each.count}
            queue = self._queues[model] = _ModelQueue(now)
        return queue


class _ModelQueue:
    """Those who wait for one model: a lane for each fit, so that nobody is held up by who cannot go yet."""

    def __init__(self, now: float) -> None:
        self.lanes: dict[Fit, _Lane] = {}
        self.drain = DrainRate(now)
        self.promised_s = now
        self.count = 0
        self._by_rank = [0] * len(_TIER_RANK)
        self._entries = itertools.count()

    def ahead_of(self, tier: Tier) -> int:
        return sum(self._by_rank[: _TIER_RANK[tier] + 1])

    def put(self, ticket: Ticket, key: tuple[float, ...]) -> None:
        lane = self.lanes.get(ticket.fit)
        if lane is None:
            lane = self.lanes[ticket.fit] = _Lane()
        ticket._entry = (key, next(self._entries), ticket)
        lane.push(ticket._entry)
        self.count += 1
        self._by_rank[_TIER_RANK[ticket.request.tier]] += 1

    def remove(self, ticket: Ticket, now: float) -> None:
        ticket._entry = None
        lane = self.lanes[ticket.fit]
        lane.forget_one()
        if not lane.count:
            del self.lanes[ticket.fit]
        self.count -= 1
        self._by_rank[_TIER_RANK[ticket.request.tier]] -= 1
        if not self.count:
            self.drain.set_backlogged(False, now)


class _Lane:
    """A heap whose removed entries stay until they surface or outnumber the others."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self.count = 0

    def push(self, entry: _Entry) -> None:
        heapq.heappush(self._heap, entry)
        self.count += 1

    def forget_one(self) -> None:
        """An entry was struck from its ticket."""
        self.count -= 1
        if len(self._heap) > 2 * self.count + 16:
            self._heap = [entry for entry in self._heap if entry[2]._entry is entry]
            heapq.heapify(self._heap)

    def front(self, limit: int) -> list[Ticket]:
        first: list[_Entry] = []
        while self._heap and len(first) < limit:
            entry = heapq.heappop(self._heap)
            if entry[2]._entry is entry:
                first.append(entry)
        for entry in first:
            heapq.heappush(self._heap, entry)
        return [ticket for _, _, ticket in first]
