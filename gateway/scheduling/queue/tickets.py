"""One request's place in the waiting room, and what decides which deployments may take it. Plain data."""

from typing import NamedTuple

from gateway.domain.request import Request, Tier
from gateway.scheduling.base import BLOCK_TOKENS, DeploymentConstraints, PendingRequest
from gateway.scheduling.queue.fair import QueuedRequest
from shared.process.frozen import frozen


@frozen
class Capacity:
    """What serves a model now: ``slots`` in all, ``free`` of them for the route in question, and ``hold_s``,
    how long a request keeps a slot. ``yielding`` slots others would give back for a realtime request. Where
    there are none, ``coming`` are there in ``ready_s``, when the model is loaded; 0: who knows when."""

    slots: int
    free: int
    hold_s: float
    yielding: int = 0
    coming: int = 0
    ready_s: float = 0.0

    @property
    def departures_per_s(self) -> float:
        """What a queue should drain at, by Little's law."""
        return (self.slots or self.coming) / max(self.hold_s, 1e-3)


class Backlog(NamedTuple):
    """Who waits for one model: how many, since when the first of them, and the most urgent tier."""

    requests: int
    oldest_s: float
    tier: Tier


class Ticket(QueuedRequest):
    """One request's place in the room. ``number`` counts arrivals; it and ``due_s`` are kept when it comes
    back, and so its turn among its tenant's."""

    __slots__ = ("ahead", "body_bytes", "counted", "entered_s", "expires_s", "request", "seen", "waiting")

    lane: DeploymentConstraints

    def __init__(
        self,
        number: int,
        rank: int,
        request: Request,
        lane: DeploymentConstraints,
        work: float,
        entered_s: float,
        expires_s: float,
        ahead: int,
    ) -> None:
        self.entry = None
        self.number = number
        self.rank = rank
        self.tenant = request.principal.tenant
        self.lane = lane
        self.work = work
        self.due_s = expires_s
        self.begun = False
        self.charged = 0.0
        self.request = request
        self.entered_s = entered_s
        self.expires_s = expires_s
        """When it has waited as long as it may; not later than its request's deadline."""
        self.ahead = ahead
        """Requests that waited for its model when it came."""
        self.body_bytes = 0
        """Bytes of its body that were counted when it came in."""
        self.counted = False
        """Whether it counts against its tenant's share of the places."""
        self.waiting = False
        """Whether it has a place in the room."""
        self.seen: PendingRequest | None = None
        """What :meth:`as_pending` said; None again when something about its request has changed."""

    def as_pending(self, avoid: frozenset[str] = frozenset()) -> PendingRequest:
        """The request as policies see it, that must not go to ``avoid``."""
        if self.seen is not None and not avoid:
            return self.seen
        request = self.request
        seen = PendingRequest(  # in the order of the fields
            self.number,
            request.need,
            self.work,
            request.arrived_s,
            request.tier,
            self.tenant,
            request.deadline_s,
            request.session_key,
            avoid,
            request.version,
            request.continuing,
            request.input_tokens + request.work_tokens,
            request.output_tokens,
            request.prefix,
            BLOCK_TOKENS,
            request.ttft_s,
            request.where,
            request.agent,
        )
        if not avoid:
            self.seen = seen
        return seen
