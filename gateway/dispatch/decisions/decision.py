"""What is noted of a request each time a deployment gets it. This is on the way of every request: facts are
copied as they are, and nothing is computed from them."""

from typing import Protocol

from msgspec import structs

from gateway.dispatch.decisions.waits import LEAST_S, WaitLog
from gateway.fleet.deployment import Deployment
from gateway.scheduling.base import DeploymentView, PendingRequest
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.prediction import Candidate
from gateway.scheduling.queue.tickets import Ticket
from gateway.scheduling.scheduler import Scheduler
from shared.protocol.messages import DeploymentStatus

MOST_CANDIDATES = 8
"""Deployments of which a decision keeps what was known: the chosen one and others, evenly spread."""

MOST_DECISIONS = 16
"""That are kept of one request: the first ones."""

SAID_CHARS = 200
"""Of what an agent says of its failure."""


class Decision:
    """One deployment got a request. Times are of the gateway's clock."""

    # What is so of nearly all is here and in no object.
    considered = 1
    """Deployments that there were."""
    ahead = 0
    continuing = False
    second_copy = False
    """Another attempt of the request was still going on."""
    region: tuple[str, str] | None = None
    """Where it is, and why requests such as this went there; None: regions had no say in it."""
    slack_s: float | None = None
    waits: tuple[tuple[str, float], ...] = ()
    first_byte_s: float | None = None
    first_piece_s: float | None = None
    ended_s: float | None = None
    """When its slot was free."""
    gpu_s: float | None = None
    said = ""
    """Why the agent gave it up, in its words. Empty: it did not, or said nothing."""

    def __init__(
        self,
        opened_s: float,
        entered_s: float,
        item: PendingRequest,
        policy: str,
        candidates: list[Candidate],
    ) -> None:
        """The first of ``candidates`` is the deployment that got it."""
        self.opened_s = opened_s
        self.entered_s = entered_s
        self.policy = policy
        self.input_tokens = item.input_tokens
        self.output_tokens = item.output_tokens
        self.candidates = candidates

    @property
    def key(self) -> str:
        """The deployment's."""
        return self.candidates[0].key

    @property
    def agent(self) -> str:
        """The deployment's."""
        return self.candidates[0].agent


class PlacedAttempt(Protocol):
    """:class:`gateway.dispatch.attempt.Attempt`."""

    decision: Decision | None
    deployment: Deployment
    opened_s: float
    first_byte_s: float | None


class RegionReasons(Protocol):
    """:class:`gateway.dispatch.region_gate.RegionGate`."""

    def region_of(self, view: DeploymentView) -> str: ...
    def reason(self, number: int, chosen: DeploymentView) -> str | None: ...
    def barred(self, number: int, view: DeploymentView) -> str | None: ...


class DecisionLog:
    """Notes decisions in the requests themselves. One for a dispatcher."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.enabled = True
        self.waits = WaitLog()
        self._scheduler = scheduler

    def taken(self, ticket: Ticket, attempt: PlacedAttempt) -> None:
        """``attempt`` has its stream; nothing counts it yet."""
        chosen, now = attempt.deployment, attempt.opened_s
        known = self._scheduler.models.get(chosen.model) if self.enabled else None
        if known is None:
            return
        request, knowledge = ticket.request, known.knowledge
        decisions = request.decisions
        if decisions is not None and len(decisions) >= MOST_DECISIONS:
            return
        item = ticket.seen or ticket.as_pending()
        kept, waiting = [candidate_of(chosen, None, item, knowledge)], ticket.waiting
        entered_s = ticket.entered_s if waiting else now
        decision = attempt.decision = Decision(now, entered_s, item, known.policy.name, kept)
        if decisions is None:
            request.decisions = [decision]
        else:
            decisions.append(decision)
        if len(knowledge.views) > 1:
            decision.considered = len(knowledge.views)
            _add_others(kept, ticket, chosen, item, knowledge)
        if item.continuing:
            decision.continuing = True
        if item.ttft_s is not None:
            decision.slack_s = item.arrived_s + item.ttft_s - now
        if not waiting:
            decision.second_copy = True
            return
        if ticket.ahead:
            decision.ahead = ticket.ahead
        if now - entered_s >= LEAST_S:
            decision.waits = self.waits.between(request.model, entered_s, now)

    def note_regions(self, ticket: Ticket, chosen: Deployment, regions: RegionReasons) -> None:
        """The request has just gone to ``chosen``: why that region was taken, and of others that could have
        taken it why theirs were not."""
        decisions = ticket.request.decisions if self.enabled else None
        known = self._scheduler.models.get(chosen.model)
        if not decisions or known is None or decisions[-1].key != chosen.key:
            return
        decision, number, views = decisions[-1], ticket.number, known.knowledge.views
        if (reason := regions.reason(number, chosen)) is not None:
            decision.region = regions.region_of(chosen), reason
        decision.candidates = [
            structs.replace(each, excluded=regions.barred(number, views[each.key]))
            if each.excluded is None and each.key != chosen.key and each.key in views
            else each
            for each in decision.candidates
        ]

    def released(self, attempt: PlacedAttempt, now: float, gpu_s: float) -> None:
        """The slot of ``attempt`` is free, and the time that it held devices is known."""
        decision = attempt.decision
        if decision is not None:
            decision.ended_s, decision.gpu_s = now, gpu_s
            decision.first_byte_s = attempt.first_byte_s

    def failed(self, attempt: PlacedAttempt, reason: str) -> None:
        """The agent gave ``attempt`` up for this reason, which is fit for the client to read."""
        if attempt.decision is not None:
            attempt.decision.said = reason[:SAID_CHARS]

    def left(self, ticket: Ticket, now: float) -> None:
        """A request has left the queue without a slot."""
        if self.enabled:
            waits = self.waits.between(ticket.request.model, ticket.entered_s, now)
            ticket.request.last_wait = ticket.entered_s, now, ticket.ahead, waits


def _add_others(
    kept: list[Candidate], ticket: Ticket, chosen: Deployment, item: PendingRequest, knowledge: Knowledge
) -> None:
    """What is known of some of those that the request could have gone to, or could not."""
    avoid = ticket.lane.avoid if ticket.waiting else frozenset(ticket.request.attempts)
    for view in knowledge.some_views(item.number, MOST_CANDIDATES):
        if view is not chosen and len(kept) < MOST_CANDIDATES:
            kept.append(candidate_of(view, exclusion(view, item, avoid, chosen), item, knowledge))


def candidate_of(
    view: DeploymentView, excluded: str | None, item: PendingRequest, knowledge: Knowledge
) -> Candidate:
    """What is known of ``view`` now."""
    load, speeds = view.load, knowledge.by_device.get(view.device) or knowledge.speeds(view)
    return Candidate(
        view.key,
        view.agent,
        view.version,
        view.device,
        excluded,
        view.slots,
        view.in_flight,
        knowledge.cached_tokens(item, view.key) if item.prefix else 0,
        speeds.hit_share,
        load.ready_s,
        load.kv_tokens,
        load.reading_pace,
        load.writing_pace,
        load.reading_share,
        view.health_factor,
        view.rtt_s,
        0.0 if view.loaded else speeds.load_s if view.load_s is None else view.load_s,
        speeds.coefficients,
    )


def exclusion(
    view: DeploymentView, item: PendingRequest, avoid: frozenset[str], chosen: DeploymentView
) -> str | None:
    """Why ``view`` could not take ``item``, which went to ``chosen``: a code of
    :data:`gateway.dispatch.decisions.words.EXCLUDED`. None: it could."""
    if not view.usable:
        return _unusable(view)
    need = item.route
    if need not in view.routes and not view.supports(need):
        return "route"
    if view.key in avoid:
        return "avoided"
    if item.is_bound() and not view.suits(item.fit):
        return _misfit(view, item)
    if view.in_flight >= view.slots:
        return "full"
    if view.in_flight >= view.cap:
        return "health"
    free_tokens = view.kv_free_tokens
    if free_tokens is not None and free_tokens < item.input_tokens + item.output_tokens:
        return "context"
    if need in view.translated and need not in chosen.translated and chosen.loaded:
        return "translated"
    return None


def _misfit(view: DeploymentView, item: PendingRequest) -> str:
    """What of the request's own demands it does not meet."""
    if item.agent is not None and item.agent != view.agent:
        return "agent"
    if item.where is not None and not item.where.allows(view.labels):
        return "residency"
    return "version" if item.version is not None and item.version != view.version else "cannot_continue"


def _unusable(view: DeploymentView) -> str:
    """Why it takes nothing, whatever its slots say."""
    if not isinstance(view, Deployment):
        return "health"
    session = view.session
    if session.suspended:
        return "suspended"
    if session.full:
        return "session_full"
    if not session.takes_work:
        return "draining"
    if view.closing:
        return "closing"
    return "not_loaded" if view.status is not DeploymentStatus.LOADED or not view.listed else "health"
